"""Fuzz target: the bytes of a ROS 1 .bag, with and without an index, compressed and not."""

from __future__ import annotations

from fuzzing.bag_files import read_as, ros1


def run_one(data: bytes) -> None:
    """Read one input; every exception but PenumbraError is a defect."""
    read_as(".bag", data)


def seeds() -> list[bytes]:
    """Bags without and with compression, and one cut."""
    plain = ros1()
    return [plain, ros1("BZ2"), ros1("LZ4"), plain[: len(plain) // 2]]
