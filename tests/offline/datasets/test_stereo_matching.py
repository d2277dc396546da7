"""Semi-global matching against the renderer and hand-made pairs."""

from __future__ import annotations

import cv2
import numpy as np

from penumbra.bundle import DepthSpec
from penumbra.offline.datasets.kitti import KittiRecording, find_pairs, read_depth
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.datasets.stereo_matching import UNKNOWN, match, match_both, median_depth
from penumbra.offline.training.depth import disparity_of
from penumbra.vehicle.geometry import PinholeCamera

SCALE = DepthSpec(baseline_m=0.54, focal_per_width=721.5 / 1242, max_depth_m=80.0)


def test_matching_finds_the_rendered_disparity(street_pairs):
    pair = find_pairs(street_pairs)[0]
    found = match_both(read_rgb_image(pair.left), read_rgb_image(pair.right))
    for disparity, file in zip(found, (pair.depth, pair.depth_right), strict=True):
        truth = disparity_of(read_depth(file), pair, SCALE)
        is_match = disparity > 0
        assert is_match.mean() > 0.3
        pixels = np.abs(disparity - truth)[is_match] * truth.shape[1]
        assert np.median(pixels) < 0.5


def test_matches_outside_of_the_other_image_are_unknown():
    random = np.random.default_rng(0)
    wall = cv2.GaussianBlur(random.integers(0, 256, (60, 260), dtype=np.uint8), (3, 3), 0)
    left, right = wall[:, :200].copy(), wall[:, 8:208].copy()  # everything 8 pixels to the left
    disparity = match(left, right)
    assert (disparity[:, :7] == UNKNOWN).all()  # outside of the right image
    inner = disparity[5:-5, 12:-5]
    assert np.mean(np.abs(inner * 200 - 8) < 0.2) > 0.95


def test_median_depth_is_taken_pixel_by_pixel(tmp_path):
    """Three walls, at disparities 8, 10 and 16: the median is that at 10, everywhere."""
    random = np.random.default_rng(0)
    pairs = []
    for shift in (8, 16, 10):
        wall = cv2.GaussianBlur(random.integers(0, 256, (64, 260), dtype=np.uint8), (3, 3), 0)
        for name, start in (("left", 0), ("right", shift)):
            cv2.imwrite(str(tmp_path / f"{name}{shift}.png"), wall[:, start : start + 200])
        pairs.append(KittiRecording(tmp_path / f"left{shift}.png", tmp_path / f"right{shift}.png"))
    found = median_depth(pairs, PinholeCamera(100.0, 200), 0.5, most=80.0, size=(64, 200))
    expected = 100 * 0.5 / 10
    assert np.mean(np.abs(found[:, 20:-5] / expected - 1) < 0.03) > 0.9
    assert np.isfinite(found).all()
