"""Whether a standard deviation is as large as the errors that are made."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

SHARES = (0.5, 0.6827, 0.9, 0.95)
NOTE = (
    "Dropout's variance is what the network is unsure of (epistemic). It holds neither the noise of"
    " the camera nor that of the measurement (aleatoric), nor what no dropout mask changes, so the"
    " observed shares are expected to be below the nominal ones."
)


class Coverage:
    """The share of errors within ±zσ, beside the share that a Gaussian has there.

    z = Φ⁻¹((1 + share) / 2), which is 0.674, 1, 1.645 and 1.96 for `SHARES`. Observed shares below
    the nominal ones: σ is too small for the errors.
    """

    def __init__(self) -> None:
        self.sigmas = np.array([NormalDist().inv_cdf((1 + share) / 2) for share in SHARES])
        self.within = np.zeros(len(SHARES), np.int64)
        self.count = 0

    def add(self, error: np.ndarray, std: np.ndarray) -> None:
        """Errors (of either sign) and the standard deviation of each."""
        size, std = np.abs(np.asarray(error, np.float64)), np.asarray(std, np.float64)
        self.within += [int(np.count_nonzero(size <= sigma * std)) for sigma in self.sigmas]
        self.count += size.size

    def summary(self) -> list[dict[str, float]]:
        """For each share: `nominal`, `sigmas` (z) and `observed`, which is NaN without an error."""
        observed = self.within / self.count if self.count else np.full(len(SHARES), np.nan)
        columns = (SHARES, self.sigmas.tolist(), observed.tolist())
        names = ("nominal", "sigmas", "observed")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def coverage_table(summaries: dict[str, list[dict[str, float]]]) -> str:
    """Lines of text: a column for each of the named summaries."""
    heads = "".join(f"{name:>14}" for name in summaries)
    lines = [f"{'errors within':16}{'nominal':>9}{heads}"]
    for rows in zip(*summaries.values(), strict=True):
        within = f"±{rows[0]['sigmas']:.3f} σ"
        shown = "".join(f"{row['observed']:14.1%}" for row in rows)
        lines.append(f"{within:16}{rows[0]['nominal']:9.1%}{shown}")
    return "\n".join(lines)
