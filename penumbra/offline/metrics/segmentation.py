"""How good a segmentation is: global accuracy, class average, mean intersection over union, ECE."""

from __future__ import annotations

import numpy as np

IGNORE = 255  # the label of a pixel that counts neither in the loss nor here
OUTLIER = 254  # the label of a pixel that shows something without a class (see outliers.py)


class Confusion:
    """Counts of (true class, predicted class) over all pixels seen so far."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = np.zeros((classes, classes), dtype=np.int64)

    def add(self, truth: np.ndarray, prediction: np.ndarray) -> None:
        """Count the pixels of one image or batch; those whose truth is `IGNORE` are left out."""
        known = truth != IGNORE
        pairs = truth[known].astype(np.int64) * self.classes + prediction[known]
        self.counts += np.bincount(pairs, minlength=self.classes**2).reshape(self.counts.shape)

    def summary(self) -> dict[str, float]:
        """Shares from 0 to 1. A class that occurs in no true label counts in neither mean."""
        present = self.counts.sum(axis=1) > 0
        return {
            "global_accuracy": float(np.trace(self.counts) / max(1, self.counts.sum())),
            "class_average": float(self.recall()[present].mean()) if present.any() else 0.0,
            "mean_iou": float(self.iou()[present].mean()) if present.any() else 0.0,
        }

    def recall(self) -> np.ndarray:
        """For each class, the share of its pixels that were found."""
        return np.diag(self.counts) / np.maximum(1, self.counts.sum(axis=1))

    def iou(self) -> np.ndarray:
        """For each class, intersection over union of its true and its predicted pixels."""
        found = np.diag(self.counts)
        union = self.counts.sum(axis=0) + self.counts.sum(axis=1) - found
        return found / np.maximum(1, union)


class Reliability:
    """How far the confidence of a prediction can be taken at its word.

    Pixels are sorted into `bins` by the probability of their most probable class. The expected
    calibration error (Guo et al. 2017) is the mean distance between that probability and the share
    of right labels, bin by bin, weighted by the pixels in them: Σ_b n_b/n |p̄_b - right_b|.
    """

    def __init__(self, bins: int = 15) -> None:
        self.bins = bins
        self.counts = np.zeros(bins, dtype=np.int64)
        self.confidence = np.zeros(bins)
        self.right = np.zeros(bins)

    def add(self, truth: np.ndarray, prediction: np.ndarray, confidence: np.ndarray) -> None:
        """The pixels of one image or batch; those whose truth is `IGNORE` are left out."""
        known = truth != IGNORE
        sure = confidence[known].astype(np.float64)
        places = np.clip((sure * self.bins).astype(np.int64), 0, self.bins - 1)
        right = (truth == prediction)[known]
        self.counts += np.bincount(places, minlength=self.bins)
        self.confidence += np.bincount(places, sure, minlength=self.bins)
        self.right += np.bincount(places, right, minlength=self.bins)

    def expected_calibration_error(self) -> float:
        """From 0 (at its word) to 1; NaN without any pixel."""
        total = self.counts.sum()
        return float(np.abs(self.confidence - self.right).sum() / total) if total else float("nan")
