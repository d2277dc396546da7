"""Activations with one corner: ReLU, leaky ReLU, PReLU and the absolute value.

All activations have two forms: "jacobian" is the paper's first-order error propagation,
Var[f(x)] ≈ f'(μ)² Var[x] with the mean f(μ); "moment" takes x as Gaussian and integrates.
"""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.gaussian import corner, rectified
from penumbra.propagation.moments import Moments, RectifiedMoments
from penumbra.propagation.registry import layer, rule

_RELU = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
_LEAKY_RELU = (F.leaky_relu, F.leaky_relu_)
_ABSOLUTE = (torch.abs, torch.absolute, operator.abs, "abs", "absolute")

layer(nn.ReLU, F.relu)
layer(nn.LeakyReLU, F.leaky_relu, "negative_slope")
layer(nn.PReLU, F.prelu, "weight")


@rule(*_RELU, relu="jacobian")
def relu_jacobian(x: Moments, inplace: bool = False) -> Moments:
    """The supplement's Jacobian: the variance passes if the mean is positive."""
    # The gate of ReLU's backward pass: one operation with a fast kernel.
    gated = torch.ops.aten.threshold_backward(x.variance, x.mean, 0)
    return Moments(x.mean.clamp(min=0), gated)


@rule(*_RELU, relu="moment")
def relu_moment(x: Moments, inplace: bool = False) -> Moments:
    """Mean and variance of a rectified Gaussian (see `gaussian.rectified`)."""
    return RectifiedMoments(*rectified(x.mean, x.variance), unrectified=x.mean)


@rule(*_LEAKY_RELU, relu="jacobian")
def leaky_relu_jacobian(
    x: Moments, negative_slope: float | Tensor = 0.01, inplace: bool = False
) -> Moments:
    """Slope one above zero, α below."""
    slope = _slope(x.mean, negative_slope)
    return Moments(x.mean * slope, x.variance * slope.square())


@rule(*_LEAKY_RELU, relu="moment")
def leaky_relu_moment(
    x: Moments, negative_slope: float | Tensor = 0.01, inplace: bool = False
) -> Moments:
    """Slopes α and one in `gaussian.corner`:

    E = f(μ) + (1-α) σ g,    Var = σ² (Φ + α² (1-Φ) - (1-α)² h).
    """
    std = x.variance.sqrt()
    at_zero = corner(x.mean, std)
    bend = 1 - negative_slope
    kept = at_zero.positive + negative_slope**2 * (1 - at_zero.positive)
    mean = x.mean * _slope(x.mean, negative_slope) + bend * std * at_zero.lift
    return Moments(mean, x.variance * (kept - bend**2 * at_zero.loss).clamp(min=0))


def _slope(mean: Tensor, below: float | Tensor) -> Tensor:
    """One above zero, `below` elsewhere, in the dtype of the mean."""
    return torch.where(mean > 0, torch.ones_like(mean), below)


def _slope_per_channel(x: Moments, weight: Tensor) -> Tensor:
    return weight if weight.numel() == 1 else weight.reshape((-1,) + (1,) * (x.mean.dim() - 2))


@rule(F.prelu, torch.prelu, relu="jacobian")
def prelu_jacobian(x: Moments, weight: Tensor) -> Moments:
    """Leaky ReLU with the slope of each channel."""
    return leaky_relu_jacobian(x, _slope_per_channel(x, weight))


@rule(F.prelu, torch.prelu, relu="moment")
def prelu_moment(x: Moments, weight: Tensor) -> Moments:
    """Leaky ReLU with the slope of each channel."""
    return leaky_relu_moment(x, _slope_per_channel(x, weight))


@rule(*_ABSOLUTE, relu="jacobian")
def absolute_jacobian(x: Moments) -> Moments:
    """The slope is 1 or -1: the variance does not change."""
    return leaky_relu_jacobian(x, -1.0)


@rule(*_ABSOLUTE, relu="moment")
def absolute_moment(x: Moments) -> Moments:
    """The folded Gaussian: a leaky ReLU of slope -1."""
    return leaky_relu_moment(x, -1.0)
