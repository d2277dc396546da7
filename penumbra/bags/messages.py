"""Messages as they are stored in a bag: built, serialised and read without ROS."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from penumbra.errors import PenumbraError

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
IMAGES = (IMAGE, COMPRESSED_IMAGE)
HEADER = "std_msgs/msg/Header"
# Element type and channels of the encodings that are written here.
_PIXELS: dict[str, tuple[type[np.generic], int]] = {
    "bgr8": (np.uint8, 3),
    "rgb8": (np.uint8, 3),
    "mono8": (np.uint8, 1),
    "32FC1": (np.float32, 1),
}

SECOND = 10**9
START_NS = 10**9 * SECOND
"""First stamp of a recording without a date: 2001-09-09, a round number of seconds. Much of ROS
takes a stamp of zero for "no stamp"."""


@cache
def jazzy() -> Typestore:
    """The message definitions of ROS 2 Jazzy."""
    return get_typestore(Stores.ROS2_JAZZY)


@dataclass(frozen=True)
class CameraModel:
    """The camera calibration in CameraInfo: intrinsics `k` (3x3) and distortion `d` of the raw
    image, rectification `r` (3x3) and the rectified projection `p` (3x4)."""

    width: int
    height: int
    k: np.ndarray
    p: np.ndarray
    d: tuple[float, ...] = (0.0,) * 5
    r: np.ndarray | None = None

    @classmethod
    def rectified(cls, width: int, height: int, k: np.ndarray) -> CameraModel:
        """A camera without distortion whose image is rectified."""
        return cls(width, height, k, np.hstack([k, np.zeros((3, 1))]))


def image(stamp_ns: int, frame_id: str, array: np.ndarray, encoding: str) -> Any:
    """An Image of `array`: bgr8, mono8 (uint8) or 32FC1 (float32)."""
    data = np.ascontiguousarray(array)
    height, width = data.shape[:2]
    flat = data.reshape(-1).view(np.uint8)
    return _new(IMAGE, _header(stamp_ns, frame_id), height, width, encoding,
                0, flat.size // height, flat)  # fmt: skip


def compressed_image(stamp_ns: int, frame_id: str, encoded: bytes) -> Any:
    """A CompressedImage of a JPEG or PNG file, byte for byte."""
    codec = {b"\xff\xd8": "jpeg", b"\x89P": "png"}.get(encoded[:2])
    if codec is None:
        raise PenumbraError("a compressed image must be a JPEG or PNG file")
    text = f"bgr8; {codec} compressed bgr8"  # as sensor_msgs and image_transport have it
    data = np.frombuffer(encoded, np.uint8)
    return _new(COMPRESSED_IMAGE, _header(stamp_ns, frame_id), text, data)


def camera_info(stamp_ns: int, frame_id: str, camera: CameraModel) -> Any:
    """The CameraInfo of one image."""
    rotation = np.eye(3) if camera.r is None else camera.r
    matrices = [np.asarray(m, np.float64).reshape(-1) for m in (camera.k, rotation, camera.p)]
    roi = _new("sensor_msgs/msg/RegionOfInterest", 0, 0, 0, 0, False)
    return _new(CAMERA_INFO, _header(stamp_ns, frame_id), camera.height, camera.width,
                "plumb_bob", np.array(camera.d, np.float64), *matrices, 0, 0, roi)  # fmt: skip


def serialised(message: Any, type_name: str) -> bytes:
    """`message` in CDR, as ROS 2 sends it."""
    return bytes(jazzy().serialize_cdr(message, type_name))


def array_of(message: Any) -> np.ndarray:
    """The pixels of an Image (bgr8, rgb8, mono8, 32FC1) or CompressedImage (BGR), as written here.

    `penumbra.vehicle.conversions` reads the node's input, in any encoding.
    """
    if not hasattr(message, "encoding"):
        decoded = cv2.imdecode(np.asarray(message.data), cv2.IMREAD_COLOR)
        if decoded is None:
            raise PenumbraError("a compressed image in the bag is neither a JPEG nor a PNG")
        return decoded
    if message.encoding not in _PIXELS:
        raise PenumbraError(
            f"an image in the bag has encoding {message.encoding}: use {', '.join(_PIXELS)}"
        )
    kind, channels = _PIXELS[message.encoding]
    data, wide = np.asarray(message.data), message.width * channels * np.dtype(kind).itemsize
    if data.size != message.height * message.step or message.step < wide:
        raise PenumbraError(
            f"inconsistent image in the bag: {message.width}x{message.height}, step"
            f" {message.step}, {data.size} bytes"
        )
    used = data.reshape(message.height, message.step)[:, :wide]
    array = np.ascontiguousarray(used).view(kind)
    return array if channels == 1 else array.reshape(message.height, message.width, channels)


def has_header(store: Typestore, type_name: str) -> bool:
    """Whether messages of this type begin with a std_msgs/Header."""
    fields = store.fielddefs[type_name][1] if type_name in store.fielddefs else []
    return bool(fields) and fields[0][1] == (Nodetype.NAME, HEADER)


def header_stamp(data: bytes) -> int:
    """The header stamp in nanoseconds, read from the CDR of a message that begins with a Header.

    Four bytes of encapsulation (the second is 1 for little endian) precede seconds and nanoseconds.
    """
    seconds, nanoseconds = struct.unpack_from(_stamp_format(data), data, 4)
    return seconds * SECOND + nanoseconds


def restamped(data: bytes, stamp_ns: int) -> bytes:
    """The same message with another header stamp."""
    stamp = struct.pack(_stamp_format(data), *divmod(stamp_ns, SECOND))
    return b"".join((data[:4], stamp, data[12:]))


def _stamp_format(data: bytes) -> str:
    return "<iI" if data[1] & 1 else ">iI"


def _header(stamp_ns: int, frame_id: str) -> Any:
    seconds, nanoseconds = divmod(int(stamp_ns), SECOND)
    return _new(HEADER, _new("builtin_interfaces/msg/Time", seconds, nanoseconds), frame_id)


def _new(type_name: str, *values: Any) -> Any:
    return jazzy().types[type_name](*values)
