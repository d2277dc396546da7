"""From the node's answers and the reference to figures: of each frame, and of the whole bag."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from penumbra.bundle import Bundle
from penumbra.offline.metrics.agreement import (
    Sparsification,
    StdAgreement,
    agreement,
    relative_error,
)
from penumbra.verification.facts import METHODS, Figures, FrameFacts
from penumbra.verification.frames import Answer
from penumbra.verification.ground_truth import (
    DepthTruth,
    SegmentationTruth,
    TruthComparison,
    TruthFigures,
    required,
)
from penumbra.verification.reference import Reference

# Bins of log10 of the standard deviation, for the histogram of both maps.
DECADES = np.linspace(-6, 0, 121)
_BRIGHTEST = 0.995  # quantile of the reference at the top of the colour scale


@dataclass(frozen=True)
class FrameFigures:
    """One frame; None where a figure does not apply or there is no ground truth."""

    stamp_ns: int
    label_agreement: float | None
    label_agreement_noise: float | None
    disparity_relative_error: float | None
    std_agreement: StdAgreement
    truth: TruthFigures | None
    weights: dict[str, float]  # mean std and variance of the reference, to average over frames
    brightest: float
    infer_ms: float
    total_ms: float

    def agreement(self) -> Figures:
        """The figures against Monte Carlo that apply, by name."""
        found = {
            "label_agreement": self.label_agreement,
            "label_agreement_noise": self.label_agreement_noise,
            "disparity_relative_error": self.disparity_relative_error,
            **asdict(self.std_agreement),
        }
        return {name: value for name, value in found.items() if value is not None}

    def facts(self, start_ns: int) -> FrameFacts:
        """For JSON and tables; figures against ground truth have the method as prefix."""
        figures = self.agreement()
        if self.truth is not None:
            for method, found in self.truth.figures.items():
                figures |= {f"{method}_{name}": value for name, value in found.items()}
            for method, curves in self.truth.sparsification.items():
                figures |= {f"{method}_ause": curves.ause, f"{method}_aurg": curves.aurg}
        time_s = (self.stamp_ns - start_ns) / 1e9
        return FrameFacts(time_s, self.stamp_ns / 1e9, self.infer_ms, self.total_ms, figures)


class Comparison:
    """Takes frame by frame; `figures` and the other results are over all frames so far."""

    def __init__(self, bundle: Bundle) -> None:
        self._truth: TruthComparison = (
            SegmentationTruth(len(bundle.classes))
            if bundle.depth is None
            else DepthTruth(bundle.depth)
        )
        self._segments = bundle.depth is None
        self.frames: list[FrameFigures] = []
        self.density = np.zeros((len(DECADES) - 1, len(DECADES) - 1), np.int64)

    def add(self, answer: Answer, reference: Reference) -> FrameFigures:
        """Compare one frame, and add it to the results of the bag."""
        labels = label_noise = disparity = None
        if self._segments:
            labels = agreement(answer.prediction, reference.prediction)
            label_noise = (1 - agreement(*reference.half_predictions)) / 2
        else:
            disparity = relative_error(
                required(answer.disparity, "disparity"), reference.prediction
            )
        figures = FrameFigures(
            answer.stamp_ns,
            labels,
            label_noise,
            disparity,
            StdAgreement.of(answer.std, reference.std, reference.half_stds),
            None if answer.truth is None else self._truth.add(answer, reference, answer.truth),
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

    def figures(self) -> Figures:
        """Against Monte Carlo: shares and correlations are means over the frames.

        Relative errors and ratios are over all pixels together, so that frames with little
        uncertainty have little weight.
        """
        found = [frame.agreement() for frame in self.frames]
        return {
            name: float(
                np.average(
                    [figures[name] for figures in found],
                    weights=[f.weights.get(name.partition("_")[0], 1.0) for f in self.frames],
                )
            )
            for name in found[0]
        }

    def truth(self) -> dict[str, Figures]:
        """Against ground truth, by method; empty without ground truth."""
        return {
            method: self._truth.summary(method) | {"ause": curves.ause, "aurg": curves.aurg}
            for method, curves in self.sparsification().items()
        }

    def coverage(self) -> dict[str, list[Figures]]:
        """How often the measured disparity is within ±zσ, by method; empty without any."""
        return self._truth.coverage()

    def sparsification(self) -> dict[str, Sparsification]:
        """By method, the mean over the frames; empty without ground truth."""
        judged = [frame.truth.sparsification for frame in self.frames if frame.truth is not None]
        if not judged:
            return {}
        return {
            method: Sparsification.mean([frame[method] for frame in judged]) for method in METHODS
        }
