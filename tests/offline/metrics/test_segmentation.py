"""Metrics of segmentation against hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penumbra.offline.metrics.segmentation import IGNORE, Confusion, Reliability


def test_figures_of_a_case_counted_by_hand():
    truth = np.array([[0, 0, 0, 1], [1, 1, IGNORE, 0]], np.uint8)
    guess = np.array([[0, 0, 1, 1], [1, 0, 2, 0]])
    confusion = Confusion(3)
    confusion.add(truth, guess)
    # 7 known pixels, 5 right. Class 0: 3 of 4 found, union 5; class 1: 2 of 3, union 4.
    # Class 2 occurs nowhere: it is in neither mean.
    assert confusion.summary() == {
        "global_accuracy": pytest.approx(5 / 7),
        "class_average": pytest.approx((3 / 4 + 2 / 3) / 2),
        "mean_iou": pytest.approx((3 / 5 + 2 / 4) / 2),
    }


@given(st.integers(0, 2**32 - 1))
def test_adding_in_parts_is_adding_at_once(seed):
    random = np.random.default_rng(seed)
    truth = random.choice([0, 1, 2, IGNORE], (4, 5, 6)).astype(np.uint8)
    guess = random.integers(0, 3, (4, 5, 6))
    whole, parts = Confusion(3), Confusion(3)
    whole.add(truth, guess)
    for t, g in zip(truth, guess, strict=True):
        parts.add(t, g)
    np.testing.assert_array_equal(whole.counts, parts.counts)
    assert whole.counts.sum() == (truth != IGNORE).sum()


def test_expected_calibration_error_of_a_case_counted_by_hand():
    truth = np.array([0, 0, 1, 1, IGNORE], np.uint8)
    guess = np.array([0, 1, 1, 1, 0])
    sure = np.array([0.9, 0.95, 0.3, 1.0, 0.5])
    reliability = Reliability(bins=2)
    for part in (slice(0, 2), slice(2, 5)):
        reliability.add(truth[part], guess[part], sure[part])
    # Under ½: one pixel, 0.3 sure, right: 0.7 off. From ½ on: three, 2.85/3 sure, 2/3 right.
    expected = (1 * 0.7 + 3 * (2.85 / 3 - 2 / 3)) / 4
    assert reliability.expected_calibration_error() == pytest.approx(expected)
    assert np.isnan(Reliability().expected_calibration_error())
