"""Variance and covariance after each layer: sampled, and propagated whole or diagonal."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penumbra.propagation import propagate
from penumbra.propagation.covariance import propagate_covariance

SAMPLES = 4_000


@dataclass(frozen=True)
class Stage:
    """What stands after one layer, averaged over the pictures."""

    variance: float  # mean over the units, by sampling
    diagonal: float  # the same by `propagate`: variances alone
    full: float  # the same by `propagate_covariance`
    share: float  # of the squared covariance matrix that is off its diagonal, by sampling
    matrix: Tensor  # mean absolute covariance by sampling, units in the order row, column, channel


def measure(model: nn.Sequential, pieces: list[nn.Sequential], x: Tensor, seed: int) -> list[Stage]:
    """Every stage of `pieces` (beginnings of `model`) on the pictures x."""
    sampled = _sampled(model, pieces, x, seed)
    found = []
    with torch.no_grad():
        dense = dense_from_noise(model, x)
        for piece, halves in zip(pieces, sampled, strict=True):
            first, second = halves
            mean = (first + second) / 2
            product = (first * second).sum((-1, -2))
            own = (first.diagonal(dim1=-2, dim2=-1) * second.diagonal(dim1=-2, dim2=-1)).sum(-1)
            found.append(
                Stage(
                    float(mean.diagonal(dim1=-2, dim2=-1).mean()),
                    float(propagate(piece)(x).variance.mean()),
                    float(_full(dense, model, piece, x)),
                    # The product of two independent estimates has no bias; a square would.
                    float(1 - own.sum() / product.sum()),
                    mean.abs().mean(0),
                )
            )
    return found


def _full(dense: nn.Sequential, model: nn.Sequential, piece: nn.Sequential, x: Tensor) -> Tensor:
    start = first_noise(model)
    inputs = model[:start](x).flatten(1)
    part = dense[: len(piece) - start]
    walk = propagate_covariance(part)
    return torch.stack([walk(one[None]).variance.mean() for one in inputs]).mean()


def first_noise(model: nn.Sequential) -> int:
    """Where the first dropout stands."""
    return next(i for i, layer in enumerate(model) if isinstance(layer, nn.Dropout))


def dense_from_noise(model: nn.Sequential, x: Tensor) -> nn.Sequential:
    """The model from its first dropout on, every convolution as the matrix that it is."""
    start = first_noise(model)
    value = model[:start](x[:1])
    layers: list[nn.Module] = []
    for layer in model[start:]:
        if isinstance(layer, nn.Conv2d):
            unit = torch.eye(value.numel()).view(-1, *value.shape[1:])
            silent = layer(torch.zeros_like(value)).flatten()
            matrix = nn.Linear(value.numel(), silent.numel())
            matrix.weight.data = (layer(unit).flatten(1) - silent).T.contiguous()
            matrix.bias.data = silent
            layers.append(matrix)
        else:
            layers.append(nn.Identity() if isinstance(layer, nn.Flatten) else layer)
        value = layer(value)
    return nn.Sequential(*layers).eval()


@torch.no_grad()
def _sampled(
    model: nn.Sequential, pieces: list[nn.Sequential], x: Tensor, seed: int
) -> list[tuple[Tensor, Tensor]]:
    """Covariance (pictures, units, units) after each piece, of two halves of the samples."""
    noisy = copy.deepcopy(model).train()
    ends = [len(piece) for piece in pieces]
    halves: list[list[Tensor]] = [[] for _ in pieces]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for one in x:
            for _ in range(2):
                value = one.expand(SAMPLES // 2, *one.shape)
                for index, layer in enumerate(noisy, start=1):
                    value = layer(value)
                    if index in ends:
                        shown = value.permute(0, 2, 3, 1) if value.dim() == 4 else value
                        matrix = torch.cov(shown.flatten(1).T)
                        halves[ends.index(index)].append(matrix)
    return [(torch.stack(found[0::2]), torch.stack(found[1::2])) for found in halves]
