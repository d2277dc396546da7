"""A target with a planted defect, by which tests see that a fuzzer finds one."""

from __future__ import annotations


def run_one(data: bytes) -> None:
    """Fail on inputs that begin with four certain bytes; one after the other can be found."""
    if data[:1] == b"\x93" and data[1:2] == b"q" and data[2:3] == b"\x07":  # noqa: SIM102
        if data[3:4] == b"X":
            raise KeyError("planted")


def seeds() -> list[bytes]:
    """Nothing of the four bytes."""
    return [b"abcdefgh"]
