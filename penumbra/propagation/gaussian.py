"""Moments of functions of a Gaussian that several rules need, stable at the extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Beyond 30 standard deviations the tail is 5e-198: nothing is lost in any dtype, and 30² times
# anything stays finite.
_FAR = 30.0


class Rectified(NamedTuple):
    """Mean and variance of max(0, X) and the probability that X is positive."""

    mean: Tensor
    variance: Tensor
    positive: Tensor


def upper_tail(a: Tensor) -> Tensor:
    """P(Z > a) of a standard normal Z."""
    if torch.compiler.is_exporting():  # ONNX has Erf but no Erfc
        return 0.5 - 0.5 * torch.erf(a * math.sqrt(0.5))
    return 0.5 * torch.erfc(a * math.sqrt(0.5))


def density(a: Tensor) -> Tensor:
    """The density of a standard normal."""
    return torch.exp(-0.5 * a.square()) * (1 / math.sqrt(2 * math.pi))


def standardized(mean: Tensor, std: Tensor) -> Tensor:
    """mean/std, bounded, and finite where the standard deviation is zero."""
    return (mean / std.clamp(min=torch.finfo(std.dtype).tiny)).clamp(-_FAR, _FAR)


def rectified(mean: Tensor, variance: Tensor) -> Rectified:
    """Moments of max(0, X) for X ~ N(mean, variance).

    With z = μ/σ the supplement's formulas, its two typos corrected (it prints `1 - erf` in the
    first and `σ + μ²` in the second), are

        E[max(0,X)]  = μ Φ(z) + σ φ(z)
        E[max(0,X)²] = (σ² + μ²) Φ(z) + μ σ φ(z).

    Their difference cancels where |z| is large. In terms of a = |z|, with Q(a) = 1 - Φ(a) and
    g(a) = φ(a) - a Q(a) ≥ 0, they are

        E = max(0, μ) + σ g        Var = σ² (Φ(z) - g (a + g)),

    corrections that vanish in both tails instead of differences of large numbers.
    """
    std = variance.sqrt()
    z = standardized(mean, std)
    a = z.abs()
    tail = upper_tail(a)
    g = (density(a) - a * tail).clamp(min=0)
    positive = torch.where(z > 0, 1 - tail, tail)
    shrunk = (positive - g * (a + g)).clamp(min=0)
    return Rectified(mean.clamp(min=0) + std * g, variance * shrunk, positive)


def quadrature(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, nodes: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f(X), X ~ N(mean, variance), by Gauss-Hermite quadrature.

    Differences to f(mean) are summed, so that nothing cancels where the variance is small.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    std = variance.sqrt()
    centre = function(mean)
    first = torch.zeros_like(mean)
    second = torch.zeros_like(mean)
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        if point == 0.0:
            continue
        difference = function(mean + point * std) - centre
        first = first + weight * difference
        second = second + weight * difference.square()
    return centre + first, (second - first.square()).clamp(min=0)
