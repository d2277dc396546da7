"""Malformed messages: each must be read as an image or refused with a reason."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator

import cv2
import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from penumbra.vehicle.conversions import ENCODINGS

NAMES = [*ENCODINGS, "", "BGR8", "32FC1", "16UC1", "8UC3", "rgb16", "jpeg", "x" * 1000, "nv12"]
SIZES = [0, 1, 2, 3, 35, 36, 47, 48, 49, 1000, 65535, 2**31 - 1, 2**32 - 1]
FORMATS = [
    "jpeg",
    "png",
    "bgr8; jpeg compressed bgr8",
    "32FC1; compressedDepth png",
    "compressedDepth",
    "",
    "?",
]
NAN = struct.pack("<f", math.nan)
FRAMES = ["", "camera", "/absolute", "no such frame", "\N{SNOWMAN}", "x" * 300]


def images(seed: int, count: int) -> Iterator[Image]:
    """Random size, step, encoding, endianness, data length, stamp and frame."""
    choose = random.Random(seed)
    for _ in range(count):
        fits = choose.random() < 0.3
        height, width = (choose.choice(SIZES) for _ in range(2))
        if fits:
            height, width = choose.randint(1, 60), choose.randint(1, 80)
        encoding = choose.choice(NAMES)
        pixel = ENCODINGS[encoding].pixel_bytes if encoding in ENCODINGS else 3
        step = min(width * pixel + choose.choice([0, 0, 1, 7]), 2**32 - 1)
        length = min(height * step, 10_000)
        if not fits:
            step = choose.choice([step, 0, 1, choose.randint(0, 300), 2**32 - 1])
            length = choose.choice([0, 1, length, max(0, length - 1), choose.randint(0, 10_000)])
        data = choose.randbytes(length)
        if encoding == "32FC1" and choose.random() < 0.5:
            data = NAN * (length // len(NAN))  # a depth image without a single measurement
        message = Image(
            height=height,
            width=width,
            step=step,
            encoding=encoding,
            is_bigendian=choose.choice([0, 1, 7, 255]),
            data=data,
        )
        yield _with_header(message, choose)


def compressed(seed: int, count: int) -> Iterator[CompressedImage]:
    """Truncated, damaged or mislabelled JPEG and PNG, and noise."""
    choose = random.Random(seed)
    picture = np.random.default_rng(seed).integers(0, 256, (36, 48, 3), dtype=np.uint8)
    files = [cv2.imencode(kind, picture)[1].tobytes() for kind in (".jpg", ".png")]
    for _ in range(count):
        data = bytearray(choose.choice([*files, b"", b"\xff\xd8", choose.randbytes(500)]))
        how = choose.choice(["whole", "truncated", "damaged"])
        if how == "truncated":
            data = data[: choose.randint(0, len(data))]
        elif how == "damaged":
            for _ in range(5):
                if data:
                    data[choose.randrange(len(data))] = choose.randrange(256)
        yield _with_header(CompressedImage(format=choose.choice(FORMATS), data=bytes(data)), choose)


def camera_infos(seed: int, count: int) -> Iterator[CameraInfo]:
    """Focal lengths that are zero, negative, huge or non-finite; sizes of zero."""
    choose = random.Random(seed)
    odd = [0.0, -1.0, 40.0, 1e308, float("nan"), float("inf")]
    for _ in range(count):
        info = CameraInfo(width=choose.choice([0, 1, 48, 2**32 - 1]), height=choose.choice([0, 36]))
        info.k = [choose.choice(odd) for _ in range(9)]
        info.p = [choose.choice(odd) for _ in range(12)]
        info.d = [choose.choice(odd) for _ in range(choose.choice([0, 5]))]
        info.roi.width = choose.choice([0, 0, 2**32 - 1])
        yield _with_header(info, choose)


def payloads(seed: int, count: int, whole: bytes) -> Iterator[bytes]:
    """Bytes that are hardly a message: `whole` is a serialised one, which they resemble.

    None is empty: after an empty one Fast DDS delivers nothing more of the same reliable publisher.
    """
    choose = random.Random(seed)
    for _ in range(count):
        data = bytearray(whole)
        how = choose.choice(["random", "truncated", "damaged", "length", "header"])
        if how == "random":
            data = bytearray(choose.randbytes(choose.choice([4, 5, 8, 20, 300])))
        elif how == "truncated":
            data = data[: choose.randrange(4, len(data))]
        elif how == "damaged":
            for _ in range(8):
                data[choose.randrange(len(data))] = choose.randrange(256)
        elif how == "length":  # of a string or sequence, wherever there is one
            place = 4 * choose.randrange(1, max(2, min(len(data), 80) // 4))
            data[place : place + 4] = choose.choice([2**31 - 1, 2**32 - 1, 10**6]).to_bytes(
                4, "little"
            )
        else:  # another encoding of CDR
            data[:4] = choose.randbytes(4)
        yield bytes(data)


def _with_header(message, choose: random.Random):
    """A stamp that is zero, in the past or in the future, and any frame."""
    message.header.stamp = Time(
        sec=choose.choice([0, 1, -1, 2**31 - 1]), nanosec=choose.choice([0, 1, 2**32 - 1])
    )
    message.header.frame_id = choose.choice(FRAMES)
    return message
