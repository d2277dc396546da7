"""Messages to arrays and back: valid ones as cv_bridge, invalid ones rejected with a reason."""

from __future__ import annotations

import array
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import Image

from penumbra.vehicle import conversions
from penumbra.vehicle.conversions import (
    ENCODINGS,
    REASONS,
    ConversionError,
    check_image,
    fill_image,
    image_of,
)

RANDOM = np.random.default_rng(0)
BAYER = {  # colour of each pixel of a 2 x 2 block, as spelled in the name
    f"bayer_{name}8": np.array(["bgr".index(letter) for letter in name]).reshape(2, 2)
    for name in ("rggb", "bggr", "gbrg", "grbg")
}


def random_image(height=24, width=36):
    return RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)


def message(encoding, pixels, pad=0, big_endian=False, tail=0):
    """An Image of these pixels, with `pad` random bytes after each row and `tail` at the end."""
    height, width = pixels.shape[:2]
    if pixels.dtype == np.uint16:
        pixels = pixels.astype(">u2" if big_endian else "<u2")
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(height, -1)
    padding = RANDOM.integers(0, 256, (height, pad), dtype=np.uint8)
    data = np.hstack([rows, padding]).tobytes() + bytes(tail)
    return Image(
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=int(big_endian),
        step=rows.shape[1] + pad,
        data=data,
    )


def samples(encoding, height=24, width=36):
    """Random pixels of an encoding."""
    kind = ENCODINGS[encoding]
    shape = (height, width) if kind.channels == 1 else (height, width, kind.channels)
    return RANDOM.integers(0, np.iinfo(kind.dtype).max, shape, dtype=kind.dtype, endpoint=True)


def as_bgr(encoding, pixels):
    """The definition of the encoding in numpy; None for those that interpolate."""
    if encoding.startswith(("bayer", "yuv", "uyvy", "yuyv")):
        return None
    if encoding == "mono16":
        pixels = np.round(pixels / 257).astype(np.uint8)
    if pixels.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2)
    return pixels[..., :3] if encoding.startswith("bgr") else pixels[..., 2::-1]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("height, width", [(24, 36), (7, 10), (1, 2), (3, 640)])
def test_the_result_does_not_depend_on_step_tail_and_byte_order(encoding, height, width):
    pixels = samples(encoding, height, width)
    plain = image_of(message(encoding, pixels), "bgr")
    assert plain.shape == (height, width, 3)
    assert plain.dtype == np.uint8
    if (expected := as_bgr(encoding, pixels)) is not None:
        np.testing.assert_array_equal(plain, expected)
    for pad in (0, 1, 2, 3, 64):
        for big_endian in (False, True):
            for order in ("bgr", "rgb"):
                found = image_of(message(encoding, pixels, pad, big_endian, tail=pad), order)
                assert found.flags.c_contiguous
                np.testing.assert_array_equal(found, plain if order == "bgr" else plain[..., ::-1])


@pytest.mark.parametrize("encoding", ["bgr8", "rgb8", "bgra8", "rgba8", "mono8", "mono16", *BAYER])
def test_odd_sizes(encoding):
    for height, width in [(1, 1), (5, 3), (3, 1), (1, 7), (35, 47)]:
        pixels = samples(encoding, height, width)
        found = image_of(message(encoding, pixels, pad=1), "bgr")
        assert found.shape == (height, width, 3)
        if (expected := as_bgr(encoding, pixels)) is not None:
            np.testing.assert_array_equal(found, expected)


def test_mono16_of_every_value():
    """cv_bridge scales by 255 / 65535 and rounds to nearest; there are no ties."""
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = image_of(message("mono16", values), "rgb")
    np.testing.assert_array_equal(found[..., 0], (values.astype(int) + 128) // 257)


@pytest.mark.parametrize("encoding", BAYER)
def test_bayer_keeps_the_measured_values(encoding):
    """Whatever the interpolation: the measured colour of a pixel is unchanged."""
    mosaic = samples(encoding, 20, 30)
    found = image_of(message(encoding, mosaic), "bgr")
    colour = np.tile(BAYER[encoding], (10, 15))
    own = np.take_along_axis(found, colour[..., None], axis=2)[..., 0]
    inside = np.s_[1:-1, 1:-1]  # OpenCV copies neighbours at the border
    np.testing.assert_array_equal(own[inside], mosaic[inside])


@pytest.mark.parametrize("colour", [(200, 40, 90), (0, 255, 0), (12, 34, 250)])
@pytest.mark.parametrize("encoding", BAYER)
def test_bayer_of_one_colour(encoding, colour):
    mosaic = np.tile(np.take(colour, BAYER[encoding]).astype(np.uint8), (8, 8))
    found = image_of(message(encoding, mosaic), "bgr")
    assert (found == colour).all()


@pytest.mark.parametrize(
    "encoding, places",
    [
        ("yuv422", "uyvy"),
        ("uyvy", "uyvy"),
        ("yuv422_yuy2", "yuyv"),
        ("yuyv", "yuyv"),
    ],
)
def test_yuv422(encoding, places):
    """ITU-R BT.601 of video range, as cv_bridge's OpenCV codes have it."""
    values = {"y": RANDOM.integers(16, 236, (6, 8)), "u": RANDOM.integers(90, 160, (6, 4))}
    values["v"] = RANDOM.integers(90, 160, (6, 4))
    pixels = np.zeros((6, 16), np.uint8)
    for place, letter in enumerate(places):
        if letter == "y":
            pixels[:, place::4] = values["y"][:, (place > 1) :: 2]
        else:
            pixels[:, place::4] = values[letter]
    y = 1.164 * (values["y"] - 16.0)
    u, v = (np.repeat(values[letter] - 128.0, 2, axis=1) for letter in "uv")
    rgb = np.stack([y + 1.596 * v, y - 0.813 * v - 0.391 * u, y + 2.018 * u], axis=2)
    found = image_of(message(encoding, pixels.reshape(6, 8, 2), pad=3), "rgb")
    # One rounding, coefficients of three digits: 0.0005 x 239 + 0.0005 x 2 x 32 + 0.5 < 1.
    assert np.abs(found - np.clip(rgb, 0, 255)).max() < 1


def test_matching_bytes_are_not_copied():
    image = message("bgr8", random_image())
    found = image_of(image, "bgr")
    assert np.shares_memory(found, np.frombuffer(image.data, np.uint8))
    assert not np.shares_memory(image_of(image, "rgb"), np.frombuffer(image.data, np.uint8))


@pytest.mark.parametrize("kind", [bytes, list, tuple, np.array, lambda d: array.array("B", d)])
def test_data_of_any_kind(kind):
    pixels = random_image(3, 5)
    data = pixels.tobytes()
    fields = {"height": 3, "width": 5, "encoding": "rgb8", "is_bigendian": 0, "step": 15}
    if kind is np.array:
        data = np.frombuffer(data, np.uint8)
    found = image_of(SimpleNamespace(data=kind(data), **fields), "rgb")
    np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize(
    "changes, reason, words",
    [
        ({"encoding": "32FC1"}, "encoding", "publish one of bgr8, rgb8"),
        ({"encoding": "bgr8 "}, "encoding", "'bgr8 '"),
        ({"encoding": "x" * 10_000}, "encoding", "xxx..."),
        ({"width": 0}, "size", "0x24"),
        ({"height": 0}, "size", "36x0"),
        ({"width": 2**32 - 1, "step": 2**32 - 1}, "size", "4294967295x24"),
        ({"width": 2**31, "height": 2**31, "step": 0}, "size", "invalid image size"),
        ({"step": 107}, "step", "36 pixels bgr8 have 108 bytes, step is 107"),
        ({"step": 0}, "step", "step is 0"),
        ({"step": 2**32 - 1}, "data", "but only 2592 bytes"),
        ({"height": 25}, "data", "25 rows of 108 bytes, but only 2592"),
        ({"data": b""}, "data", "but only 0"),
        ({"encoding": "yuv422", "width": 35}, "size", "even width, not 35"),
    ],
)
def test_an_invalid_image_is_rejected_with_a_reason(changes, reason, words):
    bad = message("bgr8", random_image())
    for name, value in changes.items():
        setattr(bad, name, value)
    with pytest.raises(ConversionError) as caught:
        image_of(bad, "bgr")
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    with pytest.raises(ConversionError) as by_check:
        check_image(bad)
    assert (by_check.value.reason, str(by_check.value)) == (reason, str(caught.value))


def checked(image):
    """The reason of `check_image`; None if it accepts the message."""
    try:
        check_image(image)
    except ConversionError as error:
        return error.reason
    return None


def test_20_000_hostile_images():
    """The result is an image of the stated size or a reason, nothing else."""
    random, outcomes = np.random.default_rng(2), Counter()
    names = [*ENCODINGS, "32FC1", "", "bgr8\0", "BGR8"]
    huge = [0, 2**16, 2**31, 2**32 - 1]
    for _ in range(20_000):
        height, width = (int(random.choice([random.integers(1, 40), *huge], p=ODDS)) for _ in "hw")
        row = min(width * int(random.integers(1, 5)), 2**32 - 1)
        step = int(random.choice([row, row + random.integers(0, 9), random.integers(0, 99)]))
        length = int(random.choice([step * height, random.integers(0, 9000)])) % 10_000
        fields = SimpleNamespace(
            height=height,
            width=width,
            encoding=names[random.integers(len(names))],
            is_bigendian=int(random.integers(256)),
            step=step,
            data=random.bytes(length),
        )
        try:
            found = image_of(fields, "bgr")
        except ConversionError as error:
            assert checked(fields) == error.reason
            outcomes[error.reason] += 1
        else:
            assert checked(fields) is None
            assert found.shape == (height, width, 3)
            assert found.dtype == np.uint8
            outcomes["image"] += 1
    assert set(outcomes) == {"image", "encoding", "size", "step", "data"}
    assert min(outcomes.values()) > 500


ODDS = [0.96, 0.01, 0.01, 0.01, 0.01]


@given(
    st.fixed_dictionaries(
        {
            "height": st.integers(0, 2**32 - 1),
            "width": st.integers(0, 2**32 - 1),
            "encoding": st.one_of(st.sampled_from([*ENCODINGS]), st.text()),
            "is_bigendian": st.integers(0, 255),
            "step": st.integers(0, 2**32 - 1),
            "data": st.one_of(st.binary(), st.none(), st.lists(st.integers()), st.text()),
        }
    )
)
@settings(max_examples=300, deadline=None)
def test_arbitrary_fields(fields):
    """Including fields that ROS itself would reject."""
    try:
        found = image_of(SimpleNamespace(**fields), "rgb")
    except ConversionError as error:
        assert error.reason in REASONS
        assert checked(SimpleNamespace(**fields)) == error.reason
    else:
        assert checked(SimpleNamespace(**fields)) is None
        assert found.shape == (fields["height"], fields["width"], 3)


@pytest.mark.parametrize(
    "encoding, pixels",
    [
        ("mono8", random_image()[..., 0]),
        ("rgb8", random_image()),
        ("bgr8", random_image()[:, ::2]),  # not contiguous
        ("mono16", np.arange(12, dtype=np.uint16).reshape(3, 4)),
        ("32FC1", RANDOM.normal(size=(5, 7)).astype(np.float32)),
        ("32FC1", np.full((2, 2), np.nan, np.float32)),
    ],
)
def test_fill_image(encoding, pixels):
    image = Image()
    image.header.frame_id = "front"
    assert fill_image(image, pixels, encoding) is image
    assert image.header.frame_id == "front"
    assert (image.height, image.width, image.encoding) == (*pixels.shape[:2], encoding)
    assert isinstance(image.data, array.array)
    assert image.step * image.height == len(image.data)
    back = np.frombuffer(image.data, pixels.dtype.newbyteorder("=")).reshape(pixels.shape)
    np.testing.assert_array_equal(back, pixels)
    if encoding in ("rgb8", "bgr8"):
        np.testing.assert_array_equal(image_of(image, encoding[:3]), pixels)


@pytest.mark.parametrize(
    "encoding, shape, kind",
    [
        ("rgb8", (3, 4), np.uint8),
        ("rgb8", (3, 4, 4), np.uint8),
        ("mono8", (3, 4, 3), np.uint8),
        ("32FC1", (3, 4), np.float64),
        ("64FC9", (3, 4), np.float64),
    ],
)
def test_an_array_that_does_not_match_its_encoding_is_rejected(encoding, shape, kind):
    with pytest.raises(ConversionError, match="does not match encoding"):
        fill_image(Image(), np.zeros(shape, kind), encoding)


@pytest.mark.parametrize("order", ["bgr", "rgb"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_equal_to_cv_bridge(encoding, order):
    pytest.importorskip("cv_bridge", reason="cv_bridge is not installed")
    kind = ENCODINGS[encoding]
    if kind not in conversions._bridged():
        pytest.skip(f"this cv_bridge does not support {encoding}")
    for height, width in [(24, 36), (7, 10), (35, 46)]:
        pixels = samples(encoding, height, width)
        bridged = conversions._by_cv_bridge(pixels, kind, order)
        code = kind.code(order)
        own = pixels if code is None else conversions._colour(pixels, code)
        np.testing.assert_array_equal(own, bridged)


def test_without_cv_bridge_nothing_is_bridged(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv_bridge", None)
    conversions._bridged.cache_clear()
    try:
        assert conversions._bridged() == frozenset()
        assert image_of(message("rgb8", random_image()), "bgr").shape == (24, 36, 3)
    finally:
        conversions._bridged.cache_clear()
