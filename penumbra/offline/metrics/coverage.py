"""Coverage: whether standard deviations match the errors."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

SHARES = (0.5, 0.6827, 0.9, 0.95)
NOTE = (
    "The variance of dropout is epistemic. It includes neither the noise of camera and measurement"
    " (aleatoric) nor errors that all dropout masks share, so the observed shares are expected to"
    " be below the nominal ones."
)


class Coverage:
    """The share of errors within ±zσ, against that of a Gaussian.

    z = Φ⁻¹((1 + share) / 2), which is 0.674, 1, 1.645 and 1.96 for `SHARES`. If the observed shares
    are below the nominal ones, σ is too small.
    """

    def __init__(self) -> None:
        self.sigmas = np.array([NormalDist().inv_cdf((1 + share) / 2) for share in SHARES])
        self.within = np.zeros(len(SHARES), np.int64)
        self.count = 0

    def add(self, error: np.ndarray, std: np.ndarray) -> None:
        """Add signed errors and their standard deviations."""
        size, std = np.abs(np.asarray(error, np.float64)), np.asarray(std, np.float64)
        self.within += [int(np.count_nonzero(size <= sigma * std)) for sigma in self.sigmas]
        self.count += size.size

    def summary(self) -> list[dict[str, float]]:
        """For each share: `nominal`, `sigmas` (z) and `observed` (NaN without data)."""
        observed = self.within / self.count if self.count else np.full(len(SHARES), np.nan)
        columns = (SHARES, self.sigmas.tolist(), observed.tolist())
        names = ("nominal", "sigmas", "observed")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def coverage_table(summaries: dict[str, list[dict[str, float]]]) -> str:
    """A text table with one column per named summary."""
    heads = "".join(f"{name:>14}" for name in summaries)
    lines = [f"{'errors within':16}{'nominal':>9}{heads}"]
    for rows in zip(*summaries.values(), strict=True):
        within = f"±{rows[0]['sigmas']:.3f} σ"
        shown = "".join(f"{row['observed']:14.1%}" for row in rows)
        lines.append(f"{within:16}{rows[0]['nominal']:9.1%}{shown}")
    return "\n".join(lines)
