"""How near one uncertainty map is to another, how well it knows the errors, and how sure that is.

Every figure against Monte Carlo stands beside the noise of the reference itself, estimated from
its two halves. If each half has an error of size s against an endless reference, then the halves
differ by √2 s and the whole, their average, has an error of s / √2: half of the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 10  # quantiles of the uncertainty
STEPS = 50  # of the sparsification curve


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The share of pixels with the same label."""
    return float(np.mean(a == b))


def relative_error(found: np.ndarray, reference: np.ndarray) -> float:
    """mean |a - b| / mean b"""
    spread = np.abs(found.astype(np.float64) - reference).mean()
    return float(spread / np.mean(reference, dtype=np.float64))


def mean_ratio(found: np.ndarray, reference: np.ndarray) -> float:
    """mean a / mean b: below 1 where uncertainty is understated."""
    return float(np.mean(found, dtype=np.float64) / np.mean(reference, dtype=np.float64))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of the ranks, equal values sharing theirs; NaN where a map is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values.ravel()) for values in (a, b)]
    centred = [r - r.mean() for r in ranks]
    lengths = [np.sqrt(np.dot(c, c)) for c in centred]
    if not all(lengths):
        return float("nan")
    return float(np.dot(*centred) / (lengths[0] * lengths[1]))


def attainable(correlation_of_halves: float) -> float:
    """What a perfect map would correlate with the whole reference.

    By Spearman and Brown (1910) the whole correlates with another such whole by 2 r / (1 + r),
    and the truth with one of them by the root of that.
    """
    r = max(correlation_of_halves, 0.0)
    return float(np.sqrt(2 * r / (1 + r)))


@dataclass(frozen=True)
class StdAgreement:
    """A standard-deviation map against Monte Carlo's, with what the reference's noise explains.

    The variance is the square of the map: it weighs the most uncertain pixels more.
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
    """The mean error of what is left when the most uncertain 0, 1/steps, 2/steps … are removed."""
    sorted_errors = error[np.argsort(-uncertainty, kind="stable")].astype(np.float64)
    left = np.cumsum(sorted_errors[::-1])[::-1]
    removed = np.arange(steps) * error.size // steps
    return left[removed] / (error.size - removed)


def by_quantile(error: np.ndarray, uncertainty: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The mean error in each `bins`-th part of the pixels, from the most certain part on."""
    sorted_errors = error[np.argsort(uncertainty, kind="stable")]
    return np.array([part.mean() for part in np.array_split(sorted_errors, bins)])


@dataclass(frozen=True)
class Sparsification:
    """How well an uncertainty knows where the errors are (curves of one frame, or their mean).

    `error` is of each pixel with known truth: 1 for a wrong label, or |depth - truth| / truth.
    """

    quantiles: np.ndarray  # mean error by quantile of the uncertainty
    curve: np.ndarray  # mean error of what is left, the most uncertain removed first
    oracle: np.ndarray  # the same, the most wrong removed first

    @classmethod
    def of(cls, error: np.ndarray, uncertainty: np.ndarray) -> Sparsification:
        return cls(
            by_quantile(error, uncertainty),
            sparsification(error, uncertainty),
            sparsification(error, error),
        )

    @classmethod
    def mean(cls, frames: list[Sparsification]) -> Sparsification:
        """Frame by frame, as Poggi et al. (2020) average."""
        parts = zip(*((c.quantiles, c.curve, c.oracle) for c in frames), strict=True)
        return cls(*(np.mean(part, axis=0) for part in parts))

    @property
    def ause(self) -> float:
        """The area under the sparsification error: 0 if uncertainty ranks as the errors do."""
        return float(np.mean(self.curve - self.oracle))

    @property
    def aurg(self) -> float:
        """The area by which it is better than removing at random; above 0 it knows something."""
        return float(np.mean(self.curve[0] - self.curve))
