"""The small parts of training: figures, class weights, learning rate, augmentation, average."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penumbra.offline.metrics.segmentation import IGNORE, Confusion, Reliability
from penumbra.offline.training.augmentation import estranged, jitter, random_view
from penumbra.offline.training.ema import Average
from penumbra.offline.training.losses import frequency_weights
from penumbra.offline.training.schedule import rate_factor


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


def test_median_frequency_weights_of_a_case_counted_by_hand():
    first = np.array([[0, 0, 0, 1]], np.uint8)
    second = np.array([[0, 0, 2, IGNORE]], np.uint8)
    # Frequencies where present: 5/7, 1/4, 1/3; class 3 never occurs. Median: 1/3.
    expected = np.array([(1 / 3) / (5 / 7), (1 / 3) / (1 / 4), 1.0, 1.0])
    np.testing.assert_allclose(frequency_weights([first, second], 4, 1.0), expected, rtol=1e-6)
    np.testing.assert_allclose(
        frequency_weights([first, second], 4, 0.5), np.sqrt(expected), rtol=1e-6
    )
    np.testing.assert_array_equal(frequency_weights([first, second], 4, 0.0), np.ones(4))


def test_rate_rises_stays_and_falls():
    open_ended = [rate_factor(step, 4, None, 10) for step in range(100)]
    assert open_ended[:5] == [0.25, 0.5, 0.75, 1.0, 1.0] and set(open_ended[4:]) == {1.0}
    bounded = [rate_factor(step, 4, 100, 10) for step in range(101)]
    assert bounded[:91] == open_ended[:91]
    assert all(a > b for a, b in pairwise(bounded[90:]))
    assert bounded[100] == 0.0


def test_finishing_a_long_run_leaves_no_step_in_the_rate():
    """Setting the end anywhere keeps the rate continuous: the fall begins at the full rate."""
    assert rate_factor(5000, 200, 5000 + 1000, 1000) == 1.0


def coloured(label: np.ndarray) -> np.ndarray:
    return np.stack([label * 20, 255 - label * 20, label * 7 + 60], axis=-1).astype(np.uint8)


@given(st.integers(0, 2**32 - 1))
def test_image_and_label_move_together(seed):
    random = np.random.default_rng(seed)
    label = np.kron(random.integers(0, 11, (6, 8)), np.ones((20, 20))).astype(np.uint8)
    # Without the colour jitter the colour still tells the label, away from edges of blocks.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penumbra.offline.training.augmentation.jitter", lambda image, random: image)
        image, marks = random_view(coloured(label), label, (64, 96), (0.5, 1.5), random)
    assert image.shape == (64, 96, 3) and marks.shape == (64, 96)
    window = np.ones((5, 5), np.uint8)  # two pixels of the view, at least one of the image
    inside = (cv2.erode(marks, window) == cv2.dilate(marks, window)) & (marks != IGNORE)
    inside[:2] = inside[-2:] = inside[:, :2] = inside[:, -2:] = False  # next to what is not seen
    np.testing.assert_array_equal(image[inside], coloured(marks)[inside])


def test_at_scale_one_and_full_size_the_view_is_the_image_or_its_mirror():
    random = np.random.default_rng(0)
    label = random.integers(0, 11, (32, 48)).astype(np.uint8)
    seen = set()
    for seed in range(8):
        _, marks = random_view(
            coloured(label), label, (32, 48), (1.0, 1.0), np.random.default_rng(seed)
        )
        mirrored = np.array_equal(marks, label[:, ::-1])
        assert mirrored or np.array_equal(marks, label)
        seen.add(mirrored)
    assert seen == {True, False}


def test_what_lies_outside_the_image_is_ignored():
    label = np.zeros((20, 20), np.uint8)
    _, marks = random_view(coloured(label), label, (64, 64), (1.0, 1.0), np.random.default_rng(0))
    assert (marks == IGNORE).sum() == 64 * 64 - 20 * 20


def test_estranged_views_are_pictures_of_the_same_size_and_come_again():
    image = np.random.default_rng(0).integers(0, 256, (60, 81, 3), dtype=np.uint8)
    before = image.copy()
    found = [estranged(image, np.random.default_rng(seed)) for seed in range(40)]
    for seed, view in enumerate(found):
        assert view.shape == image.shape and view.dtype == np.uint8
        assert not np.array_equal(view, image)
        np.testing.assert_array_equal(view, estranged(image, np.random.default_rng(seed)))
    np.testing.assert_array_equal(image, before)
    # Every kind of change is among forty: dark ones, and such that keep the values in other places.
    assert min(view.mean() for view in found) < 0.5 * image.mean()
    assert any(abs(view.std() - image.std()) < 2 and abs(view.mean() - image.mean()) < 2
               for view in found)  # fmt: skip


def test_jitter_of_strength_zero_changes_nothing():
    image = np.random.default_rng(0).integers(0, 256, (10, 12, 3)).astype(np.uint8)
    np.testing.assert_array_equal(jitter(image, np.random.default_rng(1), strength=0.0), image)
    assert not np.array_equal(jitter(image, np.random.default_rng(1)), image)


def test_average_follows_the_formula():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = Average(model, decay=0.9)
    expected = {k: v.clone() for k, v in model.state_dict().items()}
    for step in (0, 1, 1000):
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape)) if tensor.is_floating_point() else tensor.add_(
                1
            )
        decay = min(0.9, (1 + step) / (10 + step))
        average.update(model, step)
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                expected[key] = decay * expected[key] + (1 - decay) * value
            else:
                expected[key] = value
    for key, value in average.model.state_dict().items():
        torch.testing.assert_close(value, expected[key])
