"""Moments and likelihood of a dropout network by enumeration of the dropped inputs.

Neither linearised, nor Gaussian, nor sampled. Given which inputs are dropped, the hidden units h
are constants, and the output is

    ŷ = b₂ + Σ_j w₂_j h_j z_j / (1 - p),   z_j independent, 0 with probability p, else 1.

Its mean and variance are known (`enumerated_moments`). Its characteristic function is a product
over the units, which a sum over frequencies turns into the density at the target
(`exact_log_likelihood`). Up to `most` inputs are dropped at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from penumbra.lab.experiments.regression.prediction import Gaussian, propagated
from penumbra.lab.experiments.regression.stacked_networks import DropoutNetwork

# The noise damps a frequency t by exp(-t²/2τ): 7e-10 at 6.5 √τ. With this many steps up to there,
# the density repeats after 2π FREQUENCIES / 6.5 √τ = 186 noise deviations, where it is zero.
FREQUENCIES = 192
_REACH = 6.5
LEFT = 0.01  # probability of the masks that are not enumerated


def dropped_inputs_needed(rate: float, features: int) -> int:
    """How many inputs to drop at a time, so that the other masks have probability `LEFT`."""
    left, most = 1.0, -1
    while left > LEFT:
        most += 1
        left -= math.comb(features, most) * rate**most * (1 - rate) ** (features - most)
    return most


def enumerated_moments(model: DropoutNetwork, x: Tensor, most: int = 1) -> Gaussian:
    """Mean and variance by the law of total variance over the enumerated input masks.

    With at most one dropped input it takes one pass for each input and one more, and is exact to
    first order in the rate (to all orders for the hidden layer).
    """
    rate, bias = model.rate, model.output_layer.bias.double()
    share, first, second = 0.0, torch.zeros(len(x)).double(), torch.zeros(len(x)).double()
    for probability, jumps in _given_inputs(model, x, most):
        mean = (1 - rate) * jumps.sum(-1) + bias
        share += probability
        first += probability * mean
        second += probability * (rate * (1 - rate) * jumps.square().sum(-1) + mean**2)
    return Gaussian(first / share, (second / share - (first / share) ** 2).clamp(min=0))


def exact_log_likelihood(
    model: DropoutNetwork, x: Tensor, y: Tensor, tau: float, most: int = 1
) -> Tensor:
    """The limit of Monte Carlo's log-likelihood, by row, in units of the network's output.

    Masks with more than `most` dropped inputs get the propagated Gaussian: 0.3 % of them at rate
    0.005, 16 inputs and `most` = 1.
    """
    rate, bias = model.rate, model.output_layer.bias.double()
    left, total = 1.0, torch.zeros(len(x)).double()
    for probability, jumps in _given_inputs(model, x, most):
        left -= probability
        total += probability * _density(jumps, y - bias, rate, tau)
    rest = propagated(model, x, "jacobian").log_likelihood(y, tau).exp()
    # Below 1e-16 the sum is rounding error.
    return torch.log((total + max(left, 0.0) * rest).clamp(min=1e-16))


def _given_inputs(model: DropoutNetwork, x: Tensor, most: int) -> Iterator[tuple[float, Tensor]]:
    """The probability of each input mask, and w₂_j h_j / (1 - p) under it, (rows, hidden)."""
    rate, features = model.rate, x.shape[1]
    for kept in _masks(features, most):
        dropped = features - int(kept.sum())
        hidden = (x.double() * kept / (1 - rate)) @ model.hidden_layer.weight.double().T
        hidden = (hidden + model.hidden_layer.bias.double()).relu()
        probability = rate**dropped * (1 - rate) ** (features - dropped)
        yield probability, hidden * model.output_layer.weight.double() / (1 - rate)


def _masks(features: int, most: int) -> Iterator[Tensor]:
    """Which inputs are kept: all of them, all but one, and so on."""
    for dropped in range(min(most, features) + 1):
        for places in combinations(range(features), dropped):
            kept = torch.ones(features, dtype=torch.float64)
            kept[list(places)] = 0
            yield kept


def _density(jumps: Tensor, y: Tensor, rate: float, tau: float) -> Tensor:
    """The density of Σ_j jumps_j z_j plus noise at y, ∫ φ(t) exp(-ity - t²/2τ) dt / 2π, by row.

    The integrand at -t is the conjugate. For a smooth function that vanishes at both ends the
    trapezoid rule is accurate to rounding.
    """
    step = _REACH * math.sqrt(tau) / FREQUENCIES
    turn, turned = torch.exp(1j * step * jumps), torch.ones_like(jumps, dtype=torch.complex128)
    total = torch.full_like(y, 0.5)
    for k in range(1, FREQUENCIES + 1):
        turned = turned * turn
        transform = torch.prod(rate + (1 - rate) * turned, -1)
        shifted = (transform * torch.exp(-1j * (k * step) * y)).real
        total = total + shifted * math.exp(-0.5 * (k * step) ** 2 / tau)
    return (total * step / math.pi).clamp(min=0)
