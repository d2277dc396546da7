"""JPEG and PNG, decoded only if complete and of a plausible size.

OpenCV silently fills a truncated JPEG with grey, and a few bytes (the image size, the length of a
chunk) make it allocate gigabytes. Both are checked here before OpenCV is called.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np

from penumbra.errors import PenumbraError

# 8K UHD (7680 x 4320) fits; a header that states more than 33.5 million pixels is rejected.
MAX_PIXELS = 2**25

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_PNG_START = b"\x89PNG\r\n\x1a\n"
# Frame headers hold the size; three codes of C0 to CF are not frame headers (tables, reserved).
_JPEG_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN = 0xDA
_JPEG_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD8)])
_MAX_SEGMENTS = 1000  # before the scan; cameras write about ten
_MAX_CHUNKS = 2**16  # of a PNG; MAX_PIXELS at the highest depth take half as many, of 8 kB each
# Highest possible density. JPEG: at least one bit per block of 8 x 8 pixels. PNG: one bit per
# pixel, compressed 1032 to 1, the limit of deflate.
_PIXELS_PER_BYTE = {_JPEG_START: 8 * 64, _PNG_START[:2]: 8 * 1032}


class ImageFileError(PenumbraError):
    """The data cannot be decoded; `reason` is `size` or `decode`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_image_file(path: Path, flags: int) -> np.ndarray:
    """Read a JPEG or PNG file as `cv2.imread` does with `flags`; errors name the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PenumbraError(f"cannot read {path}: {error.strerror}") from error
    try:
        return decode_image(data, flags)
    except ImageFileError as error:
        raise ImageFileError(error.reason, f"{path} is {error}: replace it") from error


def decode_image(data: bytes, flags: int) -> np.ndarray:
    """Decode `data` as `cv2.imdecode` does; error messages continue the words "the image is"."""
    width, height = image_size(data)
    if width * height > MAX_PIXELS:
        raise ImageFileError(
            "size", f"declared as {width}x{height}, over {MAX_PIXELS / 1e6:.1f} million pixels"
        )
    if width * height > len(data) * _PIXELS_PER_BYTE[data[:2]]:
        raise ImageFileError(
            "decode", f"declared as {width}x{height}, too large for {len(data)} bytes"
        )
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        what = " ".join(str(error.err).split()) or "OpenCV gives no reason"
        raise ImageFileError("decode", f"not decodable ({what})") from error
    if decoded is None:
        raise ImageFileError("decode", "a damaged JPEG or PNG image")
    return decoded


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height from the header of a JPEG or PNG, if both its start and end are present."""
    if data.startswith(_PNG_START):
        size, complete = _png_size(data), _png_is_complete(data)
    elif data.startswith(_JPEG_START):
        size, scan = _jpeg_size(data)
        # Inside the scan every FF is followed by 00 or a restart marker: this is the real end.
        complete = data.rfind(_JPEG_END) > scan
    else:
        size, complete = None, False
    if size is None or not complete:
        what = "truncated or damaged" if size else "invalid header"
        raise ImageFileError("decode", f"not a complete JPEG or PNG image ({what})")
    if 0 in size:
        raise ImageFileError("size", f"declared as {size[0]}x{size[1]}, which is empty")
    return size


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Size from the first chunk, which must be IHDR: length, name, width, height."""
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return struct.unpack(">II", data[16:24])


def _png_is_complete(data: bytes) -> bool:
    """Whether every chunk up to IEND fits and has a valid checksum; animations are rejected."""
    position = len(_PNG_START)
    for _ in range(_MAX_CHUNKS):
        length, name = struct.unpack(">I4s", data[position : position + 8].ljust(8, b"\0"))
        end = position + 8 + length
        if end + 4 > len(data) or name == b"acTL":
            return False
        if zlib.crc32(memoryview(data)[position + 4 : end]) != int.from_bytes(
            data[end : end + 4], "big"
        ):
            return False
        if name == b"IEND":
            return True
        position = end + 4
    return False


def _jpeg_size(data: bytes) -> tuple[tuple[int, int] | None, int]:
    """Width and height, and the position of the scan, found segment by segment."""
    position, size = 2, None
    for _ in range(_MAX_SEGMENTS):
        position = data.find(b"\xff", position)
        while data[position + 1 : position + 2] == b"\xff":  # fill bytes
            position += 1
        header = data[position : position + 9]
        if position < 0 or len(header) < 9:
            break
        kind = header[1]
        if kind == _JPEG_SCAN:
            return size, position
        if kind in _JPEG_FRAME:
            height, width = struct.unpack(">HH", header[5:9])
            size = size or (width, height)
        bare = kind in _JPEG_WITHOUT_LENGTH
        position += 2 if bare else 2 + max(2, int.from_bytes(header[2:4], "big"))
    return None, len(data)
