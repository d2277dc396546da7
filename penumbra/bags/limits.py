"""How much one bag may ask for: bytes, records, topics and definitions.

A bag is a file from outside. A few hundred bytes can unpack to gigabytes, an index of a megabyte
can name one message a hundred thousand times, and both would stop the machine that reads it. No
limit is near what a recorder writes; a file that exceeds one is refused in one line.
"""

from __future__ import annotations

import bz2
import sys
from pathlib import Path
from typing import Any

import lz4.frame

from penumbra.errors import PenumbraError
from penumbra.text import printable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # as rosbags does

MIB = 2**20
LARGEST_CHUNK = 256 * MIB
"""Bytes of one chunk or message, stored or unpacked. Recorders write chunks of about 1 MiB."""
EXPANSION = 50
"""Times its size that a file may be unpacked to or read, after the first LARGEST_CHUNK bytes."""
FREE_RECORDS = 10**6
"""Records that a file may hold, and one more for every two of its bytes."""
MOST_TOPICS = 4096
"""Topics, and schemas, in one file."""
_STEP = 4 * MIB  # unpacked at a time
_ZSTD = b"\x28\xb5\x2f\xfd"  # magic number; CDR begins with a zero


class LimitError(PenumbraError):
    """A bag asks for more than a limit allows."""


class Budget:
    """What may still be read from one file in one pass: bytes after unpacking, and records."""

    def __init__(self, file: Path, size: int) -> None:
        self.file = file
        self._bytes = LARGEST_CHUNK + EXPANSION * size
        self._records = FREE_RECORDS + size // 2

    def records(self, count: int) -> None:
        """Take `count` records from the budget."""
        self._records -= count
        if self._records < 0:
            raise LimitError(
                f"{self.file} holds far more records than its size allows: is it made to stall its"
                " reader? It is not read further"
            )

    def read(self, count: int) -> None:
        """Take `count` bytes of messages or chunks from the budget."""
        self._bytes -= count
        if self._bytes < 0:
            raise LimitError(
                f"{self.file} unpacks to more than {EXPANSION} times its size"
                f" + {LARGEST_CHUNK // MIB} MiB: it is not read further. If you trust it, store it"
                " uncompressed (ros2 bag convert, rosbag decompress)"
            )

    def allow(self, size: int, what: str) -> int:
        """Return `size` if a chunk or message may have it, declared or real."""
        if size > LARGEST_CHUNK:
            raise LimitError(
                f"{self.file} has a {what} of {printable(size, 24)} bytes; the limit is"
                f" {LARGEST_CHUNK // MIB} MiB: record with smaller chunks"
            )
        return size

    def unpack(self, kind: str, data: bytes, whole: bool) -> bytes:
        """The content of a chunk or message, compressed as `kind` (bz2, lz4, zstd, none).

        A truncated one raises EOFError where it must be `whole`; else it gives what it has.
        """
        if kind in ("", "none"):
            self.read(self.allow(len(data), "chunk"))
            return data
        self.allow(_declared(kind, data), "chunk")
        decompressor = _decompressor(kind)
        parts: list[bytes] = []
        size = 0
        try:
            part = decompressor.decompress(data, max_length=_STEP)
            while True:
                parts.append(part)
                size += len(part)
                self.allow(size, "chunk")
                self.read(len(part))
                if decompressor.eof or decompressor.needs_input:
                    break
                part = decompressor.decompress(b"", max_length=_STEP)
        except (OSError, RuntimeError, ValueError, EOFError, zstd.ZstdError) as error:
            raise EOFError(f"a {kind} chunk is damaged: {error}") from error
        if whole and not decompressor.eof:
            raise EOFError(f"a {kind} chunk is cut")
        return b"".join(parts)

    def unpack_message(self, data: bytes) -> bytes:
        """Decompress a message if it is compressed; only metadata.yaml says whether it should be.

        Its bytes as stored are already taken from the budget.
        """
        if bytes(data[:4]) != _ZSTD:
            return data
        return self.unpack("zstd", data, whole=True)


def unpack_file(file: Path, folder: Path) -> Path:
    """Decompress a storage file that rosbag2 has compressed as a whole, as far as possible."""
    budget = Budget(file, file.stat().st_size)
    target = folder / file.stem
    decompressor = zstd.ZstdDecompressor()
    with file.open("rb") as packed, target.open("wb") as plain:
        try:
            while not decompressor.eof:
                block = packed.read(MIB) if decompressor.needs_input else b""
                if decompressor.needs_input and not block:
                    break
                part = decompressor.decompress(block, max_length=_STEP)
                budget.read(len(part))
                plain.write(part)
        except zstd.ZstdError:  # damaged from here on
            pass
    return target


def _declared(kind: str, data: bytes) -> int:
    """The unpacked size that a frame states, 0 if it states none."""
    try:
        if kind == "zstd":
            return zstd.get_frame_info(data).decompressed_size or 0
        return int(lz4.frame.get_frame_info(data)["content_size"]) if kind == "lz4" else 0
    except (RuntimeError, ValueError, zstd.ZstdError):  # damaged: the decompressor says so
        return 0


def _decompressor(kind: str) -> Any:
    kinds = {
        "bz2": bz2.BZ2Decompressor,
        "lz4": lz4.frame.LZ4FrameDecompressor,
        "zstd": zstd.ZstdDecompressor,
    }
    if kind not in kinds:
        raise ValueError(f"compression {printable(kind, 40)} is unknown")
    return kinds[kind]()
