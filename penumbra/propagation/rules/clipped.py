"""Activations with two corners: clamp, hardtanh, ReLU6 and hardsigmoid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.gaussian import corner, rectified, standardized
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule

_CLAMP = (torch.clamp, torch.clip, torch.clamp_, "clamp", "clip", "clamp_", "clip_")
_HARDTANH = (F.hardtanh, F.hardtanh_)


@rule(*_CLAMP, relu="jacobian")
def clamp_jacobian(x: Moments, min: float | None = None, max: float | None = None) -> Moments:
    """The variance passes where the mean stands strictly between the bounds."""
    _check(min, max)
    stuck = torch.zeros_like(x.mean, dtype=torch.bool)
    stuck = stuck if min is None else stuck | (x.mean <= min)
    stuck = stuck if max is None else stuck | (x.mean >= max)
    return Moments(x.mean.clamp(min, max), torch.where(stuck, 0.0, x.variance))


@rule(*_CLAMP, relu="moment")
def clamp_moment(x: Moments, min: float | None = None, max: float | None = None) -> Moments:
    """Mean and variance of a Gaussian clipped to [l, u].

    l + max(0, X-l) - max(0, X-u) has two corners. With lift g and loss h of each (see
    `gaussian.corner`) and o_l = max(0, l-μ)/σ, o_u = max(0, μ-u)/σ, how far the mean is outside,

        E = clamp(μ) + σ (g_l - g_u)
        Var = σ² (P(l < X < u) - h_l - h_u + 2 (g_l g_u + g_u o_l + g_l o_u)).

    In float32 both are right to 1e-6 σ and 1e-6 σ² (tests/propagation/test_clipped.py).
    """
    _check(min, max)
    if max is None:
        raised = rectified(x.mean - min, x.variance)
        return Moments(min + raised.mean, raised.variance)
    if min is None:
        lowered = rectified(max - x.mean, x.variance)
        return Moments(max - lowered.mean, lowered.variance)
    min, max = float(min), float(max)  # a graph of integers next to floats is not exported
    std = x.variance.sqrt()
    low, high = corner(x.mean - min, std), corner(x.mean - max, std)
    below = standardized(min - x.mean, std).clamp(min=0)
    above = standardized(x.mean - max, std).clamp(min=0)
    mixed = low.lift * high.lift + high.lift * below + low.lift * above
    kept = low.positive - high.positive - low.loss - high.loss + 2 * mixed
    mean = x.mean.clamp(min, max) + std * (low.lift - high.lift)
    # No distribution on an interval is wider than half of it at either end.
    return Moments(mean, (x.variance * kept).clamp(0.0, (max - min) ** 2 / 4))


def _check(low: float | None, high: float | None) -> None:
    if isinstance(low, (Tensor, Moments)) or isinstance(high, (Tensor, Moments)):
        raise PropagationError("clamp has a rule for bounds that are numbers, not tensors")
    if low is None and high is None:
        raise PropagationError("clamp needs a lower or an upper bound")
    if None not in (low, high) and low > high:
        raise PropagationError(f"clamp's lower bound {low} is above its upper bound {high}")


def _hard_rules(form: str, clamp: object) -> None:
    @rule(*_HARDTANH, relu=form)
    def hardtanh(
        x: Moments, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
    ) -> Moments:
        """Clamp, by its other name."""
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
