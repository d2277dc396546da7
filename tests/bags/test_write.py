"""What is written into a bag stands there, for every reader, or there is no bag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader
from small_drives import CAMERA, HEIGHT, INTRINSICS, WIDTH, image_bytes, picture, read, small_drive

from penumbra.bags import (
    ANOMALY_TOPIC,
    CAMERA_INFO_TOPIC,
    COMPRESSED_TOPIC,
    DEPTH_TOPIC,
    IMAGE_TOPIC,
    LABELS_TOPIC,
    BagWriter,
    Drive,
    array_of,
    open_bag,
    write_drive,
)
from penumbra.bags.messages import IMAGE, START_NS
from penumbra.errors import PenumbraError

TRUTH = {
    "labels": np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH) % 12,
    "depth": np.linspace(0.5, 80, HEIGHT * WIDTH, dtype=np.float32).reshape(HEIGHT, WIDTH),
    "anomaly": np.eye(HEIGHT, WIDTH, dtype=bool),
}


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_rosbags_reads_back_what_was_written(tmp_path, storage):
    write_drive(small_drive(3, **TRUTH), tmp_path / "bag", storage)
    with AnyReader([tmp_path / "bag"]) as reader:
        found = [(c.topic, t, reader.deserialize(d, c.msgtype)) for c, t, d in reader.messages()]
    assert len(found) == 3 * 5
    for place, (topic, stamp, message) in enumerate(found):
        frame = place // 5
        assert stamp == START_NS + frame * 10**8
        assert message.header.stamp.sec * 10**9 + message.header.stamp.nanosec == stamp
        assert message.header.frame_id == "camera"
        if topic == IMAGE_TOPIC:
            assert (message.encoding, message.step) == ("bgr8", 3 * WIDTH)
            assert np.array_equal(array_of(message), picture(frame))
        elif topic == LABELS_TOPIC:
            assert np.array_equal(array_of(message), TRUTH["labels"])
        elif topic == DEPTH_TOPIC:
            assert message.encoding == "32FC1"
            assert np.array_equal(array_of(message), TRUTH["depth"])
        elif topic == ANOMALY_TOPIC:
            assert np.array_equal(array_of(message), TRUTH["anomaly"] * 255)
        else:
            assert topic == CAMERA_INFO_TOPIC
            assert np.array_equal(message.k.reshape(3, 3), INTRINSICS)
            assert np.array_equal(message.p.reshape(3, 4)[:, :3], INTRINSICS)
            assert (message.width, message.height) == (CAMERA.width, CAMERA.height)


def test_the_mcap_library_reads_the_same_bytes_and_the_definitions(tmp_path):
    write_drive(small_drive(4, **TRUTH), tmp_path / "bag")
    with (tmp_path / "bag" / "bag.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "ros2"
        triples = [(c.topic, m.log_time, m.data) for _, c, m in reader.iter_messages()]
        schemas = {schema.name: schema for schema in reader.get_summary().schemas.values()}
    assert sorted(triples) == sorted(map(tuple, read(tmp_path / "bag")))
    assert schemas[IMAGE].encoding == "ros2msg"
    assert b"MSG: std_msgs/Header" in schemas[IMAGE].data


def test_the_camera_stands_before_its_image(tmp_path):
    write_drive(small_drive(2), tmp_path / "bag")
    assert [m.topic for m in read(tmp_path / "bag")] == [CAMERA_INFO_TOPIC, IMAGE_TOPIC] * 2


def test_compressed_pictures_are_jpegs(tmp_path):
    write_drive(small_drive(1), tmp_path / "bag", compressed=True)
    with open_bag(tmp_path / "bag") as bag:
        messages = {topic: message for topic, _, message in bag}
    message = messages[COMPRESSED_TOPIC]
    assert message.format == "bgr8; jpeg compressed bgr8"
    # Quality 95 without colour subsampling would be closer; with it, a few grey levels in the mean.
    assert np.abs(array_of(message).astype(int) - picture(0)).mean() < 8


def test_a_rate_lays_frames_apart_without_adding_up_errors(tmp_path):
    write_drive(small_drive(8).at_rate(30), tmp_path / "bag")
    stamps = [m.stamp_ns - START_NS for m in read(tmp_path / "bag") if m.topic == IMAGE_TOPIC]
    assert stamps == [round(i * 1e9 / 30) for i in range(8)]
    assert stamps[3] == 100_000_000


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    def frames():
        yield from small_drive(2).frames
        raise PenumbraError("the third picture is broken")

    with pytest.raises(PenumbraError, match="third picture"):
        write_drive(Drive(frames(), 3), tmp_path / "new" / "bag")
    assert list((tmp_path / "new").iterdir()) == []


def test_before_the_end_there_is_no_bag(tmp_path):
    with BagWriter(tmp_path / "bag") as bag:
        bag.write(IMAGE_TOPIC, IMAGE, START_NS, image_bytes(START_NS))
        assert not (tmp_path / "bag").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bag"]
    assert sorted(p.name for p in (tmp_path / "bag").iterdir()) == ["bag.mcap", "metadata.yaml"]


@pytest.mark.parametrize("what", ["folder", "file", "dangling link"])
def test_nothing_is_overwritten(tmp_path, what):
    out = tmp_path / "bag"
    if what == "folder":
        out.mkdir()
    elif what == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(PenumbraError, match="exists already"):
        write_drive(small_drive(1), out)
    assert [p.name for p in tmp_path.iterdir()] == ["bag"]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenumbraError, match="cannot write .*bag"):
        write_drive(small_drive(1), tmp_path / "file" / "bag")


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(PenumbraError, match="bag: No space left"),
        BagWriter(tmp_path / "bag") as bag,
    ):
        bag.add_topic(IMAGE_TOPIC, IMAGE)
        monkeypatch.setattr(bag._bag, "write", full)
        bag.write(IMAGE_TOPIC, IMAGE, START_NS, image_bytes(START_NS))
    assert list(tmp_path.iterdir()) == []


def test_one_topic_has_one_type(tmp_path):
    with (
        pytest.raises(PenumbraError, match="holds sensor_msgs/msg/Image"),
        BagWriter(Path(tmp_path / "bag")) as bag,
    ):
        bag.write("/a", IMAGE, 0, image_bytes(0))
        bag.write("/a", "std_msgs/msg/Header", 0, b"")
