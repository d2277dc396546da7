"""Uncertain regions of a frame: connected areas of pixels over a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from penumbra.vehicle.monitor.scores import finite_or_infinite


@dataclass(frozen=True)
class Region:
    """One connected area of uncertain pixels and its bounding box, in pixels."""

    x: int
    y: int
    width: int
    height: int
    area: int
    mean_uncertainty: float
    max_uncertainty: float


def uncertain_regions(
    uncertainty: np.ndarray, threshold: float | None, min_area: int, max_regions: int
) -> tuple[tuple[Region, ...], float]:
    """Connected areas over `threshold`, largest first, and the share of pixels over it.

    Connectivity includes diagonals. Areas under `min_area` pixels are omitted. Without a threshold
    only non-finite pixels count.
    """
    values = finite_or_infinite(uncertainty)
    limit = np.finfo(np.float32).max if threshold is None else threshold
    height, width = values.shape
    # A zero before the first pixel and after every row: no run extends into the next row.
    flat = np.zeros(1 + height * (width + 1), np.uint8)
    over = flat[1:].reshape(height, width + 1)
    np.greater(values, limit, out=over[:, :width].view(bool))
    count = cv2.countNonZero(flat)
    if not count or not max_regions:
        return (), count / values.size
    # OpenCV's own statistics visit every pixel and take six times as long as its labelling (Grana's
    # block scan). Runs of pixels give the same statistics, and there are far fewer of them.
    _, labels = cv2.connectedComponentsWithAlgorithm(over, 8, cv2.CV_32S, cv2.CCL_GRANA)
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    begins, ends = edges[::2], edges[1::2]
    owners = labels.ravel()[begins]
    areas = np.bincount(owners, weights=ends - begins)  # exact: integers in float64
    large = np.flatnonzero(areas >= min_area)
    chosen = large[np.argsort(-areas[large], kind="stable")][:max_regions]
    found = []
    for label in chosen:
        runs = owners == label
        rows, columns = np.divmod(begins[runs], width + 1)
        x, y = int(columns.min()), int(rows[0])
        right, bottom = int((columns + (ends - begins)[runs]).max()), int(rows[-1]) + 1
        box = slice(y, bottom), slice(x, right)
        inside = (labels[box] == label).view(np.uint8)
        mean = cv2.mean(values[box], inside)[0]
        highest = cv2.minMaxLoc(values[box], inside)[1]
        found.append(Region(x, y, right - x, bottom - y, int(areas[label]), mean, highest))
    return tuple(found), count / values.size
