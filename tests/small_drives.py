"""Small drives and bags that several tests share."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.typesys import Stores, get_typestore

from penumbra.bags import IMAGE_TOPIC, BagWriter, Drive, DriveFrame, RawMessage, open_bag
from penumbra.bags.messages import IMAGE, START_NS, CameraModel, image, serialised

WIDTH, HEIGHT = 48, 32
INTRINSICS = np.array([[40.0, 0, 23.5], [0, 41.0, 15.5], [0, 0, 1]])
CAMERA = CameraModel.rectified(WIDTH, HEIGHT, INTRINSICS)
TENTH = 10**8  # nanoseconds


def picture(number: int) -> np.ndarray:
    """Smooth enough for JPEG, and no two alike."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([x * 5 % 256, y * 7 % 256, (x + y + 11 * number) % 256], 2).astype(np.uint8)


def small_drive(count: int, **truth) -> Drive:
    """`count` frames, a tenth of a second apart."""
    frames = [
        DriveFrame(START_NS + i * TENTH, picture(i), camera=CAMERA, **truth) for i in range(count)
    ]
    return Drive(frames, count)


def image_bytes(stamp_ns: int, number: int = 0) -> bytes:
    return serialised(image(stamp_ns, "camera", picture(number), "bgr8"), IMAGE)


def write_images(path: Path, stamps: list[int], headers: list[int] | None = None) -> None:
    """A bag of images that were received at `stamps`, with `headers` in their headers."""
    with BagWriter(path) as bag:
        for number, (stamp, header) in enumerate(zip(stamps, headers or stamps, strict=True)):
            bag.write(IMAGE_TOPIC, IMAGE, stamp, image_bytes(header, number))


def read(path: Path, warnings: list[str] | None = None) -> list[RawMessage]:
    """All messages; without a list for warnings there must be none."""
    told: list[str] = []
    with open_bag(path, told.append) as bag:
        messages = list(bag.raw())
    if warnings is None:
        assert told == []
    else:
        warnings += told
    return messages


def write_png(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array)


def ros1_bag(path, frames=3, chunk=None, compression=None) -> None:
    """As ROS 1 writes it: Header with a counter, CameraInfo with capital letters."""
    store = get_typestore(Stores.ROS1_NOETIC)
    types = store.types
    time, header = types["builtin_interfaces/msg/Time"], types["std_msgs/msg/Header"]
    writer = Ros1Writer(path)
    if compression:
        writer.set_compression(writer.CompressionFormat[compression])
    if chunk:
        writer.chunk_threshold = chunk
    with writer as bag:
        images = bag.add_connection("/camera/image", IMAGE, typestore=store)
        infos = bag.add_connection(
            "/camera/info", "sensor_msgs/msg/CameraInfo", typestore=store, latching=1
        )
        for number in range(frames):
            stamp = START_NS + number * TENTH
            head = header(number, time(*divmod(stamp, 10**9)), "camera")
            array = picture(number)
            image = types[IMAGE](
                head, *array.shape[:2], "bgr8", 0, 3 * array.shape[1], array.ravel()
            )
            bag.write(images, stamp, store.serialize_ros1(image, IMAGE))
            region = types["sensor_msgs/msg/RegionOfInterest"](0, 0, 0, 0, False)
            info = types["sensor_msgs/msg/CameraInfo"](
                head, 32, 48, "plumb_bob", np.zeros(5), np.arange(9.0), np.eye(3).ravel(),
                np.arange(12.0), 0, 0, region)  # fmt: skip
            bag.write(infos, stamp, store.serialize_ros1(info, "sensor_msgs/msg/CameraInfo"))
