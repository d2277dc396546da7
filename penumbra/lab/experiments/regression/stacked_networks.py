"""Many small dropout networks, trained as one computation.

The stack has two leading axes, split and grid point. A training step of all networks is a few
batched matrix products; the gradient is written out, since autograd would store three times as many
large tensors.

All grid points of a split start from the same weights and get the same batches and random numbers,
so that the grid compares rates and precisions alone. The random numbers of a split depend on the
seed and the number of the split only, not on which other splits are trained with it.
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


class DropoutNetwork(nn.Sequential):
    """Gal's network: dropout, linear, ReLU, dropout, linear."""

    def __init__(self, features: int, hidden: int, rate: float) -> None:
        super().__init__(
            nn.Dropout(rate), nn.Linear(features, hidden), nn.ReLU(),
            nn.Dropout(rate), nn.Linear(hidden, 1),
        )  # fmt: skip

    @property
    def rate(self) -> float:
        """The dropout rate of inputs and hidden units."""
        dropout = self[0]
        assert isinstance(dropout, nn.Dropout)
        return dropout.p

    @property
    def hidden_layer(self) -> nn.Linear:
        """From the inputs to the hidden units."""
        layer = self[1]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def output_layer(self) -> nn.Linear:
        """From the hidden units to the prediction."""
        layer = self[4]
        assert isinstance(layer, nn.Linear)
        return layer


@dataclass(frozen=True)
class NetworkStack:
    """Weights and dropout rates of splits x points networks."""

    w1: Tensor  # (splits, points, features, hidden)
    b1: Tensor  # (splits, points, hidden)
    w2: Tensor  # (splits, points, hidden)
    b2: Tensor  # (splits, points)
    rates: Tensor  # (splits, points)

    def network(self, split: int, point: int) -> DropoutNetwork:
        """One of them as a module in eval mode, for `propagate` and `monte_carlo`."""
        features, hidden = self.w1.shape[2:]
        model = DropoutNetwork(features, hidden, float(self.rates[split, point]))
        model.hidden_layer.weight.data = self.w1[split, point].mT.clone()
        model.hidden_layer.bias.data = self.b1[split, point].clone()
        model.output_layer.weight.data = self.w2[split, point][None].clone()
        model.output_layer.bias.data = self.b2[split, point][None].clone()
        return model.eval()


def weight_decay(rates: Tensor, taus: Tensor, rows: int) -> Tensor:
    """Gal's factor of the squared weights, l² (1 - p) / (2 N τ), with the length scale l = 0.01.

    His code adds it to the mean squared error of *normalised* targets although τ is in units of the
    target. We do the same, since the paper's figures were obtained this way.
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
) -> NetworkStack:
    """Fit a stack by Adam on mean squared error + decay x squared weights, as Gal does.

    Args:
        x: normalised inputs, (splits, rows, features); y: targets, (splits, rows).
        rates, decays: of every network, (splits, points).
        splits: the number of each split, which seeds its random numbers.
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
    # Large tensors are allocated once: allocation costs more than the computation in them.
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
    return NetworkStack(
        w1.detach().reshape(*shape, features, hidden), b1.detach().reshape(*shape, hidden),
        w2.detach().reshape(*shape, hidden), b2.detach().reshape(shape), rates,
    )  # fmt: skip


def _gradients(
    x: Tensor, y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kept: Tensor,
    hidden: Tensor, scratch: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the mean squared error by w1, b1, w2, b2; x is masked, weights are scaled.

    The slope of the hidden layer is w2 times `active`. Since w2 is the same for all rows, it
    multiplies the results of the products instead of the rows. `hidden` and `scratch` are buffers;
    `kept` is overwritten.
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
    """A unit is kept if its random 16-bit number is at least this.

    Four times as fast as a float in [0, 1), with an error of the rate below 1e-5.
    """
    return torch.round(torch.as_tensor(rates) * 2**16 - 2**15).to(torch.int16)


def random_numbers(generator: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Uniform 16-bit numbers, to be compared with `mask_threshold`."""
    return torch.from_numpy(generator.integers(-(2**15), 2**15, shape, dtype=np.int16))


def _kept(
    generators: Sequence[np.random.Generator], threshold: Tensor, rows: int, units: int,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """1 for units that are kept and 0 for others, (splits, points, rows, units)."""
    numbers = torch.stack([random_numbers(g, (rows, units)) for g in generators])[:, None]
    shape = (*threshold.shape[:2], rows, units)
    out = torch.empty(shape) if out is None else out.view(shape)
    return torch.ge(numbers, threshold, out=out)
