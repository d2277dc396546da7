"""Smooth activations without a closed form: softplus, GELU, SiLU, Mish and hardswish.

Their moments are integrated numerically, by a rule that depends on the width of the Gaussian:

- tiny σ: first order, f'(μ)² σ², because differences of f would be lost in rounding;
- up to σ = reach/12.8: Gauss-Hermite with 16 nodes;
- wider: f is a ReLU plus a remainder that vanishes outside of ±reach. The ReLU has a closed form.
  The density is smooth on the scale of the remainder, whose integral takes Gauss-Legendre with 16
  nodes on each side of zero. (Gauss-Hermite nodes would be too far apart for the bend.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.gaussian import density, quadrature, rectified, upper_tail
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule

_NODES = 16
# Gauss-Hermite up to here, in units of the reach: both rules are about equally accurate.
_SWITCH = 1 / 12.8
_POINTS, _WEIGHTS = (part.tolist() for part in np.polynomial.legendre.leggauss(_NODES))


@dataclass(frozen=True)
class Smooth:
    """An activation f and, for x > 0, its remainders f(-x) and f(x) - x to a ReLU.

    The second is `above`, or the same as the first. Beyond `reach` both are below 2e-6.
    """

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    remainder: Callable[[float], float]
    reach: float
    above: Callable[[float], float] | None = None

    def jacobian(self, x: Moments) -> Moments:
        """f'(μ)² Var[x]."""
        return Moments(self.function(x.mean), x.variance * self.slope(x.mean).square())

    def moment(self, x: Moments) -> Moments:
        """E[f(X)] and Var[f(X)] of a Gaussian X, right to 3e-6 and 6e-6 in float64."""
        std = x.variance.sqrt()
        switch = self.reach * _SWITCH
        mean, variance = quadrature(self.function, x.mean, x.variance, _NODES)
        # First order errs by about σ²/2, for positive μ by less, since f(x) approaches x. A
        # difference of rounded values errs by ε/σ, for positive μ by ε μ/σ.
        straight = 1 + x.mean.clamp(min=0).square() / 8
        tiny = std < torch.finfo(std.dtype).eps ** (1 / 3) * straight
        variance = torch.where(tiny, self.jacobian(x).variance, variance)
        wide = self._wide(Moments(x.mean, x.variance.clamp(min=switch**2)))
        return Moments(
            torch.where(std > switch, wide.mean, mean),
            torch.where(std > switch, wide.variance, variance),
        )

    def _wide(self, x: Moments) -> Moments:
        """The ReLU in closed form, plus the remainder at nodes on both sides of zero."""
        std = x.variance.sqrt()
        first, second = torch.zeros_like(std), torch.zeros_like(std)
        for point, weight in zip(_POINTS, _WEIGHTS, strict=True):
            node = 0.5 * self.reach * (1 + point)
            r = self.remainder(node)
            share = 0.5 * self.reach * weight * r
            above, below = density((node - x.mean) / std), density((node + x.mean) / std)
            if self.above is not None and r != 0:
                s = self.above(node)
                # The share of the one side, times the ratio of the two remainders.
                above, r_above = above * (s / r), s
            else:
                r_above = r
            # The excess of f over the ReLU, and of f² over its square.
            first = first + share * (below + above)
            second = second + share * (r * below + (r_above + 2 * node) * above)
        first, second = first / std, second / std
        limit, variance = rectified(x.mean, x.variance)
        variance = variance + second - first * (2 * limit + first)  # E[f²] - E[f]²
        return Moments(limit + first, variance.clamp(min=0))


_SILU = Smooth(
    F.silu, lambda v: torch.sigmoid(v) * (1 + v * torch.sigmoid(-v)),
    lambda x: -x / (1 + math.exp(x)), reach=16,
)  # fmt: skip
_GELU = Smooth(
    F.gelu, lambda v: upper_tail(-v) + v * density(v),
    lambda x: -0.5 * x * math.erfc(x * math.sqrt(0.5)), reach=8,
)  # fmt: skip

# GELU's other form: x (1 + tanh(k (x + c x³))) / 2.
_K, _C = math.sqrt(2 / math.pi), 0.044715


def _tanh_gelu_slope(v: Tensor) -> Tensor:
    inner = torch.tanh(_K * (v + _C * v**3))
    return 0.5 * (1 + inner) + 0.5 * v * (1 - inner.square()) * _K * (1 + 3 * _C * v.square())


_TANH_GELU = Smooth(
    lambda v: F.gelu(v, approximate="tanh"), _tanh_gelu_slope,
    lambda x: -0.5 * x * (1 - math.tanh(_K * (x + _C * x**3))), reach=8,
)  # fmt: skip


def _mish_slope(v: Tensor) -> Tensor:
    bent = torch.tanh(F.softplus(v))
    return bent + v * (1 - bent.square()) * torch.sigmoid(v)


_MISH = Smooth(
    F.mish, _mish_slope,
    lambda x: -x * math.tanh(math.log1p(math.exp(-x))), reach=18,
    above=lambda x: x * (math.tanh(x + math.log1p(math.exp(-x))) - 1),
)  # fmt: skip
_HARDSWISH = Smooth(
    F.hardswish,
    lambda v: torch.where(v.abs() < 3, (2 * v + 3) / 6, (v > 0).to(v)),
    lambda x: x * min(x - 3, 0.0) / 6, reach=3,
)  # fmt: skip

# As a function of -x it is softplus without a threshold.
_MINUS_LOGSIGMOID = Smooth(
    lambda v: -F.logsigmoid(-v), torch.sigmoid, lambda x: math.log1p(math.exp(-x)), reach=16
)


def _softplus(threshold: float) -> Smooth:
    """Softplus of rate one; torch returns v itself where it is above the threshold."""
    return Smooth(
        lambda v: F.softplus(v, 1.0, threshold),
        lambda v: torch.where(v > threshold, torch.ones_like(v), torch.sigmoid(v)),
        lambda x: math.log1p(math.exp(-x)),
        reach=16,
    )


def _smooth_rules(form: str, apply: Callable[[Smooth, Moments], Moments]) -> None:
    @rule(F.silu, smooth=form)
    def silu(x: Moments, inplace: bool = False) -> Moments:
        """x sigmoid(x)."""
        return apply(_SILU, x)

    @rule(F.gelu, smooth=form)
    def gelu(x: Moments, approximate: str = "none") -> Moments:
        """x Φ(x), or its form with tanh."""
        return apply(_GELU if approximate == "none" else _TANH_GELU, x)

    @rule(F.mish, smooth=form)
    def mish(x: Moments, inplace: bool = False) -> Moments:
        """x tanh(softplus(x))."""
        return apply(_MISH, x)

    @rule(F.hardswish, smooth=form)
    def hardswish(x: Moments, inplace: bool = False) -> Moments:
        """x clamp(x + 3, 0, 6) / 6 (MobileNetV3)."""
        return apply(_HARDSWISH, x)

    @rule(F.logsigmoid, smooth=form)
    def log_sigmoid(x: Moments) -> Moments:
        """-softplus(-x)."""
        result = apply(_MINUS_LOGSIGMOID, Moments(-x.mean, x.variance))
        return Moments(-result.mean, result.variance)

    @rule(F.softplus, smooth=form)
    def softplus(x: Moments, beta: float = 1.0, threshold: float = 20.0) -> Moments:
        """log(1 + e^(βx)) / β."""
        stretched = Moments(x.mean * beta, x.variance * beta**2)
        result = apply(_softplus(threshold), stretched)
        return Moments(result.mean / beta, result.variance / beta**2)


_smooth_rules("moment", Smooth.moment)
_smooth_rules("jacobian", Smooth.jacobian)
layer(nn.SiLU, F.silu)
layer(nn.GELU, F.gelu, "approximate")
layer(nn.Mish, F.mish)
layer(nn.Hardswish, F.hardswish)
layer(nn.LogSigmoid, F.logsigmoid)
layer(nn.Softplus, F.softplus, "beta", "threshold")
