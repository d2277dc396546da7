"""Disparity of stereo pairs by semi-global matching (Hirschmüller 2008).

Used as a baseline for depth networks (the median depth of each pixel), and as hints in training
where the photometric loss has local minima (Watson et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.kitti import KittiRecording
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.vehicle.geometry import PinholeCamera

UNKNOWN = -1.0
"""Value of unknown disparities; 0 is infinitely far."""

_LARGEST = 0.15  # of the width: 2 m in KITTI
_BLOCK = 5


def match(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Disparity of the left image as a fraction of the width, `UNKNOWN` without a match."""
    width = left.shape[1]
    count = -(-int(width * _LARGEST) // 16) * 16
    matcher = cv2.StereoSGBM.create(
        minDisparity=0,
        numDisparities=count,
        blockSize=_BLOCK,
        P1=8 * _BLOCK**2,
        P2=32 * _BLOCK**2,
        disp12MaxDiff=1,
        uniquenessRatio=10,
        speckleWindowSize=100,
        speckleRange=2,
    )
    # OpenCV does not match the first `count` columns. With a margin it does; matches inside the
    # margin are removed below.
    padded = [
        cv2.copyMakeBorder(_grey(image), 0, 0, count, 0, cv2.BORDER_REPLICATE)
        for image in (left, right)
    ]
    sixteenths = matcher.compute(*padded)[:, count:]
    pixels = sixteenths.astype(np.float32) / 16
    is_match = (pixels > 0) & (pixels <= np.arange(width, dtype=np.float32))
    return np.where(is_match, pixels / np.float32(width), np.float32(UNKNOWN))


def match_both(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`match` for both images; mirrored, the right image is a left one."""
    mirrored = match(np.ascontiguousarray(right[:, ::-1]), np.ascontiguousarray(left[:, ::-1]))
    return match(left, right), np.ascontiguousarray(mirrored[:, ::-1])


def median_depth(
    pairs: Iterable[KittiRecording],
    camera: PinholeCamera,
    baseline_m: float,
    most: float,
    size: tuple[int, int] = (375, 1242),
) -> np.ndarray:
    """Median over the pairs of each pixel's matched depth, in metres, at (height, width) `size`.

    `camera` and `baseline_m` are for pairs without a camera calibration. A pixel without any match
    takes the median of its row.
    """
    depths = []
    for pair in pairs:
        left, right = (read_rgb_image(file) for file in pair.stereo_pair())
        disparity = match(left, right)
        known = pair.calibration
        focal = (known.camera if known else camera).focal_per_width
        baseline = known.baseline_m if known and known.baseline_m else baseline_m
        with np.errstate(divide="ignore"):
            depth = np.minimum(focal * baseline / np.maximum(disparity, 0), most)
        depth = np.where(disparity > 0, depth, np.nan).astype(np.float32)
        depths.append(cv2.resize(depth, size[::-1], interpolation=cv2.INTER_NEAREST))
    if not depths:
        raise PenumbraError("no pairs to compute the median of: give a folder with stereo pairs")
    stack = np.stack(depths)
    matched = np.asarray(np.isfinite(stack).any(axis=0))
    median = np.full(size, np.nan, np.float32)
    median[matched] = np.nanmedian(stack[:, matched], axis=0)
    for row in range(size[0]):
        line = median[row]
        found = matched[row]
        line[~found] = np.median(line[found]) if found.any() else most
    return median


def _grey(image: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
