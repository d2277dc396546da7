"""Any bag is read; what is wrong with it is reported in one line, never by a traceback."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from small_drives import TENTH, image_bytes, picture, read, ros1_bag, small_drive, write_images

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
from penumbra.bags.messages import IMAGE, START_NS, jazzy
from penumbra.errors import PenumbraError

LABELS = np.zeros((200, 200), np.uint8)


def test_topics_and_messages_of_a_bag(tmp_path):
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


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("none", None, "no bag"),
        ("film.mp4", b"", "is not a bag: give a rosbag2 folder, or a file .mcap, .db3, .bag"),
        (
            "a.mcap",
            b"no bag at all, but some text",
            "cannot be read, and no message can be recovered",
        ),
        ("a.bag", b"#ROSBAG V1.2\n", "version .* is not supported"),
        (
            "a.db3",
            b"SQLite format 3\0" + bytes(100),
            "cannot be read, and no message can be recovered",
        ),
    ],
)
def test_what_is_not_a_bag(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PenumbraError, match=message):
        open_bag(tmp_path / name)


def test_a_folder_that_is_not_a_bag(tmp_path):
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
