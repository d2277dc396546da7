"""Activations with two corners: clamp, hardtanh, ReLU6 and hardsigmoid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.gaussian import corner, rectified, standardized
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule

_CLAMP = (torch.clamp, torch.clip, torch.clamp_, "clamp", "clip", "clamp_", "clip_")
_HARDTANH = (F.hardtanh, F.hardtanh_)
# Gauss-Legendre nodes that integrate the tail of a Gaussian over an interval of at most σ: to 5e-8
# in single precision (True), and to rounding in double.
_NODES = {True: 5, False: 9}


@rule(*_CLAMP, relu="jacobian")
def clamp_jacobian(x: Moments, min: float | None = None, max: float | None = None) -> Moments:
    """The variance passes if the mean is strictly between the bounds."""
    low, high = _bounds(min, max)
    stuck = x.mean <= low if math.isfinite(low) else x.mean >= high
    if math.isfinite(low) and math.isfinite(high):
        stuck = stuck | (x.mean >= high)
    return Moments(x.mean.clamp(min, max), torch.where(stuck, 0.0, x.variance))


@rule(*_CLAMP, relu="moment")
def clamp_moment(x: Moments, min: float | None = None, max: float | None = None) -> Moments:
    """Mean and variance of a Gaussian clipped to [l, u], in closed form or by integration.

    `_narrow` is used up to σ = u - l and cancels above, by the square of σ/(u - l); `_wide` is used
    there. In float32 the mean is right to 4e-7 of the smaller of σ and u - l, besides the rounding
    of the bounds, and the variance to 1e-6 of its square.
    """
    low, high = _bounds(min, max)
    if math.isinf(low) and math.isinf(high):
        return x
    if math.isinf(high):
        raised = rectified(x.mean - low, x.variance)
        return Moments(low + raised.mean, raised.variance)
    if math.isinf(low):
        lowered = rectified(high - x.mean, x.variance)
        return Moments(high - lowered.mean, lowered.variance)
    if low == high:
        return Moments(torch.full_like(x.mean, low), torch.zeros_like(x.mean))
    limit = (high - low) ** 2
    is_wide = x.variance > limit
    # Each form sees only variances that it holds for, so that its gradient is finite elsewhere.
    narrow = _narrow(x.mean, x.variance.clamp(max=limit), low, high)
    wide = _wide(x.mean, x.variance.clamp(min=limit), low, high)
    variance = torch.where(is_wide, wide.variance, narrow.variance)
    # Popoviciu's inequality: the variance on an interval is at most the square of its half.
    variance = variance.clamp(0.0, limit / 4)
    return Moments(torch.where(is_wide, wide.mean, narrow.mean), variance)


def _narrow(mean: Tensor, variance: Tensor, low: float, high: float) -> Moments:
    """The clipped Gaussian as l + max(0, X-l) - max(0, X-u), which has two corners.

    With lift g and loss h of each (see `gaussian.corner`), and o_l = max(0, l-μ)/σ and
    o_u = max(0, μ-u)/σ for a mean outside,

        E = clamp(μ) + σ (g_l - g_u)
        Var = σ² (P(l < X < u) - h_l - h_u + 2 (g_l g_u + g_u o_l + g_l o_u)).
    """
    std = variance.sqrt()
    at_low, at_high = corner(mean - low, std), corner(mean - high, std)
    below = standardized(low - mean, std).clamp(min=0)
    above = standardized(mean - high, std).clamp(min=0)
    mixed = at_low.lift * at_high.lift + at_high.lift * below + at_low.lift * above
    kept = at_low.positive - at_high.positive - at_low.loss - at_high.loss + 2 * mixed
    return Moments(mean.clamp(low, high) + std * (at_low.lift - at_high.lift), variance * kept)


def _wide(mean: Tensor, variance: Tensor, low: float, high: float) -> Moments:
    """The clipped Gaussian by integrals of its tail Q(t) = P(X > t) over the interval:

        E[Y - l] = ∫ Q(t) dt,    E[(Y - l)²] = 2 ∫ (t - l) Q(t) dt    (by parts).

    The interval is mirrored if the mean is above its middle. Then E[(Y - l)²] is at least about
    twice E[Y - l]², and their difference does not cancel. With t = middle + half·x the integrals
    are half·A and half² (A + B), for A = ∫ Q dx and B = ∫ x Q dx over [-1, 1].
    """
    half, middle = (high - low) / 2, (high + low) / 2
    offset = mean - middle
    scale = math.sqrt(0.5) / variance.sqrt()
    distance, reach = offset.abs() * scale, half * scale
    centre, pairs = _legendre(_NODES[torch.finfo(mean.dtype).eps > 1e-8])
    even = [centre / 2 * _erfc(distance)]
    odd = []
    for node, weight in pairs:
        step = node * reach
        above, below = _erfc(distance + step), _erfc(distance - step)
        even.append(weight / 2 * (above + below))
        odd.append(weight * node / 2 * (above - below))
    a, b = sum(even[1:], even[0]), sum(odd[1:], odd[0])
    from_bound = half * a
    clipped = torch.where(offset > 0, high - from_bound, low + from_bound)
    return Moments(clipped, half**2 * (2 * (a + b) - a.square()))


def _erfc(x: Tensor) -> Tensor:
    return 1 - torch.erf(x) if torch.compiler.is_exporting() else torch.erfc(x)


def _legendre(count: int) -> tuple[float, list[tuple[float, float]]]:
    """An odd Gauss-Legendre rule: the weight of node 0, and positive nodes with their weights."""
    nodes, weights = (part.tolist() for part in np.polynomial.legendre.leggauss(count))
    middle = count // 2
    pairs = list(zip(nodes[middle + 1 :], weights[middle + 1 :], strict=True))
    return weights[middle], pairs


def _bounds(low: Any, high: Any) -> tuple[float, float]:
    """The bounds as numbers, infinite if they are not given."""
    if isinstance(low, (Tensor, Moments)) or isinstance(high, (Tensor, Moments)):
        raise PropagationError("clamp has a rule for bounds that are numbers, not tensors")
    if low is None and high is None:
        raise PropagationError("clamp needs a lower or an upper bound")
    # As floats: a graph with integers next to floats cannot be exported.
    low, high = float(-math.inf if low is None else low), float(math.inf if high is None else high)
    if low > high:
        raise PropagationError(f"clamp's lower bound {low} is above its upper bound {high}")
    return low, high


def _hard_rules(form: str, clamp: Callable[[Moments, float, float], Moments]) -> None:
    @rule(*_HARDTANH, relu=form)
    def hardtanh(
        x: Moments, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
    ) -> Moments:
        """As `clamp`."""
        return clamp(x, min_val, max_val)

    @rule(F.relu6, relu=form)
    def relu6(x: Moments, inplace: bool = False) -> Moments:
        """Clamp to [0, 6] (MobileNet)."""
        return clamp(x, 0.0, 6.0)

    @rule(F.hardsigmoid, relu=form)
    def hardsigmoid(x: Moments, inplace: bool = False) -> Moments:
        """clamp(x + 3, 0, 6) / 6."""
        clipped = clamp(x, -3.0, 3.0)
        return Moments((clipped.mean + 3) / 6, clipped.variance / 36)


_hard_rules("jacobian", clamp_jacobian)
_hard_rules("moment", clamp_moment)
layer(nn.Hardtanh, F.hardtanh, "min_val", "max_val")
layer(nn.ReLU6, F.relu6)
layer(nn.Hardsigmoid, F.hardsigmoid)
