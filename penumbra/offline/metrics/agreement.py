"""Agreement of uncertainty maps with a reference, and with the errors.

Every figure against Monte Carlo comes with the sampling noise of the reference, estimated from its
two halves. If each half has an error of size s against an infinite reference, then the halves
differ by √2 s and their average has an error of s / √2: half of the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 10  # quantiles of the uncertainty
STEPS = 50  # of the sparsification curve


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Share of pixels with the same label."""
    return float(np.mean(a == b))


def relative_error(found: np.ndarray, reference: np.ndarray) -> float:
    """mean |a - b| / mean b."""
    spread = np.abs(found.astype(np.float64) - reference).mean()
    return float(spread / np.mean(reference, dtype=np.float64))


def mean_ratio(found: np.ndarray, reference: np.ndarray) -> float:
    """mean a / mean b; below 1 the uncertainty is too small."""
    return float(np.mean(found, dtype=np.float64) / np.mean(reference, dtype=np.float64))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, with mean ranks for ties; NaN if a map is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values.ravel()) for values in (a, b)]
    centred = [r - r.mean() for r in ranks]
    lengths = [np.sqrt(np.dot(c, c)) for c in centred]
    if not all(lengths):
        return float("nan")
    return float(np.dot(*centred) / (lengths[0] * lengths[1]))


def attainable(correlation_of_halves: float) -> float:
    """The correlation of a perfect map with the whole reference.

    By Spearman and Brown (1910) two such references correlate by 2 r / (1 + r), and the truth with
    one of them by the square root of that.
    """
    r = max(correlation_of_halves, 0.0)
    return float(np.sqrt(2 * r / (1 + r)))


@dataclass(frozen=True)
class StdAgreement:
    """A map of standard deviations against Monte Carlo's, with the noise of the reference.

    The variance is the square of the map; it gives more weight to the most uncertain pixels.
    """

    std_relative_error: float
    std_relative_error_noise: float
    std_ratio: float
    variance_relative_error: float
    variance_relative_error_noise: float
    variance_ratio: float
    spearman: float
    spearman_attainable: float

    @classmethod
    def of(
        cls, found: np.ndarray, reference: np.ndarray, halves: tuple[np.ndarray, np.ndarray]
    ) -> StdAgreement:
        """Compare `found` with the reference, whose noise follows from its `halves`."""
        first, second = halves
        scale = np.mean(reference, dtype=np.float64)
        between = np.abs(first.astype(np.float64) - second).mean()
        squares = np.square(found, dtype=np.float64), np.square(reference, dtype=np.float64)
        between_squares = np.abs(np.square(first, dtype=np.float64) - np.square(second)).mean()
        return cls(
            std_relative_error=relative_error(found, reference),
            std_relative_error_noise=float(between / scale / 2),
            std_ratio=mean_ratio(found, reference),
            variance_relative_error=relative_error(*squares),
            variance_relative_error_noise=float(between_squares / squares[1].mean() / 2),
            variance_ratio=mean_ratio(*squares),
            spearman=spearman(found, reference),
            spearman_attainable=attainable(spearman(first, second)),
        )


def sparsification(error: np.ndarray, uncertainty: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """Mean error after removing the most uncertain 0, 1/steps, 2/steps … of the pixels."""
    sorted_errors = error[np.argsort(-uncertainty, kind="stable")].astype(np.float64)
    left = np.cumsum(sorted_errors[::-1])[::-1]
    removed = np.arange(steps) * error.size // steps
    return left[removed] / (error.size - removed)


def by_quantile(error: np.ndarray, uncertainty: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Mean error by quantile of the uncertainty, from the most certain pixels on."""
    sorted_errors = error[np.argsort(uncertainty, kind="stable")]
    return np.array([part.mean() for part in np.array_split(sorted_errors, bins)])


@dataclass(frozen=True)
class Sparsification:
    """How well the uncertainty ranks the errors (curves of one frame, or their mean).

    `error` of a pixel with ground truth is 1 for a wrong label, or |depth - truth| / truth.
    """

    quantiles: np.ndarray  # mean error by quantile of the uncertainty
    curve: np.ndarray  # mean error of the rest, the most uncertain removed first
    oracle: np.ndarray  # the same, the largest errors removed first

    @classmethod
    def of(cls, error: np.ndarray, uncertainty: np.ndarray) -> Sparsification:
        """The curves of one frame."""
        return cls(
            by_quantile(error, uncertainty),
            sparsification(error, uncertainty),
            sparsification(error, error),
        )

    @classmethod
    def mean(cls, frames: list[Sparsification]) -> Sparsification:
        """The mean over frames, as in Poggi et al. (2020)."""
        parts = zip(*((c.quantiles, c.curve, c.oracle) for c in frames), strict=True)
        return cls(*(np.mean(part, axis=0) for part in parts))

    @property
    def ause(self) -> float:
        """Area under the sparsification error: 0 if the uncertainty ranks as the errors do."""
        return float(np.mean(self.curve - self.oracle))

    @property
    def aurg(self) -> float:
        """Area under the random gain: above 0 it is better than removing at random."""
        return float(np.mean(self.curve[0] - self.curve))
