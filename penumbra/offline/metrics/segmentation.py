"""Metrics of segmentation: global accuracy, class average, mean IoU, calibration error."""

from __future__ import annotations

import numpy as np

IGNORE = 255
"""Label of pixels that are excluded from the loss and the metrics."""


class Confusion:
    """Counts of (true class, predicted class) over all pixels added so far."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = np.zeros((classes, classes), dtype=np.int64)

    def add(self, truth: np.ndarray, prediction: np.ndarray) -> None:
        """Add the pixels of an image or batch, except those labelled `IGNORE`."""
        known = truth != IGNORE
        pairs = truth[known].astype(np.int64) * self.classes + prediction[known]
        self.counts += np.bincount(pairs, minlength=self.classes**2).reshape(self.counts.shape)

    def summary(self) -> dict[str, float]:
        """Shares from 0 to 1; the means are over the classes that occur in the ground truth."""
        present = self.counts.sum(axis=1) > 0
        return {
            "global_accuracy": float(np.trace(self.counts) / max(1, self.counts.sum())),
            "class_average": float(self.recall()[present].mean()) if present.any() else 0.0,
            "mean_iou": float(self.iou()[present].mean()) if present.any() else 0.0,
        }

    def recall(self) -> np.ndarray:
        """Recall of each class."""
        return np.diag(self.counts) / np.maximum(1, self.counts.sum(axis=1))

    def iou(self) -> np.ndarray:
        """Intersection over union of each class."""
        found = np.diag(self.counts)
        union = self.counts.sum(axis=0) + self.counts.sum(axis=1) - found
        return found / np.maximum(1, union)


class Reliability:
    """Whether the confidence of a prediction is calibrated.

    Pixels are binned by the probability of their most probable class. The expected calibration
    error (Guo et al. 2017) is the mean distance between that probability and the share of right
    labels, weighted by the pixels of each bin: Σ_b n_b/n |p̄_b - right_b|.
    """

    def __init__(self, bins: int = 15) -> None:
        self.bins = bins
        self.counts = np.zeros(bins, dtype=np.int64)
        self.confidence = np.zeros(bins)
        self.right = np.zeros(bins)

    def add(self, truth: np.ndarray, prediction: np.ndarray, confidence: np.ndarray) -> None:
        """Add the pixels of an image or batch, except those labelled `IGNORE`."""
        known = truth != IGNORE
        sure = confidence[known].astype(np.float64)
        places = np.clip((sure * self.bins).astype(np.int64), 0, self.bins - 1)
        right = (truth == prediction)[known]
        self.counts += np.bincount(places, minlength=self.bins)
        self.confidence += np.bincount(places, sure, minlength=self.bins)
        self.right += np.bincount(places, right, minlength=self.bins)

    def expected_calibration_error(self) -> float:
        """From 0 (calibrated) to 1; NaN without any pixel."""
        total = self.counts.sum()
        return float(np.abs(self.confidence - self.right).sum() / total) if total else float("nan")
