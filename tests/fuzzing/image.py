"""Fuzz target: sensor_msgs Image and CompressedImage, from the check to the pixels.

The first byte says which; the fields of an Image follow, then the data. The rest is a JPEG or PNG.
"""

from __future__ import annotations

import struct
import zlib
from types import SimpleNamespace

import cv2
import numpy as np

from penumbra.image_files import MAX_PIXELS
from penumbra.vehicle.conversions import (
    ENCODINGS,
    REASONS,
    ConversionError,
    check_compressed_image,
    check_image,
    compressed_image_of,
    image_of,
)

NAMES = [*ENCODINGS, "", "32FC1", "BGR8", "x" * 300, "16UC1", "nv12"]
FORMATS = [
    "jpeg",
    "png",
    "bgr8; jpeg compressed bgr8",
    "rgb8; png compressed rgb8",
    "bayer_rggb8; jpeg compressed bayer_rggb8",
    "32FC1; compressedDepth png",
    "mono16; png compressed",
    "",
]
HEAD = struct.Struct("<BIIIB")  # encoding, height, width, step, big endian
BUDGET = 2**20  # pixels; the largest image in this target, so that an input takes milliseconds
PNG = b"\x89PNG\r\n\x1a\n"


def run_one(data: bytes) -> None:
    """Check and convert one input; every exception but ConversionError is a defect.

    So are an image that passes only one of check and conversion (but for damaged files, which only
    decoding finds), and one of another size than it declares.
    """
    if not data:
        return
    if data[0] & 1:
        message = SimpleNamespace(format=FORMATS[data[0] // 2 % len(FORMATS)], data=data[1:])
        _convert(message, check_compressed_image, compressed_image_of, may_be_damaged=True)
        repaired = with_checksums(data[1:])
        if repaired != data[1:]:  # otherwise no changed PNG would come to be decoded
            message.data = repaired
            _convert(message, check_compressed_image, compressed_image_of, may_be_damaged=True)
    elif len(data) > HEAD.size:
        encoding, height, width, step, endian = HEAD.unpack_from(data, 1)
        message = SimpleNamespace(
            encoding=NAMES[encoding % len(NAMES)],
            height=height,
            width=width,
            step=step,
            is_bigendian=endian,
            data=data[1 + HEAD.size :],
        )
        _convert(message, check_image, image_of)


def _convert(message, check, convert, may_be_damaged: bool = False) -> None:
    passed = _attempt(lambda: check(message, BUDGET))
    if passed is ConversionError:
        return
    for order in ("bgr", "rgb"):
        result = _attempt(lambda order=order: convert(message, order))
        if result is ConversionError:
            assert may_be_damaged, "an image passed its check and was not converted"
            return
        assert result.dtype == np.uint8 and result.ndim == 3 and result.shape[2] == 3
        assert result.flags.c_contiguous and result.size <= 3 * MAX_PIXELS
        if hasattr(message, "height"):
            assert result.shape[:2] == (message.height, message.width)


def _attempt(action):
    try:
        return action()
    except ConversionError as error:
        assert error.reason in REASONS and str(error).isprintable(), error
        return ConversionError


def with_checksums(data: bytes) -> bytes:
    """A PNG with the checksums of its chunks corrected, as far as it has chunks."""
    if not data.startswith(PNG):
        return data
    fixed, place = bytearray(data), len(PNG)
    while place + 12 <= len(fixed):
        (size,) = struct.unpack_from(">I", fixed, place)
        end = place + 8 + size
        if end + 4 > len(fixed):
            break
        struct.pack_into(">I", fixed, end, zlib.crc32(fixed[place + 4 : end]))
        place = end + 4
    return bytes(fixed)


def seeds() -> list[bytes]:
    """Each encoding, and JPEG and PNG of one, three and four channels, of 8 and 16 bits."""
    found = []
    for number, name in enumerate(NAMES):
        row = 6 * (ENCODINGS[name].pixel_bytes if name in ENCODINGS else 3)
        found.append(b"\0" + HEAD.pack(number, 4, 6, row + 2, 0) + bytes(range(4 * (row + 2))))
    random = np.random.default_rng(0)
    kinds: list[tuple[str, tuple[int, ...], type, list[int]]] = [
        (".jpg", (9, 13, 3), np.uint8, []),
        (".jpg", (9, 13), np.uint8, []),
        (".jpg", (9, 13, 3), np.uint8, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
        (".jpg", (24, 24, 3), np.uint8, [cv2.IMWRITE_JPEG_RST_INTERVAL, 1]),
        (".png", (9, 13, 3), np.uint8, []),
        (".png", (9, 13, 4), np.uint8, []),
        (".png", (9, 13), np.uint16, []),
        (".png", (9, 13, 3), np.uint16, []),
        (".png", (9, 13), np.uint8, [cv2.IMWRITE_PNG_BILEVEL, 1]),
    ]
    for number, (suffix, shape, kind, options) in enumerate(kinds):
        pixels = random.integers(0, np.iinfo(kind).max, shape, kind)
        file = cv2.imencode(suffix, pixels, options)[1].tobytes()
        found.append(bytes([2 * (number % len(FORMATS)) + 1]) + file)
    return found
