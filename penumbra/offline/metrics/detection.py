"""How well a score tells the pixels that should stand out from all others: exact, ties and all.

A pixel is called positive where its score is at least the threshold; the thresholds are the scores
that occur. With true and false positives T and F among P positives and N negatives at each of them,
from the highest threshold on (Fishyscapes and SegmentMeIfYouCan judge by the last two):

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
    """The figures of one score, and its ROC curve."""

    auroc: float
    average_precision: float
    fpr95: float
    false_positive_rate: np.ndarray  # both from 0 to 1, at every threshold
    true_positive_rate: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, positive: np.ndarray) -> Detection:
        """`scores` of any shape, high where `positive` (of the same shape) should be true."""
        scores, positive = np.ravel(scores), np.ravel(positive).astype(bool)
        if scores.shape != positive.shape:
            raise PenumbraError(f"{scores.size} scores of {positive.size} pixels: give one of each")
        if np.isnan(scores).any():
            raise PenumbraError("some scores are not numbers: they cannot be ranked")
        total = np.count_nonzero(positive)
        if total in (0, positive.size):
            raise PenumbraError(
                f"{total} of {positive.size} pixels are positive: detection needs both kinds"
            )
        true, false = _counts(scores, positive)
        others = positive.size - total
        steps_true, steps_false = np.diff(true), np.diff(false)
        precision = true[1:] / (true[1:] + false[1:])
        enough = np.searchsorted(true, 0.95 * total)  # T grows: the first that is no less
        return cls(
            auroc=float(np.sum(steps_false * (true[1:] + true[:-1])) / (2 * total * others)),
            average_precision=float(np.sum(steps_true * precision) / total),
            fpr95=float(false[enough] / others),
            false_positive_rate=false / others,
            true_positive_rate=true / total,
        )

    def roc(self, points: int = 101) -> tuple[list[float], list[float]]:
        """The curve at evenly spaced false-positive rates, for a figure."""
        places = np.linspace(0, 1, points)
        found = np.interp(places, self.false_positive_rate, self.true_positive_rate)
        return places.tolist(), found.tolist()


def _counts(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True and false positives at each threshold, beginning with (0, 0) above all scores."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], positive[order]
    last_of_equals = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), scores.size - 1)
    true = np.cumsum(hits, dtype=np.int64)[last_of_equals]
    return np.append(0, true), np.append(0, last_of_equals + 1 - true)
