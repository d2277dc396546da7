"""Slopes through known times, and multiply-adds counted by hand."""

from itertools import pairwise

import numpy as np
import pytest
import tiny_bundles
from torch import nn

from penumbra.lab.benchmarks import scaling
from penumbra.lab.benchmarks.scaling import slope, with_multiply_adds, with_pixels
from penumbra.lab.benchmarks.untrained import multiply_adds, untrained_segnet
from penumbra.lab.timing import Timing


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power(power):
    amounts = np.array([10, 30, 100, 1000.0])
    # Up to the rounding of logarithms.
    assert slope(amounts, 3 * amounts**power) == pytest.approx(power, rel=1e-9)


def test_multiply_adds_of_a_network_that_can_be_counted_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 1, groups=1, stride=2))
    assert multiply_adds(model, (8, 6)) == 8 * 6 * 5 * (3 * 9) + 4 * 3 * 4 * 5


def segnet_multiply_adds(width: float, height: int, wide: int, classes: int) -> int:
    """By the architecture: VGG-16's thirteen 3x3 convolutions, and their mirror to the classes.

    Each of the five stages has half the resolution of the one before.
    """
    stages = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]  # channels, convolutions
    above, total = [3, classes], 0  # channels into the encoder and out of the decoder of a stage
    for depth, (full, layers) in enumerate(stages):
        channels = [round(full * width)] * layers
        for path in ([above[0], *channels], [*channels, above[1]]):
            total += sum(a * b * 9 for a, b in pairwise(path)) * (height * wide >> 2 * depth)
        above = [channels[0]] * 2
    return total


@pytest.mark.parametrize("width, size", [(1.0, (32, 64)), (1 / 8, (64, 64)), (1 / 4, (64, 96))])
def test_multiply_adds_of_segnet_are_those_of_its_architecture(width, size):
    expected = segnet_multiply_adds(width, *size, classes=11)
    assert multiply_adds(untrained_segnet(width), size) == expected


@pytest.fixture
def known_times(monkeypatch):
    """Every candidate is called once; `known_times[name]` is what a call takes, in seconds."""
    seconds: dict[str, list[float]] = {}

    def interleaved(candidates, repetitions):
        assert repetitions == 3
        for call in candidates.values():
            call()
        return {name: Timing(np.array(seconds[name])) for name in candidates}

    monkeypatch.setattr(scaling, "interleaved", interleaved)
    return seconds


def test_a_line_through_all_sizes_in_their_order(known_times, tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street", None, None)
    known_times |= {"48x32": [1.0, 0.5, 9.0], "96x64": [8.0, 8.0, 8.0], "192x128": [16.0] * 3}
    line = with_pixels(bundle, "onnxruntime", 1, 3, [(64, 96), (32, 48), (128, 192)])
    assert [point.name for point in line.points] == ["48x32", "96x64", "192x128"]
    assert [point.amount for point in line.points] == [1536, 6144, 24576]
    assert [point.median_ms for point in line.points] == [1e3, 8e3, 16e3]
    # The 99th percentile of three values lies 2 % below the largest of the upper two.
    assert line.points[0].p99_ms == pytest.approx(9e3 - 0.02 * 8e3)
    # Amounts are a factor of 4 apart, so that least squares is half the rise from first to last:
    # log(16) / log(4) / 2 = 1, whatever the time between them.
    assert line.slope == pytest.approx(1.0, rel=1e-9)


@pytest.mark.slow
def test_networks_of_several_widths_are_exported_and_timed(known_times):
    known_times |= {"width 0.015625": [2.0] * 3, "width 0.03125": [6.0] * 3}
    line = with_multiply_adds("onnxruntime", 1, 3, (1 / 32, 1 / 64), (32, 32))
    assert [point.name for point in line.points] == ["width 0.015625", "width 0.03125"]
    few, many = (segnet_multiply_adds(width, 32, 32, classes=11) for width in (1 / 64, 1 / 32))
    assert [point.amount for point in line.points] == [few, many]
    assert line.slope == pytest.approx(np.log(3) / np.log(many / few), rel=1e-9)
