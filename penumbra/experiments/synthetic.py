"""The paper's synthetic regression: a noisy sine, seen on [0, 20] and asked about outside of it.

One dropout before the last layer, so propagation is exact, and Monte Carlo must approach it as
1/sqrt(samples).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.montecarlo import monte_carlo
from penumbra.propagation import propagate

SEEN = (0.0, 20.0)
NOISE = 0.3
SAMPLES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)


def network() -> nn.Sequential:
    """Three hidden layers of 100 units; a rate of 0.1 before the last layer."""
    return nn.Sequential(
        nn.Linear(1, 100), nn.ReLU(),
        nn.Linear(100, 100), nn.ReLU(),
        nn.Linear(100, 100), nn.ReLU(),
        nn.Dropout(0.1), nn.Linear(100, 1),
    )  # fmt: skip


def train(seed: int = 0, points: int = 1_000, steps: int = 1_500) -> nn.Sequential:
    """The network fitted to sin(x) plus Gaussian noise of standard deviation 0.3."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.rand(points, 1) * (SEEN[1] - SEEN[0]) + SEEN[0]
        y = torch.sin(x) + NOISE * torch.randn_like(x)
        model = network().train()
        _spread_kinks(model[0])
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        for _ in range(steps):
            batch = torch.randint(points, (64,))
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def _spread_kinks(layer: nn.Linear) -> None:
    """Let the first layer's units bend all over [0, 20].

    torch's initialisation puts every bend near zero: half of the units are dead from the start,
    the sine is not learnt within minutes, and beyond 20 nothing is left that could vary.
    """
    layer.weight.mul_(0.3)
    bends = torch.rand(len(layer.weight)) * (SEEN[1] - SEEN[0]) + SEEN[0]
    layer.bias.copy_(-layer.weight[:, 0] * bends)


@dataclass(frozen=True)
class Convergence:
    """Relative difference of the sampled standard deviation to the propagated one."""

    samples: np.ndarray
    difference: np.ndarray

    @property
    def slope(self) -> float:
        """The exponent of the difference's fall with the number of samples; theory says -0.5."""
        return float(np.polyfit(np.log(self.samples), np.log(self.difference), 1)[0])


def convergence(
    model: nn.Module, x: Tensor, samples: Sequence[int] = SAMPLES, repetitions: int = 8
) -> Convergence:
    """Mean relative absolute difference of standard deviations over x, and over repetitions."""
    with torch.no_grad():
        propagated = propagate(model)(x).std.double()
    difference = [
        np.mean(
            [
                float((_sampled_std(model, x, count, seed) / propagated - 1).abs().mean())
                for seed in range(max(1, min(repetitions, 30_000 // count)))
            ]
        )
        for count in samples
    ]
    return Convergence(np.asarray(samples, float), np.asarray(difference))


def _sampled_std(model: nn.Module, x: Tensor, count: int, seed: int) -> Tensor:
    return monte_carlo(model, x, samples=count, seed=seed).std
