"""Functions of positive values (log, roots), and the variance over a dimension.

A positive value is taken as log-normal with its mean μ and variance V, which is where `exp` leads:
s² = log(1 + V/μ²), and log X is Gaussian with mean log μ - s²/2 and variance s². Unlike a Gaussian
it has all powers,

    E[X^a] = μ^a exp(a (a-1) s²/2),        Var[X^a] = E[X^a]² (exp(a² s²) - 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import rule


def _log_variance(x: Moments) -> torch.Tensor:
    smallest = torch.finfo(x.mean.dtype).tiny ** 0.5
    return torch.log1p(x.variance / x.mean.square().clamp(min=smallest))


@rule(torch.log, torch.log_, "log", "log_")
def logarithm(x: Moments) -> Moments:
    """Of a log-normal X: E = log μ - s²/2, Var = s². Not a number where the mean is negative."""
    spread = _log_variance(x)
    return Moments(torch.log(x.mean) - spread / 2, spread)


def power_of_positive(x: Moments, exponent: float) -> Moments:
    """X^a of a log-normal X."""
    spread = _log_variance(x)
    mean = x.mean.pow(exponent) * torch.exp(exponent * (exponent - 1) / 2 * spread)
    return Moments(mean, mean.square() * torch.expm1(exponent**2 * spread))


@rule(torch.sqrt, torch.sqrt_, "sqrt", "sqrt_")
def square_root(x: Moments) -> Moments:
    """X^½ of a log-normal X; zero where mean and variance are."""
    return power_of_positive(x, 0.5)


@rule(torch.rsqrt, torch.rsqrt_, "rsqrt", "rsqrt_")
def inverse_square_root(x: Moments) -> Moments:
    """X^-½ of a log-normal X."""
    return power_of_positive(x, -0.5)


@rule(torch.var, "var")
def variance_over(
    x: Moments, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Moments:  # fmt: skip
    """s² = Σ_j (x_j - x̄)² / (n - c), a quadratic form of independent Gaussians, is exact:

    E = s²(μ) + (1 - 1/n) Σ V / (n - c)
    Var = (4 Σ (μ_j - μ̄)² V_j + 2 (1 - 2/n) Σ V_j² + 2 (Σ V)²/n²) / (n - c)².
    """
    if isinstance(dim, bool):  # x.var(False): the first argument is `unbiased`
        dim, unbiased = None, dim
    dims = tuple(range(x.mean.dim())) if dim is None else dim
    dims = tuple(dims) if isinstance(dims, Sequence) else (dims,)
    n = math.prod(x.mean.shape[d] for d in dims)
    c = correction if correction is not None else (1.0 if unbiased in (None, True) else 0.0)
    v = x.variance
    away = x.mean - x.mean.mean(dims, keepdim=True)

    def total(value: torch.Tensor) -> torch.Tensor:
        return value.sum(dims, keepdim=keepdim)

    mean = (total(away.square()) + (1 - 1 / n) * total(v)) / (n - c)
    both = 2 * (1 - 2 / n) * total(v.square()) + 2 * total(v).square() / n**2
    return Moments(mean, (4 * total(away.square() * v) + both) / (n - c) ** 2)


@rule(torch.std, "std")
def deviation_over(
    x: Moments, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Moments:  # fmt: skip
    """The root of the variance."""
    return square_root(variance_over(x, dim, unbiased, keepdim, correction=correction))
