"""Dropout networks without linearisation, without a Gaussian, and without samples.

A dropped input is a jump to zero, not a small change. Networks trained with dropout learn to bear
the jump, and their slope says little about it: on naval, whose inputs repeat each other, x times
the slope is several times what dropping x really does. And at Gal's smallest rates most passes drop
nothing at all: samples pile up at one value, and a Gaussian of the same variance is not like them.

But given which inputs are dropped, the hidden units h are numbers, and the output is

    ŷ = b₂ + Σ_j w₂_j h_j z_j / (1 - p),   z_j independent, 0 with probability p, else 1.

Its mean and variance are known (`enumerated`), and so is its characteristic function, a product
over the units, which one sum over frequencies turns into the density at the target
(`exact_log_likelihood`). Dropped inputs are enumerated, up to `most` at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor, nn

from penumbra.lab.experiments.regression.prediction import Gaussian, propagated

# The noise damps a frequency t by exp(-t²/2τ): 7e-10 at 6.5 √τ. With so many steps up to there the
# density is repeated after 2π FREQUENCIES / 6.5 √τ = 186 noise deviations, where nothing is left.
FREQUENCIES = 192
_REACH = 6.5
LEFT = 0.01  # probability of the masks that are not enumerated


def enough(rate: float, features: int) -> int:
    """How many inputs at a time have to be dropped to have all masks but those of `LEFT`."""
    left, most = 1.0, -1
    while left > LEFT:
        most += 1
        left -= math.comb(features, most) * rate**most * (1 - rate) ** (features - most)
    return most


def enumerated(model: nn.Sequential, x: Tensor, most: int = 1) -> Gaussian:
    """Mean and variance by the law of total variance over the input masks, scaled to their share.

    `model` as `Stack.network` makes it. With one dropped input at most it costs a pass for each
    input and one more, and is exact to first order in the rate (all orders for the hidden layer).
    """
    rate, bias = model[0].p, model[4].bias.double()
    share, first, second = 0.0, torch.zeros(len(x)).double(), torch.zeros(len(x)).double()
    for probability, jumps in _given_inputs(model, x, most):
        mean = (1 - rate) * jumps.sum(-1) + bias
        share += probability
        first += probability * mean
        second += probability * (rate * (1 - rate) * jumps.square().sum(-1) + mean**2)
    return Gaussian(first / share, (second / share - (first / share) ** 2).clamp(min=0))


def exact_log_likelihood(
    model: nn.Sequential, x: Tensor, y: Tensor, tau: float, most: int = 1
) -> Tensor:
    """What Monte Carlo's log-likelihood tends to, of each row, in units of the network's output.

    Masks with more than `most` dropped inputs have the propagated Gaussian: 0.3 % of them at rate
    0.005 and 16 inputs, if that is one.
    """
    rate, bias = model[0].p, model[4].bias.double()
    left, total = 1.0, torch.zeros(len(x)).double()
    for probability, jumps in _given_inputs(model, x, most):
        left -= probability
        total += probability * _density(jumps, y - bias, rate, tau)
    rest = propagated(model, x, "jacobian").log_likelihood(y, tau).exp()
    # Rounding of the sum leaves 1e-16 where the density is smaller.
    return torch.log((total + max(left, 0.0) * rest).clamp(min=1e-16))


def _given_inputs(model: nn.Sequential, x: Tensor, most: int) -> Iterator[tuple[float, Tensor]]:
    """The probability of each input mask, and w₂_j h_j / (1 - p) under it, (rows, hidden)."""
    rate, features = model[0].p, x.shape[1]
    for kept in _masks(features, most):
        dropped = features - int(kept.sum())
        hidden = (x.double() * kept / (1 - rate)) @ model[1].weight.double().T
        hidden = (hidden + model[1].bias.double()).relu()
        probability = rate**dropped * (1 - rate) ** (features - dropped)
        yield probability, hidden * model[4].weight.double() / (1 - rate)


def _masks(features: int, most: int) -> Iterator[Tensor]:
    """Which inputs are kept: all of them, all but one, and so on."""
    for dropped in range(min(most, features) + 1):
        for places in combinations(range(features), dropped):
            kept = torch.ones(features, dtype=torch.float64)
            kept[list(places)] = 0
            yield kept


def _density(jumps: Tensor, y: Tensor, rate: float, tau: float) -> Tensor:
    """Of Σ_j jumps_j z_j plus noise at y: ∫ φ(t) exp(-ity - t²/2τ) dt / 2π, for each row.

    The integrand at -t is the conjugate, and a smooth function that vanishes at the end is summed
    by the trapezoid rule to rounding.
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
