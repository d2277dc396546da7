"""The difference that sampling noise alone causes between a variance and its estimate."""

from __future__ import annotations

import math


def sampling_error_of_variance(samples: int) -> float:
    """E |s²/σ² - 1| of the unbiased sample variance s² of n Gaussian samples.

    (n-1) s²/σ² has a χ² distribution with n - 1 degrees of freedom, so s²/σ² has a Gamma
    distribution of shape a = (n-1)/2 and mean one, with mean absolute deviation
    2 a^a e^{-a} / Γ(a+1).
    """
    a = (samples - 1) / 2
    return 2 * math.exp(a * math.log(a) - a - math.lgamma(a + 1))
