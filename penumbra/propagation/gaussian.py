"""Moments of functions of a Gaussian that several rules use, numerically stable at the extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penumbra.propagation.strips import in_strips

# Beyond 30 standard deviations the tail is 5e-198, zero in practice, and the bound keeps squares
# finite.
_FAR = 30.0
# Beyond 8 √2 standard deviations a rectified mean is below 1e-30 σ. Further out float32 results are
# denormal, and a processor takes a hundred times as long for each.
_DEAD = 8.0


class Rectified(NamedTuple):
    """Mean and variance of max(0, X)."""

    mean: Tensor
    variance: Tensor


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


class Corner(NamedTuple):
    """The terms of a corner at zero in a function of X ~ N(μ, σ²); see `corner`."""

    positive: Tensor
    lift: Tensor
    loss: Tensor


def corner(mean: Tensor, std: Tensor) -> Corner:
    """Moments of every function that is linear on both sides of zero.

    With z = μ/σ, a = |z|, Q(a) = 1 - Φ(a) and the lift g = φ(a) - a Q(a) ≥ 0, the function f with
    slope α below zero and β above it has

        E = f(μ) + (β - α) σ g
        Var = σ² (β² Φ(z) + α² (1 - Φ(z)) - (β - α)² h),   the loss being h = g (a + g).

    Lift and loss vanish in both tails, so that nothing cancels there, unlike in E[f²] - E[f]².
    `positive` is Φ(z) = P(X > 0).
    """
    z = standardized(mean, std)
    a = z.abs()
    tail = upper_tail(a)
    lift = (density(a) - a * tail).clamp(min=0)
    return Corner(_mirrored(tail, z, 1.0), lift, lift * (a + lift))


def _mirrored(tail: Tensor, z: Tensor, whole: float) -> Tensor:
    """`tail` if z is not positive, otherwise `whole - tail`.

    In eager PyTorch torch.where takes as long as twenty multiplications.
    """
    if torch.compiler.is_exporting():
        return torch.where(z > 0, whole - tail, tail)
    return torch.addcmul(tail, z.sign().clamp(min=0), whole - 2 * tail)


def rectified(mean: Tensor, variance: Tensor) -> Rectified:
    """Moments of max(0, X) for X ~ N(mean, variance).

    With z = μ/σ the supplement's formulas, its two typos corrected (it prints `1 - erf` in the
    first and `σ + μ²` in the second), are

        E[max(0,X)]  = μ Φ(z) + σ φ(z)
        E[max(0,X)²] = (σ² + μ²) Φ(z) + μ σ φ(z).

    Their difference cancels for large |z|; `corner` (slopes 0 and 1) does not.
    """
    if torch.compiler.is_exporting():
        return _rectified_in_few_operations(mean, variance)
    if mean.dim() < 2 or mean.shape != variance.shape:
        return _rectified_by_corner(mean, variance)
    return Rectified(*in_strips(_rectified_by_corner, mean, variance, dim=-2))


def _rectified_by_corner(mean: Tensor, variance: Tensor) -> Rectified:
    """`corner` of slopes 0 and 1 with u = |μ|/(√2 σ), 2 Q = erfc(u) and the lift times σ.

    Element by element, so that it can be computed in strips.
    """
    std = (2 * variance).sqrt()
    magnitude = mean.abs()
    u = (magnitude / std.clamp(min=torch.finfo(std.dtype).tiny)).clamp(max=_DEAD)
    tails = torch.erfc(u)
    bell = torch.exp(-u * u) * (0.5 / math.sqrt(math.pi))
    lift = torch.addcmul(bell, u, tails, value=-0.5).clamp(min=0) * std
    kept = 0.5 * variance * _mirrored(tails, mean, 2.0)
    spread = torch.addcmul(kept, lift, magnitude + lift, value=-1).clamp(min=0)
    return Rectified(mean.clamp(min=0) + lift, spread)


def _rectified_in_few_operations(mean: Tensor, variance: Tensor) -> Rectified:
    """`rectified` for exported graphs, in which every element-wise operation costs time.

    With u = μ/(√2 σ) it is `corner` of slopes 0 and 1, written with the one erf(u) that gives both
    Φ = ½ + ½ erf and Q = ½ - ½ |erf|; in the tails erf is ±1 exactly and the lift vanishes.
    """
    std = (2 * variance).sqrt()
    # The root of the smallest positive number: no division by zero, and u stays finite.
    smallest = torch.finfo(std.dtype).tiny * torch.finfo(std.dtype).eps
    u = mean / std.clamp(min=math.sqrt(smallest))
    half = 0.5 * torch.erf(u)
    magnitude = mean.abs()
    lift = std * torch.exp(-(u * u)) * (0.5 / math.sqrt(math.pi)) - magnitude * (0.5 - half.abs())
    spread = variance * (0.5 + half) - lift * (magnitude + lift)
    return Rectified(mean.clamp(min=0) + lift, spread.clamp(min=0))


def quadrature(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, nodes: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f(X), X ~ N(mean, variance), by Gauss-Hermite quadrature.

    Differences to f(mean) are summed, so that nothing cancels if the variance is small.
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
