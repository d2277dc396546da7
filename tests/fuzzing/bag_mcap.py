"""Fuzz target: the bytes of an .mcap, with and without an index, compressed and not."""

from __future__ import annotations

from fuzzing.bag_files import read_as, rosbag2, without_checksums
from rosbags.rosbag2 import CompressionMode, StoragePlugin


def run_one(data: bytes) -> None:
    """Read one input; every exception but PenumbraError is a defect."""
    read_as(".mcap", data)


def seeds() -> list[bytes]:
    """Bags with chunks as they are, compressed, or compressed by message; and one cut."""
    plain, packed, messages = (
        (rosbag2(StoragePlugin.MCAP, mode) / "bag.mcap").read_bytes()
        for mode in (None, CompressionMode.STORAGE, CompressionMode.MESSAGE)
    )
    whole = [without_checksums(data) for data in (plain, packed, messages)]
    return [*whole, plain, whole[0][: len(plain) * 2 // 3]]
