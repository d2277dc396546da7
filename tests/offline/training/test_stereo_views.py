"""Augmented stereo pairs and their known disparities."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from penumbra.bundle import DepthSpec
from penumbra.offline.datasets.kitti import find_pairs
from penumbra.offline.datasets.stereo_matching import UNKNOWN
from penumbra.offline.training.depth import StereoViews

SCALE = DepthSpec(baseline_m=0.54, focal_per_width=721.5 / 1242, max_depth_m=80.0)


def views(folder: Path, zoom=(1.0, 1.3), grey=0.0, **options) -> StereoViews:
    settings = {"seed": 5, "scale": SCALE, "with_known": True, "with_hints": False} | options
    return StereoViews(find_pairs(folder), (128, 384), zoom, grey, **settings)


@pytest.mark.parametrize("epoch", range(6))
def test_an_augmented_pair_is_still_a_stereo_pair(street_pairs, epoch):
    """Zoomed, mirrored or not: known disparity rebuilds either image from the other."""
    left, right, known = views(street_pairs)[epoch, 2]
    assert left.shape == right.shape == (128, 384, 3) and known.shape == (2, 128, 384)
    x, y = np.meshgrid(np.arange(384, dtype=np.float32), np.arange(128, dtype=np.float32))
    for image, other, disparity, sign in ((left, right, known[0], -1), (right, left, known[1], 1)):
        moved = x + sign * np.maximum(disparity, 0) * 384
        rebuilt = cv2.remap(other, moved, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        inside = (moved > 0) & (moved < 383) & (disparity > UNKNOWN / 2)
        assert inside.mean() > 0.7

        def error(guess, image=image, inside=inside):
            return np.median(np.abs(guess.astype(int) - image)[inside])

        # Half of the pixels to within sensor noise (2 grey levels in each image) and resampling.
        assert error(rebuilt) <= 6
        near = inside & (disparity * 384 > 6)  # where it makes a difference at all
        assert error(rebuilt, inside=near) < 0.7 * error(other, inside=near)


def test_items_are_reproducible(street_pairs):
    one, two = views(street_pairs), views(street_pairs)
    two[0, 0]  # what was asked before does not matter
    for first, second in zip(one[3, 1], two[3, 1], strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(one[3, 1][0], one[4, 1][0])


def test_grey_removes_the_colour_of_both_images(street_pairs):
    left, right, _ = views(street_pairs, grey=1.0)[0, 0]
    for image in (left, right):
        assert (image == image[..., :1]).all()


def test_without_depth_only_matched_disparities_are_known(street_pairs, tmp_path):
    for place in ("left", "right"):
        (tmp_path / place).symlink_to(street_pairs / place)
    *_, known = views(tmp_path)[0, 0]
    assert (known == UNKNOWN).all()
    *_, hinted = views(tmp_path, with_hints=True)[0, 0]
    *_, exact = views(street_pairs)[0, 0]
    both = (hinted > 0) & (exact > 0)
    assert both.mean() > 0.3 and np.median(np.abs(hinted - exact)[both]) * 384 < 0.5
