"""What the fuzz targets of the bag formats share: small bags as seeds, and the reading of one."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from penumbra.bags import open_bag
from penumbra.errors import PenumbraError

MOST_LINES = 40
"""Warnings about one bag: one line for each topic whose clock runs back, and a few more."""
START = 10**18
ELEPHANT = "zoo/msg/Elephant"


@cache
def folder() -> Path:
    """One folder for all inputs; the file in it is written over."""
    keep = tempfile.TemporaryDirectory(prefix="penumbra-fuzz-")
    folder.keep = keep  # type: ignore[attr-defined]  # removed when the process ends
    return Path(keep.name)


def read_bag(path: Path) -> None:
    """Read a bag as every caller does; every exception but PenumbraError is a defect.

    So are a warning or an error of several lines, and warnings without end.
    """
    told: list[str] = []
    try:
        with open_bag(path, told.append) as bag:
            decoded: set[str] = set()
            for recorded in bag.raw():
                if recorded.topic not in decoded:
                    decoded.add(recorded.topic)
                    with contextlib.suppress(PenumbraError):
                        bag.decode(recorded)
            with contextlib.suppress(PenumbraError):
                bag.image_topic()
    except PenumbraError as error:
        told.append(str(error))
    assert all(line.isprintable() for line in told), told
    assert len(told) <= MOST_LINES, told


def read_as(suffix: str, data: bytes) -> None:
    """Read `data` as a file of that suffix."""
    file = folder() / f"bag{suffix}"
    file.write_bytes(data)
    read_bag(file)


def store(version: Stores):
    """The types of a ROS version, and one that nobody else has."""
    found = get_typestore(version)
    text = "std_msgs/Header header\nfloat32[2] mood\nstring<=8[<=3] names\nuint8 TRUNKS=1"
    found.register(get_types_from_msg(text, ELEPHANT))
    return found


def rosbag2(storage: StoragePlugin, mode: CompressionMode | None = None) -> Path:
    """A folder with two topics and four messages."""
    types = store(Stores.ROS2_JAZZY)
    path = Path(tempfile.mkdtemp(dir=folder())) / "bag"
    writer = Ros2Writer(path, version=9, storage_plugin=storage)
    if mode is not None:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer as bag:
        _write(bag, types, types.serialize_cdr)
    return path


def ros1(compression: str | None = None) -> bytes:
    """The same as a ROS 1 bag."""
    types = store(Stores.ROS1_NOETIC)
    path = Path(tempfile.mkdtemp(dir=folder())) / "bag.bag"
    writer = Ros1Writer(path)
    if compression is not None:
        writer.set_compression(writer.CompressionFormat[compression])
    with writer as bag:
        _write(bag, types, types.serialize_ros1, 1)
    return path.read_bytes()


def without_checksums(mcap: bytes) -> bytes:
    """The same MCAP with checksums of 0, which are not compared: a change reaches the reader."""
    data, place = bytearray(mcap), 8
    while place + 9 <= len(data) - 8:
        kind, size = struct.unpack_from("<BQ", data, place)
        if kind == 6:
            struct.pack_into("<I", data, place + 9 + 24, 0)
        elif kind == 15:
            struct.pack_into("<I", data, place + 9, 0)
        place += 9 + size
    return bytes(data)


def _write(bag, types, serialise, *counter: int) -> None:
    time = types.types["builtin_interfaces/msg/Time"](10**9, 0)
    header = types.types["std_msgs/msg/Header"](*counter, time, "camera")
    elephant = types.types[ELEPHANT](header, np.array([0.5, 1], np.float32), ["a", "b"])
    text = types.types["std_msgs/msg/String"]("hello")
    for number, (topic, kind, message) in enumerate(
        [("/zoo", ELEPHANT, elephant), ("/words", "std_msgs/msg/String", text)]
    ):
        connection = bag.add_connection(topic, kind, typestore=types)
        for place in range(2):
            bag.write(connection, START + number + 10 * place, serialise(message, kind))
