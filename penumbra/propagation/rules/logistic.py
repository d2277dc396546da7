"""Sigmoid and tanh: moments in closed form, for a Gaussian of any width.

The logistic distribution is a mixture of Gaussians of different widths (Andrews and Mallows 1974),
and seven of them are enough (Monahan and Stefanski 1992 fit such a sum for another purpose):

    sigmoid(x) ≈ Σ_i w_i Φ(s_i x),   everywhere within 3.2e-8, its derivative as well.

With t_i = s_i/√(1 + s_i² σ²), and because sigmoid² = sigmoid - sigmoid',

    E[sigmoid]  = Σ_i w_i Φ(t_i μ)
    E[sigmoid'] = Σ_i w_i t_i φ(t_i μ)
    Var[sigmoid] = E[sigmoid] (1 - E[sigmoid]) - E[sigmoid'].

The difference cancels where σ is small; there seven Gauss-Hermite nodes take its place. And where
σ is not small but sigmoid is, far in its lower tail (the upper one is its mirror image), the
mixture's 3.2e-8 may be all of the variance. There sigmoid = eˣ sigmoid(-x), and a factor e^{kx}
only moves a Gaussian, by kσ²: of

    E[sigmoidᵏ] = e^{kμ + k²σ²/2} E[sigmoid(-Y)ᵏ],   Y ~ N(μ + kσ², σ²),

the last factor is nearly one, and seven nodes are again enough.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.gaussian import density, quadrature, upper_tail
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule

# Fitted to value and derivative on [0, 40] by reweighted least squares until the largest error of
# both was level; K = 5, 6, 7 terms reach 1.3e-6, 2.0e-7, 3.2e-8.
_WEIGHTS = (
    0.005343606556289024, 0.07593166798630445, 0.2532976386224068, 0.3493350340451148,
    0.23865252325668818, 0.07202950971192548, 0.005410019821271128,
)  # fmt: skip
_SLOPES = (
    1.3239746124768466, 1.013513768114578, 0.7813983330860663, 0.5993590334556542,
    0.4566242577797232, 0.3462780053945232, 0.25955128770878194,
)  # fmt: skip
_NODES = 7
# Where the two are about equally good: 1e-6 of the nodes, 4e-9 (6e-4 of a small variance) of the
# mixture.
_SWITCH = 0.7
# The tail begins where |μ| is so many σ (and at least 2σ², beyond which it moves out of the tail):
# up to σ = 1.5 the standard deviation is right to 8e-5, the mixture's there to 2e-4.
_FAR = 5.0


def logistic(x: Moments) -> Moments:
    """E and Var of the sigmoid of a Gaussian, in float64 right to 3e-7 and 1e-6 for any μ and σ."""
    std = x.variance.sqrt()
    # The nodes see at most the width up to which they are used: beyond it they are not taken.
    mean, variance = quadrature(torch.sigmoid, x.mean, x.variance.clamp(max=_SWITCH**2), _NODES)
    # First order errs by about σ²/2, a difference of rounded values by ε/σ.
    tiny = std < torch.finfo(std.dtype).eps ** (1 / 3)
    variance = torch.where(tiny, x.variance * _slope(x.mean).square(), variance)
    reach = torch.minimum((x.mean / _FAR).square(), 0.5 * x.mean.abs())
    narrow, far = std < _SWITCH, x.variance <= reach
    mean, variance = (
        torch.where(narrow, of_nodes, torch.where(far, of_tail, of_mixture))
        for of_nodes, of_tail, of_mixture in zip(
            (mean, variance), _tail(x, reach), _mixture(x), strict=True
        )
    )
    return Moments(mean, variance)


def _tail(x: Moments, reach: Tensor) -> tuple[Tensor, Tensor]:
    distance = x.mean.abs()
    # At most as wide as where it is taken, which keeps the exponents below zero; and never zero,
    # where a root has no gradient.
    width = torch.minimum(x.variance, reach).clamp(min=torch.finfo(reach.dtype).eps)
    first, second = (
        torch.exp(k * (0.5 * k * width - distance))
        * quadrature(lambda y, k=k: torch.sigmoid(-y) ** k, k * width - distance, width, _NODES)[0]
        for k in (1, 2)
    )
    lower = torch.where(x.mean > 0, 1 - first, first)
    return lower, (second - first.square()).clamp(min=0)


def _mixture(x: Moments) -> tuple[Tensor, Tensor]:
    lower = torch.zeros_like(x.mean)  # E of sigmoid(-|μ|), so that 1 - E keeps its digits
    slope = torch.zeros_like(x.mean)
    distance = x.mean.abs()
    for weight, steepness in zip(_WEIGHTS, _SLOPES, strict=True):
        t = steepness / (1 + steepness**2 * x.variance).sqrt()
        lower = lower + weight * upper_tail(t * distance)
        slope = slope + weight * t * density(t * distance)
    variance = (lower * (1 - lower) - slope).clamp(min=0)
    return torch.where(x.mean > 0, 1 - lower, lower), variance


def _slope(v: Tensor) -> Tensor:
    return torch.sigmoid(v) * torch.sigmoid(-v)


def _sigmoid_rules(form: str, moments: Callable[[Moments], Moments]) -> None:
    @rule(F.sigmoid, torch.sigmoid, torch.sigmoid_, "sigmoid", "sigmoid_", smooth=form)
    def sigmoid(x: Moments) -> Moments:
        """1 / (1 + e⁻ˣ)."""
        return moments(x)

    @rule(F.tanh, torch.tanh, torch.tanh_, "tanh", "tanh_", smooth=form)
    def tanh(x: Moments) -> Moments:
        """2 sigmoid(2x) - 1; of the mean where it is first order, torch's own."""
        stretched = moments(Moments(2 * x.mean, 4 * x.variance))
        mean = torch.tanh(x.mean) if form == "jacobian" else 2 * stretched.mean - 1
        return Moments(mean, 4 * stretched.variance)


def _first_order(x: Moments) -> Moments:
    """f'(μ)² Var[x]."""
    return Moments(torch.sigmoid(x.mean), x.variance * _slope(x.mean).square())


_sigmoid_rules("moment", logistic)
_sigmoid_rules("jacobian", _first_order)
layer(nn.Sigmoid, torch.sigmoid)
layer(nn.Tanh, torch.tanh)
