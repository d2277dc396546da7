"""Detection of positive pixels by a score: AUROC, average precision and FPR95, exact with ties.

A pixel is detected where its score is at least the threshold; the thresholds are the scores that
occur. With T_k true and F_k false positives of P positives and N negatives, from the highest
threshold on (Fishyscapes and SegmentMeIfYouCan report the last two):

    AUROC = Σ_k (F_k - F_{k-1}) (T_k + T_{k-1}) / 2PN     = P(positive > negative) + P(equal) / 2
    average precision = Σ_k (T_k - T_{k-1}) / P · T_k / (T_k + F_k)
    FPR95 = F_k / N at the first k with T_k ≥ 0.95 P
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penumbra.errors import PenumbraError


@dataclass(frozen=True)
class Detection:
    """Detection figures of a score, and its ROC curve."""

    auroc: float
    average_precision: float
    fpr95: float
    false_positive_rate: np.ndarray  # both from 0 to 1, at every threshold
    true_positive_rate: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, positive: np.ndarray) -> Detection:
        """From `scores` of any shape, which should be high where `positive` is true."""
        scores, positive = np.ravel(scores), np.ravel(positive).astype(bool)
        if scores.shape != positive.shape:
            raise PenumbraError(f"{scores.size} scores for {positive.size} pixels: give one each")
        if np.isnan(scores).any():
            raise PenumbraError("some scores are NaN and cannot be ranked")
        total = np.count_nonzero(positive)
        if total in (0, positive.size):
            raise PenumbraError(
                f"{total} of {positive.size} pixels are positive: detection needs both kinds"
            )
        true, false = _counts(scores, positive)
        others = positive.size - total
        steps_true, steps_false = np.diff(true), np.diff(false)
        precision = true[1:] / (true[1:] + false[1:])
        enough = np.searchsorted(true, 0.95 * total)  # T is sorted: the first that is no less
        return cls(
            auroc=float(np.sum(steps_false * (true[1:] + true[:-1])) / (2 * total * others)),
            average_precision=float(np.sum(steps_true * precision) / total),
            fpr95=float(false[enough] / others),
            false_positive_rate=false / others,
            true_positive_rate=true / total,
        )

    def roc(self, points: int = 101) -> tuple[list[float], list[float]]:
        """The curve at evenly spaced false-positive rates, for plotting."""
        places = np.linspace(0, 1, points)
        found = np.interp(places, self.false_positive_rate, self.true_positive_rate)
        return places.tolist(), found.tolist()


def _counts(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True and false positives at each threshold, starting with (0, 0) above all scores."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], positive[order]
    last_of_equals = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), scores.size - 1)
    true = np.cumsum(hits, dtype=np.int64)[last_of_equals]
    return np.append(0, true), np.append(0, last_of_equals + 1 - true)
