"""Many small dropout networks trained as one computation.

A network is dropout, linear, ReLU, dropout, linear: Gal's. The stack has two leading axes, split
and grid point; a step of all of them is a handful of batched matrix products, with the gradient
written out, since autograd would keep and walk three times as many large tensors.

All grid points of a split start from the same weights and meet the same rows and the same random
numbers: the grid then compares rates and precisions, not luck. A split's numbers depend on the
seed and the split alone, so that it comes out the same in any company.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BATCH = 128
RATE = 1e-3  # Adam's
LENGTHSCALE = 1e-2

Progress = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class Stack:
    """Weights of splits x points networks, and the dropout rate of each."""

    w1: Tensor  # (splits, points, features, hidden)
    b1: Tensor  # (splits, points, hidden)
    w2: Tensor  # (splits, points, hidden)
    b2: Tensor  # (splits, points)
    rates: Tensor  # (splits, points)

    def network(self, split: int, point: int) -> nn.Sequential:
        """One of them as a plain module in eval mode, for `propagate` and `monte_carlo`."""
        features, hidden = self.w1.shape[2:]
        rate = float(self.rates[split, point])
        model = nn.Sequential(
            nn.Dropout(rate), nn.Linear(features, hidden), nn.ReLU(),
            nn.Dropout(rate), nn.Linear(hidden, 1),
        )  # fmt: skip
        model[1].weight.data = self.w1[split, point].mT.clone()
        model[1].bias.data = self.b1[split, point].clone()
        model[4].weight.data = self.w2[split, point][None].clone()
        model[4].bias.data = self.b2[split, point][None].clone()
        return model.eval()


def weight_decay(rates: Tensor, taus: Tensor, rows: int) -> Tensor:
    """Gal's factor of the squared weights, l² (1 - p) / (2 N τ), with the length scale l = 0.01.

    His code puts it beside the mean squared error of *normalised* targets while τ is in the
    target's own units; kept, as the paper's figures come from it.
    """
    return LENGTHSCALE**2 * (1 - rates) / (2 * rows * taus)


def train(
    x: Tensor,
    y: Tensor,
    rates: Tensor,
    decays: Tensor,
    hidden: int,
    *,
    epochs: int,
    seed: int,
    splits: Sequence[int],
    progress: Progress = iter,
) -> Stack:
    """Fit a stack by Adam on mean squared error + decay x squared weights, as Gal does.

    Args:
        x: normalised inputs, (splits, rows, features); y: targets, (splits, rows).
        rates, decays: of every network, (splits, points).
        splits: the number of each split, which its random numbers are drawn by.
        progress: wraps the epochs.
    """
    count, rows, features = x.shape
    points = rates.shape[1]
    generators = [np.random.Generator(np.random.SFC64([seed, split])) for split in splits]
    # Flat over both axes from here on: network k = split * points + point.
    w1, w2 = _initial(generators, features, hidden, points)
    b1 = torch.zeros(count * points, 1, hidden)
    b2 = torch.zeros(count * points, 1)
    parameters = [w1, b1, w2, b2]
    optimizer = torch.optim.Adam(parameters, lr=RATE, fused=True)
    decay = 2 * decays.reshape(-1, 1, 1)
    gain = 1 / (1 - rates.reshape(-1, 1, 1))
    threshold = mask_threshold(rates)[..., None, None]
    each = torch.arange(count)[:, None]
    # Large tensors are made once: fresh memory for each costs more than what is computed in it.
    room = [torch.empty(count * points * BATCH * hidden) for _ in range(3)]
    for _ in progress(range(epochs)):
        order = torch.from_numpy(np.stack([g.permutation(rows) for g in generators]))
        for start in range(0, rows, BATCH):
            picked = order[:, start : start + BATCH]
            size = (count * points, picked.shape[1], hidden)
            kept, *scratch = (r[: math.prod(size)].view(size) for r in room)
            xs = x[each, picked][:, None] * _kept(generators, threshold, picked.shape[1], features)
            ys = y[each, picked].repeat_interleave(points, 0)
            _kept(generators, threshold, picked.shape[1], hidden, out=kept)
            w1.grad, b1.grad, w2.grad, b2.grad = _gradients(
                xs.flatten(0, 1), ys, w1 * gain, b1, w2 * gain[..., 0], b2, kept, *scratch
            )
            w1.grad.mul_(gain).addcmul_(decay, w1)
            w2.grad.mul_(gain[..., 0]).addcmul_(decay[..., 0], w2)
            optimizer.step()
    shape = (count, points)
    return Stack(
        w1.detach().reshape(*shape, features, hidden), b1.detach().reshape(*shape, hidden),
        w2.detach().reshape(*shape, hidden), b2.detach().reshape(shape), rates,
    )  # fmt: skip


def _gradients(
    x: Tensor, y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kept: Tensor,
    hidden: Tensor, scratch: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of the mean squared error by w1, b1, w2, b2; x is masked, and the gains are in the weights.

    The slope of the hidden layer is w2 times `active`, and w2 is the same for all rows: it is
    multiplied onto the products' few results instead of onto the rows. `hidden` and `scratch` are
    room for results; `kept` is overwritten.
    """
    torch.baddbmm(b1, x, w1, out=hidden)
    active = kept.mul_(torch.gt(hidden, 0, out=scratch))
    hidden.mul_(active)
    predicted = torch.mul(hidden, w2[:, None], out=scratch).sum(-1).add_(b2)
    error = predicted.sub_(y).mul_(2 / y.shape[1])
    g2 = torch.bmm(error[:, None], hidden)[:, 0]
    active.mul_(error[..., None])
    g1 = torch.bmm(x.mT, active).mul_(w2[:, None])
    return g1, active.sum(1, keepdim=True).mul_(w2[:, None]), g2, error.sum(1, keepdim=True)


def _initial(
    generators: Sequence[np.random.Generator], features: int, hidden: int, points: int
) -> tuple[Tensor, Tensor]:
    """Glorot and Bengio's uniform weights (Keras' default, which Gal used); biases are zero."""

    def drawn(shape: tuple[int, ...], fan: int) -> Tensor:
        bound = (6 / fan) ** 0.5
        values = np.stack([g.uniform(-bound, bound, shape) for g in generators])
        return torch.from_numpy(values.astype(np.float32)).repeat_interleave(points, 0)

    return drawn((features, hidden), features + hidden), drawn((hidden,), hidden + 1)


def mask_threshold(rates: Any) -> Tensor:
    """What a random 16-bit number must reach for its unit to be kept.

    Four times as fast as a float in [0, 1), and off by less than 1e-5 in the rate.
    """
    return torch.round(torch.as_tensor(rates) * 2**16 - 2**15).to(torch.int16)


def random_numbers(generator: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Uniform 16-bit numbers, to be held against `mask_threshold`."""
    return torch.from_numpy(generator.integers(-(2**15), 2**15, shape, dtype=np.int16))


def _kept(
    generators: Sequence[np.random.Generator], threshold: Tensor, rows: int, units: int,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """1 where a unit is kept and 0 where not, (splits, points, rows, units)."""
    numbers = torch.stack([random_numbers(g, (rows, units)) for g in generators])[:, None]
    shape = (*threshold.shape[:2], rows, units)
    out = torch.empty(shape) if out is None else out.view(shape)
    return torch.ge(numbers, threshold, out=out)
