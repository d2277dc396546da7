"""From the node's answer and the reference to figures: of each frame, and of the whole bag."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penumbra.bundle import Bundle
from penumbra.offline.metrics.agreement import (
    Sparsification,
    StdAgreement,
    agreement,
    relative_error,
)
from penumbra.offline.metrics.coverage import Coverage
from penumbra.offline.metrics.depth import LEAST, MOST, DepthErrors, judged_pixels
from penumbra.offline.metrics.segmentation import IGNORE, Confusion, Reliability
from penumbra.verification.frames import Answer
from penumbra.verification.reference import Reference

OURS, SAMPLED = "propagated", "monte_carlo"
# Decades of standard deviation in which the two maps are counted against each other.
DECADES = np.linspace(-6, 0, 121)
_BRIGHTEST = 0.995  # quantile of the reference that is the top of the colours


@dataclass(frozen=True)
class FrameFigures:
    """One frame; what does not apply, or has no ground truth, is None."""

    stamp_ns: int
    label_agreement: float | None
    label_agreement_noise: float | None
    disparity_relative_error: float | None
    likeness: StdAgreement
    truth: dict[str, dict[str, float]] | None  # by OURS and SAMPLED
    calibration: dict[str, Sparsification] | None
    weights: dict[str, float]  # mean std and variance of the reference: how much the frame weighs
    brightest: float
    infer_ms: float
    total_ms: float

    def as_dict(self) -> dict[str, Any]:
        """For machines and tables."""
        facts = {
            "stamp_s": self.stamp_ns / 1e9,
            "label_agreement": self.label_agreement,
            "label_agreement_noise": self.label_agreement_noise,
            "disparity_relative_error": self.disparity_relative_error,
            **asdict(self.likeness),
            "infer_ms": self.infer_ms,
            "total_ms": self.total_ms,
        }
        for method, figures in (self.truth or {}).items():
            facts |= {f"{method}_{name}": value for name, value in figures.items()}
        for method, calibration in (self.calibration or {}).items():
            facts |= {f"{method}_ause": calibration.ause, f"{method}_aurg": calibration.aurg}
        return {name: value for name, value in facts.items() if value is not None}


class Comparison:
    """Takes frame by frame; `figures` and the rest are of all frames so far."""

    def __init__(self, bundle: Bundle) -> None:
        self._segments = bundle.task == "segmentation"
        self._depth = bundle.depth
        self._classes = len(bundle.classes)
        self.frames: list[FrameFigures] = []
        self.density = np.zeros((len(DECADES) - 1, len(DECADES) - 1), np.int64)
        self._truth: dict[str, Confusion | DepthErrors] = {
            method: self._new_truth() for method in (OURS, SAMPLED)
        }
        self._reliability = {method: Reliability() for method in (OURS, SAMPLED)}
        self._coverage = {method: Coverage() for method in (OURS, SAMPLED)}

    def add(self, answer: Answer, reference: Reference) -> FrameFigures:
        known = answer.truth is not None and self._judged(answer).any()
        if known:
            self._take_at_its_word(answer, reference)
        figures = FrameFigures(
            answer.stamp_ns,
            agreement(answer.prediction, reference.prediction) if self._segments else None,
            (1 - agreement(*reference.half_predictions)) / 2 if self._segments else None,
            None if self._segments else relative_error(answer.disparity, reference.prediction),
            StdAgreement.of(answer.std, reference.std, reference.half_stds),
            self._against_truth(answer, reference) if known else None,
            self._calibration(answer, reference) if known else None,
            {
                "std": float(np.mean(reference.std, dtype=np.float64)),
                "variance": float(np.mean(np.square(reference.std, dtype=np.float64))),
            },
            float(np.quantile(reference.std, _BRIGHTEST)),
            answer.infer_ms,
            answer.total_ms,
        )
        self.frames.append(figures)
        low, high = 10.0 ** DECADES[0], 10.0 ** DECADES[-1]
        sampled, ours = (
            np.log10(np.clip(std, low, high)).ravel() for std in (reference.std, answer.std)
        )
        self.density += np.histogram2d(sampled, ours, [DECADES, DECADES])[0].astype(np.int64)
        return figures

    def figures(self) -> dict[str, float]:
        """Against Monte Carlo: shares and correlations as the mean over the frames, relative errors
        and ratios over all pixels together, so that a frame that is sure of all weighs little."""
        facts = [frame.as_dict() for frame in self.frames]
        names = ["label_agreement", "label_agreement_noise", "disparity_relative_error",
                 *asdict(self.frames[0].likeness)]  # fmt: skip
        figures = {}
        for name in names:
            if name in facts[0]:
                kind = name.partition("_")[0]
                weights = [frame.weights.get(kind, 1.0) for frame in self.frames]
                figures[name] = float(np.average([f[name] for f in facts], weights=weights))
        return figures

    def truth(self) -> dict[str, dict[str, float]]:
        """Against ground truth, by method; empty where the bag has none."""
        found = {}
        for method, calibration in self.calibration().items():
            found[method] = self._truth[method].summary()
            if self._segments:
                error = self._reliability[method].expected_calibration_error()
                found[method]["expected_calibration_error"] = error
            found[method] |= {"ause": calibration.ause, "aurg": calibration.aurg}
        return found

    def coverage(self) -> dict[str, list[dict[str, float]]]:
        """How often the measured disparity is within ±zσ, by method; empty where none is known."""
        if self._segments or not self._coverage[OURS].count:
            return {}
        return {method: coverage.summary() for method, coverage in self._coverage.items()}

    def calibration(self) -> dict[str, Sparsification]:
        """By method, the mean over the frames; empty where the bag has no ground truth."""
        judged = [frame.calibration for frame in self.frames if frame.calibration is not None]
        if not judged:
            return {}
        return {
            method: Sparsification.mean([frame[method] for frame in judged])
            for method in (OURS, SAMPLED)
        }

    def _new_truth(self) -> Confusion | DepthErrors:
        return Confusion(self._classes) if self._segments else DepthErrors()

    def _against_truth(self, answer: Answer, reference: Reference) -> dict[str, dict[str, float]]:
        found = {}
        for method, prediction in self._predictions(answer, reference).items():
            one = self._new_truth()
            for totals in (one, self._truth[method]):
                totals.add(answer.truth, prediction)
            found[method] = one.summary()
        return found

    def _calibration(self, answer: Answer, reference: Reference) -> dict[str, Sparsification]:
        judged = self._judged(answer)
        truth = answer.truth[judged]
        found = {}
        for method, prediction in self._predictions(answer, reference).items():
            if self._segments:
                uncertainty = answer.std if method == OURS else reference.std
                error = prediction[judged] != truth
            else:
                # Relative, as the error is: σ / d of disparity is σ / z of depth.
                std, disparity = (
                    (answer.std, answer.disparity)
                    if method == OURS
                    else (reference.std, reference.prediction)
                )
                uncertainty = std / np.maximum(disparity, np.finfo(np.float32).tiny)
                error = np.abs(np.clip(prediction[judged], LEAST, MOST) - truth) / truth
            found[method] = Sparsification.of(error.astype(np.float32), uncertainty[judged])
        return found

    def _take_at_its_word(self, answer: Answer, reference: Reference) -> None:
        """Count how often probabilities, or standard deviations, say the truth about the errors."""
        for method, said in ((OURS, answer), (SAMPLED, reference)):
            if self._segments:
                self._reliability[method].add(answer.truth, said.prediction, said.confidence)
            else:
                judged = self._judged(answer)
                disparity = answer.disparity if method == OURS else reference.prediction
                truth = self._depth_times_disparity(answer) / answer.truth[judged]
                self._coverage[method].add(disparity[judged] - truth, said.std[judged])

    def _judged(self, answer: Answer) -> np.ndarray:
        """Pixels whose truth is known."""
        return answer.truth != IGNORE if self._segments else judged_pixels(answer.truth)

    def _predictions(self, answer: Answer, reference: Reference) -> dict[str, np.ndarray]:
        """Labels, or metres."""
        if self._segments:
            return {OURS: answer.prediction, SAMPLED: reference.prediction}
        scale, farthest = self._depth_times_disparity(answer), self._depth.max_depth_m
        return {
            OURS: answer.prediction,
            SAMPLED: scale / np.maximum(reference.prediction, scale / np.float32(farthest)),
        }

    def _depth_times_disparity(self, answer: Answer) -> np.float32:
        """Focal length times baseline, as the node has taken them, where depth is not cut off."""
        product = answer.prediction * answer.disparity
        whole = answer.prediction < 0.999 * self._depth.max_depth_m
        return np.float32(np.median(product[whole] if whole.any() else product))
