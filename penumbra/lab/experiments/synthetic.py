"""Synthetic regression: a noisy sine, trained on [0, 20] and evaluated also outside of it.

One dropout before the last layer, so propagation is exact, and Monte Carlo converges to it as
1/sqrt(samples). The paper's text puts the dropout "prior to the last hidden layer", its caption
"prior to the last layer"; propagation is exact, as both claim, only with the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLACK, BLUE, GREY, ORANGE, RED, axes_grid
from penumbra.propagation import propagate
from penumbra.propagation.montecarlo import monte_carlo

NEEDS = None
TRAINED = (0.0, 20.0)
EVALUATED = (-10.0, 30.0)
FEW = 100  # samples of Monte Carlo in the paper's figure
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
        x, y = _observed(points, TRAINED)
        model = network().train()
        first = model[0]
        assert isinstance(first, nn.Linear)
        _spread_kinks(first)
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


def _observed(points: int, interval: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Random points of the interval and the noisy sine there, by torch's global random state."""
    x = torch.rand(points, 1) * (interval[1] - interval[0]) + interval[0]
    return x, torch.sin(x) + NOISE * torch.randn_like(x)


@torch.no_grad()
def _spread_kinks(layer: nn.Linear) -> None:
    """Spread the kinks of the first layer's units over [0, 20].

    torch's initialisation puts every kink near zero: half of the units are dead from the start,
    the sine is not learnt within minutes, and beyond 20 the network is constant.
    """
    layer.weight.mul_(0.3)
    kinks = torch.rand(len(layer.weight)) * (TRAINED[1] - TRAINED[0]) + TRAINED[0]
    layer.bias.copy_(-layer.weight[:, 0] * kinks)


@dataclass(frozen=True)
class Convergence:
    """Relative difference of the sampled standard deviation to the propagated one."""

    samples: np.ndarray
    difference: np.ndarray

    @property
    def slope(self) -> float:
        """The exponent of the difference as a function of the number of samples; in theory -0.5."""
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


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Prediction with both bands, mean standard deviations, and convergence of Monte Carlo."""
    model = train(setting.seed)
    x = torch.linspace(*EVALUATED, 401)[:, None]
    with torch.no_grad():
        ours = propagate(model)(x)
    sampled = monte_carlo(model, x, samples=FEW, seed=setting.seed)
    inside = ((x >= TRAINED[0]) & (x <= TRAINED[1]))[:, 0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed + 1)  # other points than those of the training
        inner = _observed(150, TRAINED)
        below = _observed(75, (EVALUATED[0], TRAINED[0]))
        above = _observed(75, (TRAINED[1], EVALUATED[1]))
    outer = torch.cat([below[0], above[0]]), torch.cat([below[1], above[1]])
    scatter = {"inside": inner, "outside": outer}
    curve = convergence(model, torch.linspace(*EVALUATED, 21)[:, None])
    return {
        "x": x[:, 0].tolist(),
        **{name: {"mean": m.mean[:, 0].tolist(), "std": m.std[:, 0].tolist()}
           for name, m in (("ours", ours), ("mc", sampled))},
        "points": {k: [v[:, 0].tolist() for v in pair] for k, pair in scatter.items()},
        "std": {name: {"inside": float(m.std[inside].mean()),
                       "outside": float(m.std[~inside].mean())}
                for name, m in (("ours", ours), ("mc", sampled))},
        "fit_rmse": float((ours.mean - torch.sin(x))[inside].square().mean().sqrt()),
        "convergence": {"samples": curve.samples.tolist(), "difference": curve.difference.tolist(),
                        "slope": curve.slope},
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Standard deviations inside and outside of the training interval, and the convergence."""
    std, curve = result["std"], result["convergence"]
    figures = rows(
        ["", "paper", "ours", f"MC, {FEW} samples"],
        [
            ["mean standard deviation on [0, 20]", "a figure only",
             *(f"{std[name]['inside']:.3f}" for name in ("ours", "mc"))],
            ["outside of it, up to 10 away", "larger",
             *(f"{std[name]['outside']:.3f}" for name in ("ours", "mc"))],
            ["exponent of the difference to MC over samples", "a falling curve; in theory -0.5",
             f"{curve['slope']:.3f}", ""],
        ],
    )  # fmt: skip
    steps = rows(
        ["samples", "relative difference of the standard deviation"],
        [[f"{int(n):,}", f"{d:.3%}"]
         for n, d in zip(curve["samples"], curve["difference"], strict=True)],
    )  # fmt: skip
    fit = f"The fit differs from the noiseless sine by {result['fit_rmse']:.3f} (RMSE on [0, 20])."
    return f"{figures}\n\n{steps}\n\n{fit}"


def draw(result: dict[str, Any]) -> Figure:
    """Left the fit with both bands, as in the paper; right the convergence."""
    figure, axes = axes_grid(2, 2, (5.2, 2.6))
    grid = axes[0, 0].get_gridspec()
    for cell in axes[:, 1]:
        cell.remove()
    x = np.array(result["x"])
    for cell, name, title in ((axes[0, 0], "ours", "propagated"), (axes[1, 0], "mc", f"MC-{FEW}")):
        for part, colour in (("inside", BLUE), ("outside", ORANGE)):
            cell.plot(*result["points"][part], ".", ms=3, color=colour, alpha=0.6,
                      label=f"samples {part} of the training interval")  # fmt: skip
        mean, std = np.array(result[name]["mean"]), np.array(result[name]["std"])
        cell.plot(x, mean, color=RED, label="prediction")
        for sign in (-1, 1):
            cell.plot(x, mean + sign * std, color=BLACK, linewidth=0.9,
                      label="prediction ± standard deviation" if sign > 0 else None)  # fmt: skip
        cell.set(title=title, ylabel="y", xlim=EVALUATED)
    axes[1, 0].set_xlabel("x")
    axes[0, 0].legend(fontsize=7, loc="upper left")
    right = figure.add_subplot(grid[:, 1])
    curve = result["convergence"]
    samples, difference = (np.array(curve[k]) for k in ("samples", "difference"))
    right.loglog(
        samples, difference, "o-", color=BLUE, label=f"measured, slope {curve['slope']:.3f}"
    )
    theory = difference[0] * (samples / samples[0]) ** -0.5
    right.loglog(samples, theory, "--", color=GREY, label="samples to the power of -0.5")
    right.set(xlabel="samples of Monte Carlo", title="convergence of MC to the propagated value")
    right.set_ylabel("relative absolute difference of the standard deviation")
    right.grid(alpha=0.25)
    right.legend()
    return figure
