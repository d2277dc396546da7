"""Colours mean the same in every frame; overlays and panels contain the right pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penumbra.bundle import ClassSpec
from penumbra.errors import PenumbraError
from penumbra.vehicle.colours import (
    INVALID_COLOUR,
    colour_depth,
    colour_labels,
    colour_uncertainty,
    overlay,
    panel,
)
from penumbra.vehicle.monitor import Region

CLASSES = [ClassSpec("road", (128, 64, 128)), ClassSpec("sky", (70, 130, 180))]


def brightness(rgb):
    """Luma by ITU-R BT.601."""
    return rgb.astype(float) @ [0.299, 0.587, 0.114]


def test_labels_have_the_colours_of_their_classes():
    labels = np.array([[0, 1], [1, 200]], np.uint8)
    found = colour_labels(labels, CLASSES)
    assert found.dtype == np.uint8
    assert found.tolist() == [
        [[128, 64, 128], [70, 130, 180]],
        [[70, 130, 180], list(INVALID_COLOUR)],
    ]


def test_brightness_increases_with_uncertainty():
    values = np.linspace(0, 0.3, 256, dtype=np.float32)[None]
    found = colour_uncertainty(values, 0.3)[0]
    light = brightness(found)
    assert (np.diff(light) > -1).all()  # rounding to a byte
    assert light[0] < 3
    assert light[-1] > 200
    assert found[-1, 0] > 200 > found[-1, 2]  # yellow, not cyan: red is the first channel


def test_a_colour_does_not_depend_on_the_rest_of_the_frame():
    frame = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    changed = frame.copy()
    changed[5:, 5:] *= 10
    before, after = (colour_uncertainty(values, 0.5) for values in (frame, changed))
    np.testing.assert_array_equal(before[:5], after[:5])


@pytest.mark.parametrize("paint", [lambda v: colour_uncertainty(v, 0.5), colour_depth])
def test_values_outside_the_scale_are_clipped(paint):
    with np.errstate(all="raise"):
        found = paint(np.array([[-1, 0, 1e9, math.inf, math.nan]], np.float32))[0]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    assert tuple(found[4]) == INVALID_COLOUR
    assert brightness(found[0]) != pytest.approx(brightness(found[2]), abs=50)


def test_depth_is_coloured_by_its_logarithm():
    """On a scale from 1 m to 80 m, 2 m to 4 m is as long as 20 m to 40 m."""
    depth = np.geomspace(1, 80, 64, dtype=np.float32)[None]
    light = brightness(colour_depth(depth, 80.0))[0]
    assert (np.diff(light) < 1).all()  # near is bright
    middle = brightness(colour_depth(np.full((1, 1), math.sqrt(80), np.float32), 80.0))[0, 0]
    assert middle == pytest.approx(np.median(light), abs=5)


@pytest.mark.parametrize("top", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_scale_is_rejected(top):
    with pytest.raises(PenumbraError, match="must be positive"):
        colour_uncertainty(np.zeros((2, 2), np.float32), top)
    with pytest.raises(PenumbraError, match="nearest < farthest"):
        colour_depth(np.zeros((2, 2), np.float32), top)


def test_overlay_does_not_change_certain_pixels():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    values = np.zeros((40, 60), np.float32)
    values[10:20, 10:30] = 1.0
    values[30, 40] = math.nan
    shown = overlay(image, values, 0.5)
    certain = np.ones((40, 60), bool)
    certain[10:20, 10:30] = certain[30, 40] = False
    np.testing.assert_array_equal(shown[certain], image[certain])
    expected = 0.2 * image[10:20, 10:30] + 0.8 * colour_uncertainty(values, 0.5)[10:20, 10:30]
    np.testing.assert_allclose(shown[10:20, 10:30], expected, atol=0.51)  # rounding to a byte
    np.testing.assert_allclose(
        shown[30, 40], 0.2 * image[30, 40] + 0.8 * np.array(INVALID_COLOUR), atol=0.51
    )


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_overlay_draws_regions_at_their_position(scale):
    """Also on an image larger than the map."""
    image = np.zeros((40 * scale, 60 * scale, 3), np.uint8)
    region = Region(x=10, y=5, width=20, height=8, area=160, mean_uncertainty=1, max_uncertainty=1)
    shown = overlay(image, np.zeros((40, 60), np.float32), 0.5, [region])
    rows, columns = np.nonzero(shown.any(axis=2))
    assert (columns.min(), columns.max()) == (10 * scale, 30 * scale - 1)
    assert (rows.min(), rows.max()) == (5 * scale, 13 * scale - 1)
    assert not shown[8 * scale, 20 * scale].any()  # only its edge
    assert image.any() == False  # noqa: E712 (unmodified)


def test_panel():
    red = np.full((30, 40, 3), (255, 0, 0), np.uint8)
    small = np.full((15, 20, 3), (0, 255, 0), np.uint8)
    shown = panel([("one", red), ("two", small), ("a long title that is shrunk to fit", red)])
    assert shown.shape == (2 * (30 + 24), 80, 3)
    assert (shown[24:54, :40] == (255, 0, 0)).all()
    assert (shown[24:54, 40:] == (0, 255, 0)).all()
    assert (shown[78:, :40] == (255, 0, 0)).all()
    assert shown[:24, :40].max() > 150  # the title
    assert len(np.unique(shown[54:, 40:])) == 1  # an empty cell
    assert panel([("one", red)]).shape == (54, 40, 3)
    assert panel([("one", red)] * 3, columns=3).shape == (54, 120, 3)
    with pytest.raises(PenumbraError):
        panel([])
