"""Fuzz target: the bytes of a metadata.yaml beside a whole .mcap."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fuzzing.bag_files import read_bag, rosbag2
from rosbags.rosbag2 import CompressionMode, StoragePlugin


@cache
def whole() -> Path:
    """A whole bag, whose metadata is written over."""
    return rosbag2(StoragePlugin.MCAP)


def run_one(data: bytes) -> None:
    """Read the bag with one input as its metadata; exceptions but PenumbraError are defects."""
    (whole() / "metadata.yaml").write_bytes(data)
    read_bag(whole())


def seeds() -> list[bytes]:
    """Metadata of both storages and of a bag compressed as a whole; and an attacker's devices."""
    made = [
        rosbag2(StoragePlugin.MCAP),
        rosbag2(StoragePlugin.SQLITE3),
        rosbag2(StoragePlugin.MCAP, CompressionMode.FILE),
    ]
    found = [(path / "metadata.yaml").read_bytes() for path in made]
    top = b"rosbag2_bagfile_information:\n  version: 5\n"
    found.append(top + b"  relative_file_paths: [../../../etc/passwd]\n")
    found.append(top + b"  relative_file_paths: &a [bag.mcap, *a]\n")
    found += [b"[" * 100, b"a: " + b"9" * 5000]
    return found
