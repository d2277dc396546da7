"""Depth errors against hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest

from penumbra.offline.metrics.depth import DepthErrors, judged_pixels


def test_figures_by_hand():
    truth = np.zeros((100, 100), np.float32)
    prediction = np.full((100, 100), 10.0, np.float32)
    truth[60, 50:54] = [10, 8, 20, 5]  # errors 0, 2, -10, 5
    truth[10, 50] = 10  # above the crop
    truth[60, 99] = 10  # beside it
    truth[61, 50] = 85  # too far
    errors = DepthErrors()
    errors.add(truth, prediction)
    found = errors.summary()
    assert found["abs_rel"] == pytest.approx((0 + 2 / 8 + 10 / 20 + 5 / 5) / 4)
    assert found["sq_rel"] == pytest.approx((0 + 4 / 8 + 100 / 20 + 25 / 5) / 4)
    assert found["rmse"] == pytest.approx(((0 + 4 + 100 + 25) / 4) ** 0.5)
    logs = np.log([1, 10 / 8, 10 / 20, 10 / 5])
    assert found["rmse_log"] == pytest.approx((logs**2).mean() ** 0.5)
    # Ratios 1, 1.25 (not below 1.25), 2, 2.
    assert (found["a1"], found["a2"], found["a3"]) == (0.25, 0.5, 0.5)


def test_frames_are_averaged_and_empty_ones_do_not_count():
    errors = DepthErrors()
    one = np.full((100, 100), 10.0)
    errors.add(one, one * 1.1)
    errors.add(one, one * 1.3)
    errors.add(np.zeros((100, 100)), one)
    assert errors.summary()["abs_rel"] == pytest.approx(0.2)


def test_the_crop_is_that_of_garg():
    """For KITTI's 375 x 1242 the published code cuts rows 153 to 371 and columns 44 to 1197."""
    rows, columns = np.nonzero(judged_pixels(np.full((375, 1242), 10.0)))
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (153, 371, 44, 1197)
