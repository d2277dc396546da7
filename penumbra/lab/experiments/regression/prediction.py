"""Predictive distributions of the small networks, and the likelihood of targets under them.

Predictions are in units of the normalised target, float64. Functions of a target expect prediction
and target in the same units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.lab.experiments.regression.stacked_networks import (
    NetworkStack,
    mask_threshold,
    random_numbers,
)
from penumbra.offline.metrics.coverage import Coverage
from penumbra.propagation.covariance import propagate_covariance

# Elements computed together: rows times hidden units squared (covariance matrices), or samples
# times rows times hidden units. Work that fits into a core's cache takes half the time.
_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Gaussian:
    """Mean and variance of each row's prediction."""

    mean: Tensor
    variance: Tensor

    def scaled(self, scale: float, shift: float) -> Gaussian:
        """The prediction times `scale` plus `shift`."""
        return Gaussian(self.mean * scale + shift, self.variance * scale**2)

    def log_likelihood(self, y: Tensor, tau: float) -> Tensor:
        """log N(y; mean, variance + 1/τ) of each row: the limit of `sampled_log_likelihood`."""
        variance = self.variance + 1 / tau
        return -0.5 * (torch.log(2 * math.pi * variance) + (y - self.mean) ** 2 / variance)

    def coverage(self, y: Tensor, tau: float) -> list[float]:
        """The share of rows within each central interval of `SHARES`, σ² = variance + 1/τ."""
        coverage = Coverage()
        coverage.add((y - self.mean).numpy(), (self.variance + 1 / tau).sqrt().numpy())
        return [row["observed"] for row in coverage.summary()]

    def sampled_log_likelihood(self, y: Tensor, tau: float, samples: int, seed: int) -> Tensor:
        """The paper's method: draw from the Gaussian, then apply Gal's formula for samples."""
        generator = torch.Generator().manual_seed(seed)
        mixture = Mixture(y, tau)
        for start in range(0, samples, 500):
            count = min(500, samples - start)
            drawn = torch.randn(count, len(y), generator=generator, dtype=torch.float64)
            mixture.add(self.mean + drawn * self.variance.sqrt())
        return mixture.log_likelihood()


class Mixture:
    """Moments of samples that are added in parts, and Gal's log-likelihood

    log 1/T Σ_t exp(-τ/2 (y - ŷ_t)²) - ½ log 2π + ½ log τ.
    """

    def __init__(self, y: Tensor, tau: float) -> None:
        self._y, self._tau = y, tau
        self._log_sum = torch.full_like(y, -math.inf)
        self._count = 0
        self._powers = torch.zeros(4, len(y), dtype=torch.float64)
        self._origin: Tensor | None = None

    def add(self, drawn: Tensor) -> None:
        """Add samples of every row, (samples, rows), float64."""
        if self._origin is None:
            self._origin = drawn.mean(0)  # powers of differences to it do not cancel out
        exponent = torch.logsumexp(-0.5 * self._tau * (self._y - drawn) ** 2, 0)
        self._log_sum = torch.logaddexp(self._log_sum, exponent)
        difference = drawn - self._origin
        power = torch.ones_like(difference)
        for total in self._powers:
            power = power * difference
            total += power.sum(0)
        self._count += len(drawn)

    def log_likelihood(self) -> Tensor:
        """Gal's log-likelihood of each row."""
        scale = 0.5 * math.log(self._tau / (2 * math.pi))
        return self._log_sum - math.log(self._count) + scale

    def moments(self) -> Gaussian:
        """Mean and unbiased variance of each row."""
        if self._origin is None:
            raise ValueError("no samples were added")
        first, second = self._powers[:2] / self._count
        unbiased = self._count / (self._count - 1)
        return Gaussian(self._origin + first, (second - first**2).clamp(min=0) * unbiased)

    def kurtosis(self) -> Tensor:
        """The fourth central moment over the squared variance: 3 for a Gaussian."""
        m1, m2, m3, m4 = self._powers / self._count
        variance = (m2 - m1**2).clamp(min=torch.finfo(torch.float64).tiny)
        return (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2


def propagated(model: nn.Sequential, x: Tensor, relu: str) -> Gaussian:
    """The model's output by full covariance propagation, in slices of the rows."""
    widest = max(layer.out_features for layer in model if isinstance(layer, nn.Linear))
    with torch.no_grad():
        walk = propagate_covariance(model, relu=relu)
        parts = [walk(rows) for rows in x.split(max(1, 2 * _ELEMENTS // widest**2))]
    return Gaussian(
        torch.cat([part.mean[:, 0] for part in parts]).double(),
        torch.cat([part.covariance[:, 0, 0] for part in parts]).double(),
    )


def propagated_stack(stack: NetworkStack, split: int, x: Tensor) -> Gaussian:
    """`propagated` with the paper's ReLU, for all grid points of a split at once: (points, rows).

    With one hidden layer the covariance matrices are not needed. For dropout noise of variance
    v = p/(1-p), hidden means a, active units J, and Σ = v W diag(x²) Wᵀ before the ReLU,

        w₂ᵀ (J Σ J + v diag(J Σ J + a aᵀ)) w₂
            = v Σ_d x_d² (Wᵀ J w₂)_d² + v Σ_j w₂_j² (J Σ_jj + a_j²).
    """
    w1, w2 = stack.w1[split], stack.w2[split][..., None]
    rate = stack.rates[split][:, None]
    noise = rate / (1 - rate)
    squares = (x**2).expand(len(w1), -1, -1)
    hidden = torch.baddbmm(stack.b1[split][:, None], x.expand(len(w1), -1, -1), w1)
    active = (hidden > 0).to(x)
    hidden = hidden * active
    mean = (hidden @ w2)[..., 0] + stack.b2[split][:, None]
    slope = (active * w2.mT) @ w1.mT
    through = (squares * slope**2).sum(-1)
    own = active * noise[..., None] * (squares @ w1**2) + hidden**2
    return Gaussian(mean.double(), (noise * (through + (own @ w2**2)[..., 0])).double())


def dropout_samples(
    stack: NetworkStack, split: int, point: int, x: Tensor, samples: int, seed: int
) -> Iterator[Tensor]:
    """Monte-Carlo passes of one network in parts (samples, rows), float64.

    Every row of every pass has its own masks, as in Gal's code.
    """
    generator = np.random.Generator(np.random.SFC64([seed, split]))
    rate = float(stack.rates[split, point])
    threshold = mask_threshold(rate)
    w1, b1 = stack.w1[split, point] / (1 - rate), stack.b1[split, point]
    w2, b2 = stack.w2[split, point] / (1 - rate), stack.b2[split, point]
    at_once = max(1, _ELEMENTS // (len(x) * len(b1)))
    for start in range(0, samples, at_once):
        count = min(at_once, samples - start)
        kept = random_numbers(generator, (count, *x.shape)) >= threshold
        hidden = torch.addmm(b1, (x * kept).flatten(0, 1), w1).relu_()
        hidden.mul_(random_numbers(generator, tuple(hidden.shape)) >= threshold)
        yield (hidden @ w2).add_(b2).view(count, -1).double()
