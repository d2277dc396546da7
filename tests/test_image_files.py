"""JPEG and PNG in messages: only complete images of a plausible size are decoded."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import CompressedImage, Image

from penumbra.image_files import MAX_PIXELS, ImageFileError, decode_image, image_size
from penumbra.vehicle.conversions import (
    REASONS,
    ConversionError,
    check_compressed_image,
    compressed_image_of,
    image_of,
)

RANDOM = np.random.default_rng(0)


def random_image(height=24, width=36):
    return RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(pixels, kind, *options):
    done, data = cv2.imencode(f".{kind}", pixels, options)
    assert done
    return data.tobytes()


def compressed(data, text="jpeg"):
    return CompressedImage(format=text, data=data)


def smooth(height=60, width=80):
    return cv2.resize(random_image(6, 8), (width, height), interpolation=cv2.INTER_CUBIC)


JPEG, PNG = encoded(smooth(20, 30), "jpg"), encoded(random_image(8, 9), "png")


def checked(message):
    """The reason of `check_compressed_image`; None if it accepts the message."""
    try:
        check_compressed_image(message)
    except ConversionError as error:
        return error.reason
    return None


@pytest.mark.parametrize("order", ["bgr", "rgb"])
@pytest.mark.parametrize("progressive", [0, 1])
def test_jpeg(order, progressive):
    pixels = smooth()
    data = encoded(pixels, "jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    for text in (
        "jpeg",
        "jpg",
        "rgb8",
        "",
        "bgr8; jpeg compressed bgr8",
        "rgb8; jpeg compressed bgr8",
    ):
        found = compressed_image_of(compressed(data, text), order)
        expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(found, expected if order == "bgr" else expected[..., ::-1])
        assert found.flags.c_contiguous
    assert np.abs(expected.astype(int) - pixels).mean() < 10  # the same image, up to compression


def test_png_of_every_kind():
    colour, grey = random_image(), random_image()[..., 0]
    deep = RANDOM.integers(0, 65536, (24, 36, 3), dtype=np.uint16)
    alpha = np.dstack([colour, grey])
    eight = ((deep.astype(int) + 128) // 257).astype(np.uint8)
    for stored, expected in [
        (colour, colour),
        (grey, np.dstack([grey] * 3)),
        (alpha, colour),
        (deep, eight),
        (deep[..., 0], np.dstack([eight[..., 0]] * 3)),
        (np.dstack([deep, deep[..., 0]]), eight),
    ]:
        data = encoded(stored, "png")
        found = compressed_image_of(compressed(data, "png"), "bgr")
        np.testing.assert_array_equal(found, expected)
        found = compressed_image_of(compressed(data, "png"), "rgb")
        np.testing.assert_array_equal(found, expected[..., ::-1])
    grey_jpeg = compressed_image_of(compressed(encoded(grey, "jpg")), "bgr")
    assert (grey_jpeg[..., :1] == grey_jpeg).all()


def test_colours_follow_the_format():
    """As compressed_image_transport writes it: a Bayer pattern is stored unmodified in a PNG."""
    mosaic = random_image()[..., 0].copy()
    raw = Image(height=24, width=36, encoding="bayer_grbg8", step=36, data=mosaic.tobytes())
    data = encoded(mosaic, "png")
    found = compressed_image_of(compressed(data, "bayer_grbg8; png compressed "), "bgr")
    np.testing.assert_array_equal(found, image_of(raw, "bgr"))
    deep = cv2.imencode(".png", np.zeros((4, 6), np.uint16))[1].tobytes()
    with pytest.raises(ConversionError, match="a mosaic of 'bayer_grbg16': debayer it"):
        compressed_image_of(compressed(deep, "bayer_grbg16; png compressed"), "bgr")
    # In a JPEG it is stored as grey.
    grey = compressed_image_of(compressed(data, "bayer_grbg8; jpeg compressed mono8"), "bgr")
    np.testing.assert_array_equal(grey, np.dstack([mosaic] * 3))
    # Red and blue were swapped before compression: swap them back.
    pixels = random_image()
    data = encoded(pixels[..., ::-1], "png")
    found = compressed_image_of(compressed(data, "rgb8; png compressed rgb8"), "bgr")
    np.testing.assert_array_equal(found, pixels)
    with pytest.raises(ConversionError, match="holds depth") as caught:
        compressed_image_of(compressed(data, "16UC1; compressedDepth png"), "bgr")
    assert caught.value.reason == "encoding"
    assert checked(compressed(data, "16UC1; compressedDepth png")) == "encoding"


def test_exif_rotation_is_ignored():
    """CameraInfo describes the pixels in sensor order."""
    pixels = smooth()
    data = encoded(pixels, "jpg")
    rotation = struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x0112, 3, 1, 6, 0, 0)
    exif = b"Exif\0\0" + rotation
    data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
    as_opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert as_opencv.shape == (80, 60, 3)  # OpenCV rotates it
    assert compressed_image_of(compressed(data), "bgr").shape == (60, 80, 3)


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_every_truncation_is_rejected(kind):
    data = encoded(smooth(), kind)
    for length in range(len(data)):
        with pytest.raises(ConversionError) as caught:
            compressed_image_of(compressed(data[:length], kind), "bgr")
        assert caught.value.reason == "decode"
        assert checked(compressed(data[:length], kind)) == "decode"
    compressed_image_of(compressed(data, kind), "bgr")
    assert checked(compressed(data, kind)) is None


def test_a_truncated_jpeg_with_a_complete_thumbnail_is_rejected():
    """The thumbnail has its own end marker, before that of the image."""
    thumbnail = encoded(smooth(6, 8), "jpg")
    data = encoded(smooth(), "jpg")
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    whole = data[:2] + segment + data[2:]
    assert compressed_image_of(compressed(whole), "bgr").shape == (60, 80, 3)
    for length in range(len(segment) + 2, len(whole)):
        with pytest.raises(ConversionError):
            compressed_image_of(compressed(whole[:length]), "bgr")


def test_trailing_bytes_are_ignored():
    """USB cameras pad their buffers with zeros."""
    data = encoded(smooth(), "jpg")
    found = compressed_image_of(compressed(data + bytes(50_000)), "bgr")
    np.testing.assert_array_equal(found, compressed_image_of(compressed(data), "bgr"))


def bomb_png(width, height):
    def chunk(name, content):
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100_000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def bomb_jpeg(width, height):
    data = encoded(smooth(), "jpg")
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", height, width) + data[place + 4 :]


@pytest.mark.parametrize("bomb", [bomb_png, bomb_jpeg])
@pytest.mark.parametrize("size", [(60000, 60000), (65535, 513), (0, 40), (40, 0)])
def test_an_oversized_or_empty_image_is_rejected_by_its_header(bomb, size, monkeypatch):
    """The decoder is never called."""

    def never(*arguments):
        raise AssertionError("the decoder was called")

    monkeypatch.setattr(cv2, "imdecode", never)
    with pytest.raises(ConversionError) as caught:
        compressed_image_of(compressed(bomb(*size), "png"), "bgr")
    assert caught.value.reason == "size"
    assert f"{size[0]}x{size[1]}" in str(caught.value)
    assert checked(compressed(bomb(*size), "png")) == "size"


def test_8k_is_allowed():
    assert MAX_PIXELS >= 7680 * 4320
    assert image_size(bomb_png(7680, 4320)) == (7680, 4320)


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_more_pixels_than_the_bytes_can_hold_are_rejected(kind):
    """The most compressible image is still accepted."""
    flat = np.zeros((2000, 3000), np.uint8)
    options = [cv2.IMWRITE_PNG_BILEVEL, 1, cv2.IMWRITE_PNG_COMPRESSION, 9] if kind == "png" else []
    found = compressed_image_of(compressed(encoded(flat, kind, *options), kind), "bgr")
    assert found.shape == (2000, 3000, 3)
    bomb = {"jpg": bomb_jpeg, "png": bomb_png}[kind](5700, 5700)
    with pytest.raises(ConversionError, match="too large for .* bytes") as caught:
        compressed_image_of(compressed(bomb, kind), "bgr")
    assert caught.value.reason == "decode"


def test_a_chunk_of_two_gigabytes_is_rejected(monkeypatch):
    """OpenCV 5 allocates the stated length of a chunk before it checks the data."""
    monkeypatch.setattr(cv2, "imdecode", None)
    place = PNG.index(b"IDAT") - 4
    bomb = PNG[:place] + struct.pack(">I", 2**31 - 1) + PNG[place + 4 :]
    with pytest.raises(ConversionError, match="truncated or damaged"):
        compressed_image_of(compressed(bomb, "png"), "bgr")


def test_an_animation_is_rejected():
    control = b"acTL" + struct.pack(">II", 2, 0)
    chunk = struct.pack(">I", 8) + control + struct.pack(">I", zlib.crc32(control))
    place = PNG.index(b"IDAT") - 4
    with pytest.raises(ConversionError):
        compressed_image_of(compressed(PNG[:place] + chunk + PNG[place:], "png"), "bgr")


def test_any_damage_to_a_png_is_detected():
    for place in range(len(PNG)):
        damaged = bytearray(PNG)
        damaged[place] ^= 1
        with pytest.raises(ConversionError):
            compressed_image_of(compressed(bytes(damaged), "png"), "bgr")
        assert checked(compressed(bytes(damaged), "png")) is not None


@pytest.mark.parametrize("kind", ["bmp", "tiff", "webp", "ppm"])
def test_other_formats_are_rejected(kind):
    """Cameras send JPEG and PNG; every further decoder enlarges the attack surface."""
    with pytest.raises(ConversionError, match="invalid header") as caught:
        compressed_image_of(compressed(encoded(smooth(), kind), kind), "bgr")
    assert caught.value.reason == "decode"


def test_damaged_files():
    """Random bytes changed: the result is an image of at most MAX_PIXELS, or a reason."""
    random, outcomes = np.random.default_rng(1), Counter()
    for number in range(3000):
        damaged = np.frombuffer((JPEG, PNG)[number % 2], np.uint8).copy()
        places = random.integers(0, damaged.size, random.integers(1, 12))
        damaged[places] = random.integers(0, 256, places.size)
        message = SimpleNamespace(format="", data=damaged)
        try:
            found = compressed_image_of(message, "rgb")
        except ConversionError as error:
            assert error.reason in REASONS
            assert checked(message) in (error.reason, None)  # None: only decoding reveals it
            outcomes[error.reason] += 1
        else:
            assert checked(message) is None
            assert found.ndim == 3
            assert found.shape[2] == 3
            assert found.dtype == np.uint8
            assert found.shape[0] * found.shape[1] <= MAX_PIXELS
            outcomes["image"] += 1
    assert min(outcomes["image"], outcomes["decode"]) > 300  # both outcomes occurred


@given(st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"]), st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes(start, rest):
    for data in (start + rest, start + rest + b"\xff\xd9"):
        try:
            decode_image(data, cv2.IMREAD_UNCHANGED)
        except ImageFileError as error:
            assert error.reason in ("size", "decode")
