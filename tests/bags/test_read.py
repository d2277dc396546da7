"""Any bag is read, and one that is wrong or cut off is told in a line, never with a traceback."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from small_drives import TENTH, image_bytes, picture, read, small_drive, write_images

from penumbra.bags import (
    CAMERA_INFO_TOPIC,
    IMAGE_TOPIC,
    LABELS_TOPIC,
    BagWriter,
    array_of,
    convert_bag,
    open_bag,
    write_drive,
)
from penumbra.bags.messages import IMAGE, START_NS, header_stamp, image, jazzy, serialised
from penumbra.errors import PenumbraError

FRAMES = 40  # several chunks of MCAP, many pages of sqlite3
LABELS = np.zeros((200, 200), np.uint8)
PACKED = ["packed mcap", "mcap of packed messages", "sqlite3 of packed messages"]
KINDS = ["mcap", "sqlite3", "ros1", "packed ros1", *PACKED]


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


def packed_bag(path, storage: StoragePlugin, mode: CompressionMode) -> None:
    """As rosbag2 writes it with compression: of each chunk, each message, or the whole file."""
    writer = Ros2Writer(path, version=9, storage_plugin=storage)
    writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer as bag:
        topic = bag.add_connection(IMAGE_TOPIC, IMAGE, typestore=jazzy())
        for number in range(FRAMES):
            stamp = START_NS + number * TENTH
            noise = np.random.default_rng(number).integers(0, 256, (32, 48, 3), np.uint8)
            data = serialised(image(stamp, "camera", noise, "bgr8"), IMAGE)
            bag.write(topic, stamp, data)


def test_the_readme_of_a_bag(tmp_path):
    write_drive(small_drive(2, labels=LABELS), tmp_path / "bag")
    with open_bag(tmp_path / "bag") as bag:
        assert {t.name: (t.type, t.count) for t in bag.topics.values()} == {
            CAMERA_INFO_TOPIC: ("sensor_msgs/msg/CameraInfo", 2),
            IMAGE_TOPIC: (IMAGE, 2),
            LABELS_TOPIC: (IMAGE, 2),
        }
        assert bag.image_topic().name == IMAGE_TOPIC  # not the ground truth
        (image,) = [m for m in bag.raw([IMAGE_TOPIC]) if m.stamp_ns == START_NS + TENTH]
        assert bag.header_stamp(image) == START_NS + TENTH
        assert np.array_equal(array_of(bag.decode(image)), picture(1))
        with pytest.raises(PenumbraError, match="no topic /nowhere in .* it has /camera/"):
            list(bag.raw(["/nowhere"]))


def test_ros1_becomes_ros2(tmp_path):
    ros1_bag(tmp_path / "kitti.bag")
    with open_bag(tmp_path / "kitti.bag") as bag:
        assert bag.topics["/camera/info"].latched
        assert not bag.topics["/camera/image"].latched
        messages = list(bag.raw())
    images = [m.data for m in messages if m.topic == "/camera/image"]
    assert images == [image_bytes(START_NS + i * TENTH, i) for i in range(3)]
    (info, *_) = [m for m in messages if m.topic == "/camera/info"]
    assert jazzy().deserialize_cdr(info.data, "sensor_msgs/msg/CameraInfo").k.tolist() == list(
        range(9)
    )


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_convert_keeps_bytes_times_and_latching(tmp_path, storage):
    ros1_bag(tmp_path / "kitti.bag")
    assert convert_bag(tmp_path / "kitti.bag", tmp_path / "new", storage) == 6
    assert sorted(read(tmp_path / "new")) == sorted(read(tmp_path / "kitti.bag"))
    with open_bag(tmp_path / "new") as bag:
        assert bag.topics["/camera/info"].latched
    assert convert_bag(tmp_path / "new", tmp_path / "part", topics=["/camera/info"]) == 3
    with pytest.raises(PenumbraError, match="exists already"):
        convert_bag(tmp_path / "new", tmp_path / "part")


def test_a_type_of_nobody_here_keeps_its_embedded_definition(tmp_path):
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("std_msgs/Header header\nfloat32 mood", "zoo/msg/Elephant"))
    with BagWriter(tmp_path / "bag", store=store) as bag:
        image = jazzy().deserialize_cdr(image_bytes(START_NS), IMAGE)
        elephant = store.types["zoo/msg/Elephant"](image.header, 0.5)
        bag.write("/zoo", "zoo/msg/Elephant", START_NS, elephant)
    convert_bag(tmp_path / "bag", tmp_path / "copy", "sqlite3")
    with open_bag(tmp_path / "copy") as bag:
        ((_, stamp, message),) = list(bag)
    assert (stamp, message.mood) == (START_NS, 0.5)


# --- cut off -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A bag in each format, and the messages in it."""
    folder = tmp_path_factory.mktemp("whole")
    for storage in ("mcap", "sqlite3"):
        write_drive(small_drive(FRAMES, labels=LABELS), folder / storage, storage)
    ros1_bag(folder / "ros1.bag", FRAMES, chunk=20_000)
    ros1_bag(folder / "packed.bag", FRAMES, chunk=20_000, compression="LZ4")
    for name, storage, mode in [
        ("chunks", StoragePlugin.MCAP, CompressionMode.STORAGE),
        ("messages", StoragePlugin.MCAP, CompressionMode.MESSAGE),
        ("rows", StoragePlugin.SQLITE3, CompressionMode.MESSAGE),
    ]:
        packed_bag(folder / name, storage, mode)
    files = {
        "packed mcap": folder / "chunks" / "chunks.mcap",
        "mcap of packed messages": folder / "messages" / "messages.mcap",
        "sqlite3 of packed messages": folder / "rows" / "rows.db3",
        "mcap": folder / "mcap" / "mcap.mcap",
        "sqlite3": folder / "sqlite3" / "sqlite3.db3",
        "ros1": folder / "ros1.bag",
        "packed ros1": folder / "packed.bag",
    }
    return {kind: (file, read(file)) for kind, file in files.items()}


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_of_a_cut_off_bag_is_read(whole, tmp_path, kind, share):
    file, messages = whole[kind]
    data = file.read_bytes()
    rest = tmp_path / file.name
    rest.write_bytes(data[: int(len(data) * share)])
    warnings: list[str] = []
    found = read(rest, warnings)
    (warning,) = warnings
    # The second where the index is whole, and the file ends before what it points to.
    assert (
        f"{rest} is cut off or damaged" in warning
        and f"{len(found)} messages can still be read" in warning
    ) or f"{rest} is damaged after message {len(found)}, the rest is lost" in warning
    assert "\n" not in warning
    assert found == messages[: len(found)]
    # Lost are the cut message or chunk, and what is no message: the index (in ROS 1 and sqlite3
    # also at the end, so of 0.9 more can be lost than of the bytes).
    assert len(found) >= (share - 0.2) * len(messages)


def test_a_cut_off_folder_and_one_without_metadata(whole, tmp_path):
    file, messages = whole["mcap"]
    bag = tmp_path / "bag"
    bag.mkdir()
    data = file.read_bytes()
    (bag / file.name).write_bytes(data[: len(data) // 2])
    (bag / "metadata.yaml").write_bytes((file.parent / "metadata.yaml").read_bytes())
    warnings: list[str] = []
    assert 10 < len(read(bag, warnings)) < len(messages)
    (bag / file.name).write_bytes(data)
    (bag / "metadata.yaml").unlink()  # the recorder was killed before it wrote it
    assert read(bag, warnings) == messages
    assert len(warnings) == 2 and "cut off or damaged" in warnings[1]
    convert_bag(bag, tmp_path / "mended", warn=warnings.append)
    assert read(tmp_path / "mended") == messages


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_messages_are_messages(whole, kind):
    """Also where the file has lost the metadata that says so."""
    file, messages = whole[kind]
    assert read(file.parent) == messages
    for number, recorded in enumerate(messages):
        assert header_stamp(recorded.data) == START_NS + number * TENTH


@pytest.mark.parametrize("storage", StoragePlugin)
@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_cut_off_bag_that_was_compressed_as_a_whole(tmp_path, storage, with_metadata):
    packed_bag(tmp_path / "bag", storage, CompressionMode.FILE)
    messages = read(tmp_path / "bag")
    (file,) = (tmp_path / "bag").glob("*.zstd")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 2 // 3])
    if not with_metadata:
        (tmp_path / "bag" / "metadata.yaml").unlink()
    warnings: list[str] = []
    found = read(tmp_path / "bag", warnings)
    (warning,) = warnings
    assert "is cut off or damaged" in warning and "\n" not in warning
    assert found == messages[: len(found)]
    assert len(found) >= FRAMES // 2
    file.write_bytes(data[:20])
    with pytest.raises(PenumbraError, match="nothing can be saved of it"):
        open_bag(tmp_path / "bag")


def test_cut_after_so_few_bytes_that_nothing_is_left(whole, tmp_path):
    for file, _ in whole.values():
        for size in (0, 5, 60):
            rest = tmp_path / f"{size}{file.suffix}"
            rest.write_bytes(file.read_bytes()[:size])
            with pytest.raises(PenumbraError, match="nothing can be saved|holds no messages"):
                read(rest)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_anywhere_is_told_and_never_a_traceback(whole, tmp_path, kind):
    """A few bytes overwritten at random, more often near the ends, where the structure is."""
    file, messages = whole[kind]
    random = np.random.default_rng(0)
    outcomes = set()
    for attempt in range(25):
        data = bytearray(file.read_bytes())
        for _ in range(4):
            reach = random.choice([2000, len(data)])
            place = int(random.integers(reach)) - (reach if attempt % 2 else 0)
            data[place] = int(random.integers(256))
        bad = tmp_path / file.name
        bad.write_bytes(data)
        warnings: list[str] = []
        try:
            outcomes.add(len(read(bad, warnings)) == len(messages))
        except PenumbraError as error:
            warnings.append(str(error))
        assert all("\n" not in warning for warning in warnings)
    assert True in outcomes  # much damage is in the pixels, which is not for a reader to see


# --- wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("none", None, "no bag"),
        ("film.mp4", b"", "is no bag: give a rosbag2 folder, or a file .mcap, .db3, .bag"),
        ("a.mcap", b"no bag at all, but some text", "cannot be read, and nothing can be saved"),
        ("a.bag", b"#ROSBAG V1.2\n", "version .* is not supported"),
        ("a.db3", b"SQLite format 3\0" + bytes(100), "cannot be read, and nothing can be saved"),
    ],
)
def test_what_is_no_bag(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PenumbraError, match=message):
        open_bag(tmp_path / name)


def test_a_folder_that_is_no_bag(tmp_path):
    with pytest.raises(PenumbraError, match="neither metadata.yaml nor"):
        open_bag(tmp_path)
    (tmp_path / "metadata.yaml").write_text("{")
    with pytest.raises(PenumbraError, match="cannot be read"):
        open_bag(tmp_path)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_without_messages(tmp_path, storage):
    with BagWriter(tmp_path / "bag", storage) as bag:
        bag.add_topic(IMAGE_TOPIC, IMAGE)
    with pytest.raises(PenumbraError, match="holds no messages"):
        open_bag(tmp_path / "bag")


def test_a_wrong_type_on_the_image_topic(tmp_path):
    with BagWriter(tmp_path / "bag") as bag:
        text = jazzy().types["std_msgs/msg/String"]("no image")
        bag.write(IMAGE_TOPIC, "std_msgs/msg/String", START_NS, text)
        bag.write("/other", IMAGE, START_NS, image_bytes(START_NS))
    with open_bag(tmp_path / "bag") as bag:
        with pytest.raises(PenumbraError, match="holds std_msgs/msg/String: images are"):
            bag.image_topic(IMAGE_TOPIC)
        assert bag.image_topic().name == "/other"


@pytest.mark.parametrize("count, what", [(0, "no topic of type"), (2, "several image topics")])
def test_which_images_are_meant(tmp_path, count, what):
    with BagWriter(tmp_path / "bag") as bag:
        bag.write("/text", "std_msgs/msg/String", 0, jazzy().types["std_msgs/msg/String"](""))
        for number in range(count):
            bag.write(f"/image{number}", IMAGE, 0, image_bytes(0))
    with open_bag(tmp_path / "bag") as bag, pytest.raises(PenumbraError, match=what):
        bag.image_topic()


def test_stamps_that_run_backwards(tmp_path):
    times = [START_NS + i * TENTH for i in range(6)]
    headers = [times[0], times[1], times[5], times[3], times[4], times[2]]
    write_images(tmp_path / "bag", times, headers)
    warnings: list[str] = []
    messages = read(tmp_path / "bag", warnings)
    assert len(messages) == 6
    (warning,) = warnings
    assert f"time runs backwards by 0.200 s in {IMAGE_TOPIC}" in warning


def test_a_recording_whose_own_time_runs_backwards(tmp_path):
    """Without an index (rosbag2's `fastwrite`) messages come in the order of writing."""
    times = [START_NS + i * TENTH for i in (0, 1, 5, 2, 3)]
    write_images(tmp_path / "bag", times)
    file = tmp_path / "bag" / "bag.mcap"
    file.write_bytes(unchunked(file.read_bytes()))
    warnings: list[str] = []
    assert [m.stamp_ns for m in read(file, warnings)] == times
    assert sum("0.300 s in the recording" in warning for warning in warnings) == 1


def unchunked(data: bytes) -> bytes:
    """The same MCAP with its records laid bare, and neither index nor summary."""
    magic, out, place = data[:8], data[:8], 8
    while data[place] != 0x0F:
        kind, size = struct.unpack_from("<BQ", data, place)
        content = data[place + 9 : place + 9 + size]
        if kind == 0x06:
            out += content[28 + 4 + 8 :]  # times, sizes, an empty name of the compression
        elif kind == 0x01:
            out += data[place : place + 9 + size]
        place += 9 + size
    end = struct.pack("<BQI", 0x0F, 4, 0)
    footer = struct.pack("<BQQQI", 0x02, 20, 0, 0, 0)
    return out + end + footer + magic
