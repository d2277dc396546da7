"""Errors of depth maps by the metrics of Eigen et al. (2014), as usual on KITTI.

Evaluated on pixels with measured depth up to 80 m within the crop of Garg et al. (2016), which
excludes the sky, the bonnet and the sides. No median scaling. Figures are means over frames.
"""

from __future__ import annotations

import numpy as np

NAMES = ("abs_rel", "sq_rel", "rmse", "rmse_log", "a1", "a2", "a3")
LEAST, MOST = 1e-3, 80.0
# Shares of height (top, bottom) and of width (left, right).
_GARG = ((0.40810811, 0.99189189), (0.03594771, 0.96405229))


class DepthErrors:
    """The figures of all frames added so far."""

    def __init__(self) -> None:
        self.frames: list[np.ndarray] = []

    def add(self, truth: np.ndarray, prediction: np.ndarray) -> None:
        """Add a frame (metres); one without a measured pixel in the crop is ignored."""
        judged = judged_pixels(truth)
        if judged.any():
            self.frames.append(_figures(truth[judged], prediction[judged]))

    def summary(self) -> dict[str, float]:
        """The mean of each figure over the frames."""
        means = np.mean(self.frames, axis=0) if self.frames else np.full(len(NAMES), np.nan)
        return dict(zip(NAMES, map(float, means), strict=True))


def judged_pixels(truth: np.ndarray) -> np.ndarray:
    """Pixels whose `truth` is measured, within the range and the crop."""
    height, width = truth.shape
    (top, bottom), (left, right) = _GARG
    inside = np.zeros(truth.shape, bool)
    rows = slice(int(top * height), int(bottom * height))
    inside[rows, int(left * width) : int(right * width)] = True
    return inside & (truth > LEAST) & (truth < MOST)


def _figures(truth: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    truth = truth.astype(np.float64)
    prediction = np.clip(prediction.astype(np.float64), LEAST, MOST)
    error = prediction - truth
    ratio = np.maximum(truth / prediction, prediction / truth)
    return np.array(
        [
            np.mean(np.abs(error) / truth),
            np.mean(error**2 / truth),
            np.sqrt(np.mean(error**2)),
            np.sqrt(np.mean(np.log(prediction / truth) ** 2)),
            *(np.mean(ratio < 1.25**power) for power in (1, 2, 3)),
        ]
    )
