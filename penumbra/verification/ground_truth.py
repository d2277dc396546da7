"""Node and Monte Carlo against ground truth, frame by frame: labels, or depth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from penumbra.bundle import DepthSpec
from penumbra.offline.metrics.agreement import Sparsification
from penumbra.offline.metrics.coverage import Coverage
from penumbra.offline.metrics.depth import LEAST, MOST, DepthErrors, judged_pixels
from penumbra.offline.metrics.segmentation import IGNORE, Confusion, Reliability
from penumbra.verification.facts import METHODS, OURS, SAMPLED, Figures
from penumbra.verification.frames import Answer
from penumbra.verification.reference import Reference


def required(values: np.ndarray | None, name: str) -> np.ndarray:
    """A map that every answer for this task has."""
    if values is None:
        raise ValueError(f"the answer has no {name}")
    return values


@dataclass(frozen=True)
class TruthFigures:
    """One frame against ground truth, by method."""

    figures: dict[str, Figures]
    sparsification: dict[str, Sparsification]


class TruthComparison(ABC):
    """Compares frames with ground truth and accumulates the errors of both methods."""

    @abstractmethod
    def add(self, answer: Answer, reference: Reference, truth: np.ndarray) -> TruthFigures | None:
        """Add one frame; None if its ground truth has no known pixel."""

    @abstractmethod
    def summary(self, method: str) -> Figures:
        """The figures of all frames."""

    def coverage(self) -> dict[str, list[Figures]]:
        """How often the truth is within ±zσ, by method; empty where that is not measured."""
        return {}


class SegmentationTruth(TruthComparison):
    """Labels against labels."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._confusion = {method: Confusion(classes) for method in METHODS}
        self._reliability = {method: Reliability() for method in METHODS}

    def add(self, answer: Answer, reference: Reference, truth: np.ndarray) -> TruthFigures | None:
        """Wrong labels, and whether uncertainty and confidence predict them."""
        known = truth != IGNORE
        if not known.any():
            return None
        found = TruthFigures({}, {})
        maps = {
            OURS: (answer.prediction, answer.std, answer.confidence),
            SAMPLED: (reference.prediction, reference.std, reference.confidence),
        }
        for method, (labels, std, confidence) in maps.items():
            self._reliability[method].add(truth, labels, required(confidence, "confidence"))
            frame = Confusion(self._classes)
            for confusion in (frame, self._confusion[method]):
                confusion.add(truth, labels)
            found.figures[method] = frame.summary()
            wrong = (labels[known] != truth[known]).astype(np.float32)
            found.sparsification[method] = Sparsification.of(wrong, std[known])
        return found

    def summary(self, method: str) -> Figures:
        """Accuracy, intersection over union, and the calibration of the probabilities."""
        error = self._reliability[method].expected_calibration_error()
        return self._confusion[method].summary() | {"expected_calibration_error": error}


class DepthTruth(TruthComparison):
    """Metres against measured metres."""

    def __init__(self, spec: DepthSpec) -> None:
        self._spec = spec
        self._errors = {method: DepthErrors() for method in METHODS}
        self._coverage = {method: Coverage() for method in METHODS}

    def add(self, answer: Answer, reference: Reference, truth: np.ndarray) -> TruthFigures | None:
        """Errors of depth, and whether the standard deviation of the disparity predicts them."""
        judged = judged_pixels(truth)
        if not judged.any():
            return None
        found = TruthFigures({}, {})
        disparities = {OURS: required(answer.disparity, "disparity"), SAMPLED: reference.prediction}
        stds = {OURS: answer.std, SAMPLED: reference.std}
        product = self._depth_times_disparity(answer)
        farthest = product / np.float32(self._spec.max_depth_m)
        depths = {
            OURS: answer.prediction,
            SAMPLED: product / np.maximum(reference.prediction, farthest),
        }
        measured = truth[judged]
        for method, depth in depths.items():
            disparity, std = disparities[method], stds[method]
            self._coverage[method].add(disparity[judged] - product / measured, std[judged])
            frame = DepthErrors()
            for errors in (frame, self._errors[method]):
                errors.add(truth, depth)
            found.figures[method] = frame.summary()
            # Relative, as the error is: σ / d of the disparity is σ / z of depth.
            uncertainty = std / np.maximum(disparity, np.finfo(np.float32).tiny)
            error = np.abs(np.clip(depth[judged], LEAST, MOST) - measured) / measured
            found.sparsification[method] = Sparsification.of(
                error.astype(np.float32), uncertainty[judged]
            )
        return found

    def summary(self, method: str) -> Figures:
        """The measures of Eigen et al. (2014)."""
        return self._errors[method].summary()

    def coverage(self) -> dict[str, list[Figures]]:
        """How often the measured disparity is within ±zσ; empty without measured pixels."""
        if not self._coverage[OURS].count:
            return {}
        return {method: coverage.summary() for method, coverage in self._coverage.items()}

    def _depth_times_disparity(self, answer: Answer) -> np.float32:
        """Focal length times baseline as the node applied them, from pixels below the maximum."""
        product = answer.prediction * required(answer.disparity, "disparity")
        unclipped = answer.prediction < 0.999 * self._spec.max_depth_m
        return np.float32(np.median(product[unclipped] if unclipped.any() else product))
