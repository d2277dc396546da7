"""Slopes, counts of multiply-adds, and a fresh process's own memory."""

import numpy as np
import pytest
import tiny_bundles
from torch import nn

from penumbra.lab.benchmarks.cold_start import fresh_process
from penumbra.lab.benchmarks.scaling import slope, with_multiply_adds, with_pixels
from penumbra.lab.benchmarks.untrained import multiply_adds, untrained


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power(power):
    amounts = np.array([10, 30, 100, 1000.0])
    # Up to the rounding of logarithms.
    assert slope(amounts, 3 * amounts**power) == pytest.approx(power, rel=1e-9)


def test_multiply_adds_of_a_network_that_can_be_counted_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 1, groups=1, stride=2))
    assert multiply_adds(model, (8, 6)) == 8 * 6 * 5 * (3 * 9) + 4 * 3 * 4 * 5


def test_twice_the_width_has_about_four_times_the_multiply_adds():
    few, many = (multiply_adds(untrained(width), (64, 64)) for width in (1 / 8, 1 / 4))
    assert 3.5 < many / few < 4  # the first and the last layer grow with the width itself


def test_a_line_goes_through_all_sizes_in_their_order(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street", None, None)
    sizes = [(64, 96), (32, 48), (128, 192)]
    line = with_pixels(bundle, "onnxruntime", 1, 3, sizes)
    assert [point.name for point in line.points] == ["48x32", "96x64", "192x128"]
    assert [point.amount for point in line.points] == [1536, 6144, 24576]
    assert all(0 < point.median_ms <= point.p99_ms for point in line.points)
    times = [point.median_ms for point in line.points]
    assert line.slope == slope([1536, 6144, 24576], times)


@pytest.mark.slow
def test_networks_of_several_widths_are_exported_and_timed():
    line = with_multiply_adds("onnxruntime", 1, 2, (1 / 32, 1 / 64), (32, 32))
    assert [point.name for point in line.points] == ["width 0.015625", "width 0.03125"]
    amounts = [point.amount for point in line.points]
    assert amounts == [multiply_adds(untrained(1 / n), (32, 32)) for n in (64, 32)]


def test_a_fresh_process_has_a_peak_of_its_own(tmp_path):
    """Not that of whoever started it, with which Linux's ru_maxrss begins."""
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    ballast = np.ones(800 << 20, np.uint8)
    found = fresh_process(bundle, (36, 48), "onnxruntime", 1, frames=2)
    assert ballast[-1] == 1
    assert 20 < found.megabytes < 800  # Python with numpy and the runtime has a tenth of that
    parts = found.import_seconds + found.load_seconds + found.infer_seconds
    assert found.seconds == pytest.approx(parts)
