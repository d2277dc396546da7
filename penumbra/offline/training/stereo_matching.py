"""Disparity by semi-global matching (Hirschmüller 2008): no learning, two images needed.

It is the baseline that a network from one image has to beat by a margin (the median depth of each
pixel), and a hint to training where the photometric loss is stuck (Watson et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid import read_image
from penumbra.offline.datasets.kitti import KittiRecording
from penumbra.offline.training.stereo_losses import UNKNOWN
from penumbra.vehicle.geometry import PinholeCamera

_LARGEST = 0.15  # of the width: 2 m in KITTI
_BLOCK = 5


def match(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The left image's disparity as a fraction of the width, `UNKNOWN` where there is no match."""
    width = left.shape[1]
    count = -(-int(width * _LARGEST) // 16) * 16
    matcher = cv2.StereoSGBM_create(
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
    # OpenCV gives up on the first `count` columns; those whose match is inside the image need not
    # be lost, the others (found in the margin) are taken out below.
    padded = [
        cv2.copyMakeBorder(_grey(image), 0, 0, count, 0, cv2.BORDER_REPLICATE)
        for image in (left, right)
    ]
    pixels = matcher.compute(*padded)[:, count:].astype(np.float32) / 16  # sixteenths of a pixel
    is_match = (pixels > 0) & (pixels <= np.arange(width, dtype=np.float32))
    return np.where(is_match, pixels / np.float32(width), np.float32(UNKNOWN))


def match_both(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`match` for the left and the right image: mirrored, the right eye is a left one."""
    mirrored = match(np.ascontiguousarray(right[:, ::-1]), np.ascontiguousarray(left[:, ::-1]))
    return match(left, right), np.ascontiguousarray(mirrored[:, ::-1])


def median_depth(
    pairs: Iterable[KittiRecording],
    camera: PinholeCamera,
    baseline_m: float,
    most: float,
    size: tuple[int, int] = (375, 1242),
) -> np.ndarray:
    """For each pixel of (height, width) `size` the median of all pairs' matched depths, in metres.

    `camera` and `baseline_m` are for pairs without a calibration of their own. A pixel that was
    never matched takes its row's median.
    """
    depths = []
    for pair in pairs:
        disparity = match(read_image(pair.left), read_image(pair.right))
        known = pair.calibration
        focal = (known.camera if known else camera).focal_per_width
        baseline = known.baseline_m if known and known.baseline_m else baseline_m
        with np.errstate(divide="ignore"):
            depth = np.minimum(focal * baseline / np.maximum(disparity, 0), most)
        depth = np.where(disparity > 0, depth, np.nan).astype(np.float32)
        depths.append(cv2.resize(depth, size[::-1], interpolation=cv2.INTER_NEAREST))
    if not depths:
        raise PenumbraError("the median of no pairs: give a folder that holds some")
    stack = np.stack(depths)
    seen = np.isfinite(stack).any(axis=0)
    median = np.full(size, np.nan, np.float32)
    median[seen] = np.nanmedian(stack[:, seen], axis=0)
    for row in range(size[0]):
        line = median[row]
        line[~seen[row]] = np.median(line[seen[row]]) if seen[row].any() else most
    return median


def _grey(image: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
