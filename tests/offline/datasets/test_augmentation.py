"""Random views: image and label stay aligned; corrupted views."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penumbra.offline.datasets.augmentation import jitter, random_view
from penumbra.offline.datasets.corruption import corrupted
from penumbra.offline.metrics.segmentation import IGNORE


def coloured(label: np.ndarray) -> np.ndarray:
    return np.stack([label * 20, 255 - label * 20, label * 7 + 60], axis=-1).astype(np.uint8)


@given(st.integers(0, 2**32 - 1))
def test_image_and_label_move_together(seed):
    random = np.random.default_rng(seed)
    label = np.kron(random.integers(0, 11, (6, 8)), np.ones((20, 20))).astype(np.uint8)
    # Without the colour jitter the colour still gives the label, away from edges of blocks.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penumbra.offline.datasets.augmentation.jitter", lambda image, random: image)
        image, marks = random_view(coloured(label), label, (64, 96), (0.5, 1.5), random)
    assert image.shape == (64, 96, 3) and marks.shape == (64, 96)
    window = np.ones((5, 5), np.uint8)  # two pixels of the view, at least one of the image
    inside = (cv2.erode(marks, window) == cv2.dilate(marks, window)) & (marks != IGNORE)
    inside[:2] = inside[-2:] = inside[:, :2] = inside[:, -2:] = False  # next to invisible pixels
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


def test_pixels_outside_the_image_are_ignored():
    label = np.zeros((20, 20), np.uint8)
    _, marks = random_view(coloured(label), label, (64, 64), (1.0, 1.0), np.random.default_rng(0))
    assert (marks == IGNORE).sum() == 64 * 64 - 20 * 20


def test_corrupted_views_have_the_same_size_and_are_reproducible():
    image = np.random.default_rng(0).integers(0, 256, (60, 81, 3), dtype=np.uint8)
    before = image.copy()
    found = [corrupted(image, np.random.default_rng(seed)) for seed in range(40)]
    for seed, view in enumerate(found):
        assert view.shape == image.shape and view.dtype == np.uint8
        assert not np.array_equal(view, image)
        np.testing.assert_array_equal(view, corrupted(image, np.random.default_rng(seed)))
    np.testing.assert_array_equal(image, before)
    # All corruptions occur among forty views: dark ones, and shuffled ones, which keep the values.
    assert min(view.mean() for view in found) < 0.5 * image.mean()
    assert any(abs(view.std() - image.std()) < 2 and abs(view.mean() - image.mean()) < 2
               for view in found)  # fmt: skip


def test_jitter_of_strength_zero_changes_nothing():
    image = np.random.default_rng(0).integers(0, 256, (10, 12, 3)).astype(np.uint8)
    np.testing.assert_array_equal(jitter(image, np.random.default_rng(1), strength=0.0), image)
    assert not np.array_equal(jitter(image, np.random.default_rng(1)), image)
