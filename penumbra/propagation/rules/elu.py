"""The exponential linear units: ELU (which Monodepth uses), SELU and CELU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.gaussian import corner, density, rectified, standardized, upper_tail
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule

_SELU = {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}

layer(nn.ELU, F.elu, "alpha")
layer(nn.CELU, F.celu, "alpha")
layer(nn.SELU, F.selu)


@rule(F.elu, F.elu_, smooth="moment")
def elu_moment(x: Moments, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """Closed form, see `_moment`."""
    return _moment(x, alpha)


@rule(F.elu, F.elu_, smooth="jacobian")
def elu_jacobian(x: Moments, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """Slope one above zero, α eˣ below."""
    return _jacobian(x, alpha)


@rule(F.celu, torch.celu, smooth="moment")
def celu_moment(x: Moments, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """ELU with the exponential stretched so that the slope is continuous."""
    return _moment(x, alpha, rate=1 / alpha)


@rule(F.celu, torch.celu, smooth="jacobian")
def celu_jacobian(x: Moments, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """Slope one above zero, e^(x/α) below."""
    return _jacobian(x, alpha, rate=1 / alpha)


@rule(F.selu, torch.selu, smooth="moment")
def selu_moment(x: Moments, inplace: bool = False) -> Moments:
    """ELU with the constants of self-normalising networks."""
    return _moment(x, **_SELU)


@rule(F.selu, torch.selu, smooth="jacobian")
def selu_jacobian(x: Moments, inplace: bool = False) -> Moments:
    """ELU with the constants of self-normalising networks."""
    return _jacobian(x, **_SELU)


def _moment(x: Moments, alpha: float, scale: float = 1.0, rate: float = 1.0) -> Moments:
    """scale · (max(0,X) + α (exp(rate · min(0,X)) - 1)): ELU, SELU and CELU in one.

    With N = P(X < 0) and A_k = E[exp(k r X); X < 0] = exp(k r μ + k² r² σ²/2) Φ(-(μ + k r σ²)/σ)
    for the rate r, the two parts are never both non-zero, so that

        E   = E[max(0,X)] + α (A₁ - N)
        Var = Var[max(0,X)] + α² (A₂ - A₁² - 2 A₁ (1-N) + N (1-N)) - 2 α E[max(0,X)] (A₁ - N).

    The differences cancel if the variance is small. They are therefore computed in double
    precision, except in an exported graph (TensorRT has none), and `_narrow` is used below the
    width at which both have the same error. The variance is right to 1e-6 σ², in an exported
    float32 graph to 2e-3 σ², and to 1e-4 σ² from σ = 0.1 on.
    """
    dtype = x.mean.dtype
    exact = dtype if torch.compiler.is_exporting() else torch.float64
    mean, variance = x.mean.to(exact), x.variance.to(exact)
    positive_part = rectified(mean, variance)
    std = variance.sqrt()
    negative = upper_tail(standardized(mean, std))
    positive = 1 - negative
    first = _exponential_below_zero(mean, variance, std, rate)
    second = _exponential_below_zero(mean, variance, std, 2 * rate)
    dip = first - negative
    spread = second - first.square() - 2 * first * positive
    spread = spread + negative * positive
    var = positive_part.variance + alpha**2 * spread - 2 * alpha * positive_part.mean * dip
    narrow = _narrow(mean, variance, alpha, rate)
    # An exported graph is in single precision, or has `_erfcx`, which is no better.
    precision = torch.float32 if torch.compiler.is_exporting() else torch.float64
    is_narrow = rate * std < torch.finfo(precision).eps ** 0.25
    var = torch.where(is_narrow, narrow.variance, var).clamp(min=0)
    result = torch.where(is_narrow, narrow.mean, positive_part.mean + alpha * dip)
    return Moments((scale * result).to(dtype), (scale**2 * var).to(dtype))


def _narrow(mean: Tensor, variance: Tensor, alpha: float, rate: float) -> Moments:
    """The same (without `scale`) to second order in s = rate · σ; the error is O(s²).

    In units of σ let u = X/σ, and w = u - min(z, 0), the distance from μ or, if μ is positive, from
    zero. The expansion of f there is a corner with slopes a = α r exp(r min(μ, 0)) and 1, and

        (a s/2) T,   T = w² below zero, min(z, 0)² above it,

    which adds E[T] to the mean and, since Cov(w, T) = 2 E[w; u < 0] by Stein's lemma,
    a s (2 a E[w; u < 0] - (1-a) E[u; u > 0] (E[T] - min(z, 0)²)) to the variance.
    """
    std = variance.sqrt()
    z = standardized(mean, std)
    positive, lift, loss = corner(mean, std)
    negative = 1 - positive
    phi, is_below = density(z), z < 0
    first = torch.where(is_below, -phi, -lift)  # E[w; u < 0]
    beyond = torch.where(is_below, negative, (1 + z.square()) * negative)
    second = beyond - z.abs() * phi  # E[w²; u < 0]
    anchor = torch.where(is_below, z.square(), 0.0)
    fall = rate * mean.clamp(max=0)
    a, s = alpha * rate * torch.exp(fall), rate * std
    bent = 2 * a * first - (1 - a) * (z.clamp(min=0) + lift) * (second - anchor * negative)
    kept = positive + a.square() * negative - (1 - a).square() * loss + a * s * bent
    raised = (1 - a) * lift + 0.5 * a * s * (second + anchor * positive)
    return Moments(mean.clamp(min=0) + alpha * torch.expm1(fall) + std * raised, variance * kept)


def _exponential_below_zero(mean: Tensor, variance: Tensor, std: Tensor, k: float) -> Tensor:
    """E[exp(kX); X < 0] = exp(-z²/2) · R(t) with t = z + kσ and R(t) = exp(t²/2) Q(t).

    For t > 0 the scaled tail R avoids the product of a huge exponential and a tiny tail; for
    t ≤ 0 the exponent kμ + k²σ²/2 is negative, and the product is computed directly.
    """
    z = standardized(mean, std)
    t = z + k * std
    above = t.clamp(min=0)
    scaled_tail = 0.5 * _erfcx(above * 0.5**0.5)
    below = torch.exp((k * mean + 0.5 * k**2 * variance).clamp(max=0)) * upper_tail(t)
    return torch.where(t > 0, torch.exp(-0.5 * z.square()) * scaled_tail, below)


def _erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x) for x ≥ 0."""
    if not torch.compiler.is_exporting():
        scaled: Tensor = torch.special.erfcx(x)
        return scaled
    # The Chebyshev fit of Numerical Recipes (relative error 1.2e-7), in operators of ONNX.
    t = 1 / (1 + 0.5 * x)
    polynomial = torch.zeros_like(t)
    for coefficient in (
        0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807,
        -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223,
    ):  # fmt: skip
        polynomial = polynomial * t + coefficient
    return t * torch.exp(polynomial)


def _jacobian(x: Moments, alpha: float, scale: float = 1.0, rate: float = 1.0) -> Moments:
    fall = rate * x.mean.clamp(max=0)
    slope = torch.where(x.mean > 0, torch.ones_like(fall), alpha * rate * torch.exp(fall))
    mean = scale * (x.mean.clamp(min=0) + alpha * torch.expm1(fall))
    return Moments(mean, x.variance * (scale * slope).square())
