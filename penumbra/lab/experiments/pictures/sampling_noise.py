"""What even a perfect variance is off a sampled one, by chance alone."""

from __future__ import annotations

import math


def variance_off_by_chance(samples: int) -> float:
    """E |s²/σ² - 1| of the unbiased sample variance s² of so many Gaussian samples.

    (n-1) s²/σ² has a χ² distribution of n - 1 degrees of freedom, so s²/σ² a Gamma distribution of
    shape a = (n-1)/2 and mean one, whose mean absolute deviation is 2 a^a e^{-a} / Γ(a+1).
    """
    a = (samples - 1) / 2
    return 2 * math.exp(a * math.log(a) - a - math.lgamma(a + 1))
