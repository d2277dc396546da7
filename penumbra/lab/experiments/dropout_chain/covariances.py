"""Variance and covariance after each layer: sampled, and propagated in full or diagonal."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penumbra.propagation import propagate
from penumbra.propagation.covariance import propagate_covariance

SAMPLES = 4_000


@dataclass(frozen=True)
class LayerCovariance:
    """Variance and covariance after one layer, averaged over the inputs."""

    variance: float  # mean over the units, by sampling
    diagonal: float  # the same by `propagate`: variances alone
    full: float  # the same by `propagate_covariance`
    share: float  # of the squared covariance matrix that is off its diagonal, by sampling
    matrix: Tensor  # mean absolute covariance by sampling, units in the order row, column, channel


@torch.no_grad()
def measure(
    model: nn.Sequential, pieces: list[nn.Sequential], x: Tensor, seed: int
) -> list[LayerCovariance]:
    """After each of `pieces` (prefixes of `model`), on the inputs x."""
    found = []
    sampled, full = _sampled(model, pieces, x, seed), _full(model, pieces, x)
    for piece, (first, second), variance in zip(pieces, sampled, full, strict=True):
        mean = (first + second) / 2
        found.append(
            LayerCovariance(
                float(_diagonal(mean).mean()),
                float(propagate(piece)(x).variance.mean()),
                variance,
                # The product of two independent estimates is unbiased; a square is not.
                float(1 - (_diagonal(first) * _diagonal(second)).sum() / (first * second).sum()),
                mean.abs().mean(0),
            )
        )
    return found


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)


def _full(model: nn.Sequential, pieces: list[nn.Sequential], x: Tensor) -> list[float]:
    """Mean variance after each piece, by propagation of the full covariance matrix."""
    start = first_noise(model)
    dense = dense_from_noise(model, x)
    value: Any = model[:start](x).flatten(1)
    variances, done = [], 0
    for piece in pieces:
        value = propagate_covariance(dense[done : len(piece) - start])(value)
        done = len(piece) - start
        variances.append(float(value.variance.mean()))
    return variances


def first_noise(model: nn.Sequential) -> int:
    """The index of the first dropout."""
    return next(i for i, layer in enumerate(model) if isinstance(layer, nn.Dropout))


def dense_from_noise(model: nn.Sequential, x: Tensor) -> nn.Sequential:
    """The model from its first dropout on, with every convolution as a dense matrix."""
    start = first_noise(model)
    value = model[:start](x[:1])
    layers: list[nn.Module] = []
    for layer in list(model)[start:]:
        if isinstance(layer, nn.Conv2d):
            unit = torch.eye(value.numel()).view(-1, *value.shape[1:])
            bias = layer(torch.zeros_like(value)).flatten()
            matrix = nn.Linear(value.numel(), bias.numel())
            matrix.weight.data = (layer(unit).flatten(1) - bias).T.contiguous()
            matrix.bias.data = bias
            layers.append(matrix)
        else:
            layers.append(nn.Identity() if isinstance(layer, nn.Flatten) else layer)
        value = layer(value)
    return nn.Sequential(*layers).eval()


def _sampled(
    model: nn.Sequential, pieces: list[nn.Sequential], x: Tensor, seed: int
) -> list[tuple[Tensor, Tensor]]:
    """Covariance (inputs, units, units) after each piece, of two halves of the samples."""
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
                        matrix = torch.atleast_2d(torch.cov(shown.flatten(1).T))
                        halves[ends.index(index)].append(matrix)
    return [(torch.stack(found[0::2]), torch.stack(found[1::2])) for found in halves]
