"""Truncated and damaged bags: what is left is read, and what is lost is reported in one line."""

from __future__ import annotations

import contextlib
import sqlite3

import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from small_drives import TENTH, read, ros1_bag, small_drive

from penumbra.bags import IMAGE_TOPIC, convert_bag, open_bag, write_drive
from penumbra.bags.messages import IMAGE, START_NS, header_stamp, image, jazzy, serialised
from penumbra.errors import PenumbraError

FRAMES = 40  # several chunks of MCAP, many pages of sqlite3
SECTOR = 4096  # bytes
LABELS = np.zeros((200, 200), np.uint8)
PACKED = ["packed mcap", "mcap of packed messages", "sqlite3 of packed messages"]
KINDS = ["mcap", "sqlite3", "ros1", "packed ros1", *PACKED]


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
def test_a_truncated_bag_is_read_up_to_the_cut(whole, tmp_path, kind, share):
    file, messages = whole[kind]
    data = file.read_bytes()
    rest = tmp_path / file.name
    rest.write_bytes(data[: int(len(data) * share)])
    warnings: list[str] = []
    found = read(rest, warnings)
    (warning,) = warnings
    # The second where the index is whole, and the file ends before what it points to.
    assert (
        f"{rest} is truncated or damaged" in warning
        and f"{len(found)} messages recovered" in warning
    ) or f"{rest} is damaged after message {len(found)}; the rest is lost" in warning
    assert "\n" not in warning
    assert found == messages[: len(found)]
    # Lost are the cut message or chunk, and what is no message: the index (in ROS 1 and sqlite3
    # also at the end, so of 0.9 more can be lost than of the bytes).
    assert len(found) >= (share - 0.2) * len(messages)


def test_a_truncated_folder_and_one_without_metadata(whole, tmp_path):
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
    assert len(warnings) == 2 and "truncated or damaged" in warnings[1]
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
def test_a_truncated_bag_that_was_compressed_as_a_whole(tmp_path, storage, with_metadata):
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
    assert "is truncated or damaged" in warning and "\n" not in warning
    assert found == messages[: len(found)]
    assert len(found) >= FRAMES // 2
    file.write_bytes(data[:20])
    with pytest.raises(PenumbraError, match="no message can be recovered"):
        open_bag(tmp_path / "bag")


def test_a_bag_cut_before_its_first_message(whole, tmp_path):
    for file, _ in whole.values():
        for size in (0, 5, 60):
            rest = tmp_path / f"{size}{file.suffix}"
            rest.write_bytes(file.read_bytes()[:size])
            with pytest.raises(
                PenumbraError, match="no message can be recovered|holds no messages"
            ):
                read(rest)


def damaged(data: bytes, random: np.random.Generator, sector: bool) -> bytes:
    """A lost sector of the disk, or a few wrong bytes; half of them near an end of the file."""
    changed = bytearray(data)
    for _ in range(1 if sector else 4):
        reach = int(random.choice([2000, len(data)]))
        place = int(random.integers(reach)) + int(random.choice([0, len(data) - reach]))
        size = min(SECTOR, len(data) - place) if sector else 1
        changed[place : place + size] = bytes(size) if sector else random.bytes(size)
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_lost_to_damage_are_reported_in_one_line(whole, tmp_path, kind):
    """A reader cannot see wrong pixels, but a message that is missing it must report."""
    file, messages = whole[kind]
    data, bad = file.read_bytes(), tmp_path / file.name
    random = np.random.default_rng(0)
    complete = []
    for attempt in range(24):
        bad.write_bytes(damaged(data, random, sector=attempt % 2 == 0))
        reported: list[str] = []
        try:
            found = read(bad, reported)
        except PenumbraError as error:
            found = []
            reported.append(str(error))
        complete.append(len(found) == len(messages))
        assert complete[-1] or reported
        assert all(str(bad) in line and "\n" not in line for line in reported)
    assert set(complete) == {True, False}


def test_an_mcap_message_without_its_channel_is_reported(whole, tmp_path):
    """A number of two bytes, before the count, the two times and the message itself."""
    file, messages = whole["mcap"]
    data = bytearray(file.read_bytes())
    place = data.index(messages[-1].data) - 22
    data[place : place + 2] = b"\xff\xff"
    (tmp_path / "bag.mcap").write_bytes(data)
    warnings: list[str] = []
    assert len(read(tmp_path / "bag.mcap", warnings)) == len(messages) - 1
    (warning,) = warnings
    assert f"only {len(messages) - 1} of {len(messages)} messages are found" in warning


def test_rows_missing_in_sqlite3_are_reported(tmp_path):
    write_drive(small_drive(5), tmp_path / "bag", "sqlite3")
    with contextlib.closing(sqlite3.connect(tmp_path / "bag" / "bag.db3")) as database, database:
        database.execute("DELETE FROM messages WHERE id IN (3, 4)")
    warnings: list[str] = []
    assert len(read(tmp_path / "bag", warnings)) == 8
    (warning,) = warnings
    assert "only 8 of 10 messages are found" in warning
