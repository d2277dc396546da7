"""JPEG and PNG, decoded only when they are whole and of a sane size.

OpenCV fills a cut-off JPEG with grey and says nothing, and a few bytes (the size of the picture,
the length of a chunk) make it allocate gigabytes. All that is looked at here before OpenCV sees it.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np

from penumbra.errors import PenumbraError

# 8K UHD (7680 x 4320) fits; a header that claims more than 33.5 million pixels is not believed.
MAX_PIXELS = 2**25

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_PNG_START = b"\x89PNG\r\n\x1a\n"
# Frame headers hold the size; of C0 to CF three are something else (tables, a reserved one).
_JPEG_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN = 0xDA
_JPEG_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD8)])
_MAX_SEGMENTS = 1000  # in front of the picture; cameras write about ten
_MAX_CHUNKS = 2**16  # of a PNG; MAX_PIXELS of the deepest kind are half as many, of 8 kB each
# As dense as pictures can be. JPEG: every block of 8 x 8 pixels takes a bit at the least. PNG: one
# bit per pixel, compressed 1032 to 1, the most that deflate can do.
_PIXELS_PER_BYTE = {_JPEG_START: 8 * 64, _PNG_START[:2]: 8 * 1032}


class ImageFileError(PenumbraError):
    """No picture can be made of it; `reason` is `size` or `decode`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_image_file(path: Path, flags: int) -> np.ndarray:
    """A JPEG or PNG file as `cv2.imread` reads it with `flags`, or an error that names it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PenumbraError(f"cannot read {path}: {error.strerror}") from error
    try:
        return decode_image(data, flags)
    except ImageFileError as error:
        raise ImageFileError(error.reason, f"{path} is {error}: replace it") from error


def decode_image(data: bytes, flags: int) -> np.ndarray:
    """The picture in `data` as `cv2.imdecode` gives it; an error reads as "(it is) not …"."""
    width, height = image_size(data)
    if width * height > MAX_PIXELS:
        raise ImageFileError(
            "size", f"said to be {width}x{height}, more than {MAX_PIXELS / 1e6:.1f} million pixels"
        )
    if width * height > len(data) * _PIXELS_PER_BYTE[data[:2]]:
        raise ImageFileError(
            "decode", f"said to be {width}x{height}, for which {len(data)} bytes are too few"
        )
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        what = " ".join(str(error.err).split()) or "OpenCV gives no reason"
        raise ImageFileError("decode", f"not to be decoded ({what})") from error
    if decoded is None:
        raise ImageFileError("decode", "not a whole JPEG or PNG image, but a damaged one")
    return decoded


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height from the header of a JPEG or PNG that has its beginning and its end."""
    if data.startswith(_PNG_START):
        size, whole = _png_size(data), _png_is_whole(data)
    elif data.startswith(_JPEG_START):
        size, scan = _jpeg_size(data)
        # Inside the picture every FF is followed by 00 or a restart mark: this is its true end.
        whole = data.rfind(_JPEG_END) > scan
    else:
        size, whole = None, False
    if size is None or not whole:
        what = "it is cut off or damaged" if size else "it does not begin like one"
        raise ImageFileError("decode", f"not a whole JPEG or PNG image: {what}")
    if 0 in size:
        raise ImageFileError("size", f"said to be {size[0]}x{size[1]}, which is no picture")
    return size


def _png_size(data: bytes) -> tuple[int, int] | None:
    """From the first chunk, which must be IHDR: length, name, width, height."""
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return struct.unpack(">II", data[16:24])


def _png_is_whole(data: bytes) -> bool:
    """Chunk by chunk to the last: each fits, is undamaged, and is nothing that moves (APNG)."""
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
    """Width and height, and where the picture itself begins; segment by segment."""
    position, size = 2, None
    for _ in range(_MAX_SEGMENTS):
        position = data.find(b"\xff", position)
        while data[position + 1 : position + 2] == b"\xff":  # filling
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
