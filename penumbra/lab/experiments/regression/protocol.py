"""The paper's protocol for one data set: grid search, training of the chosen networks, test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penumbra.lab.experiments.regression.data import Normalisation, RegressionSet
from penumbra.lab.experiments.regression.enumeration import (
    dropped_inputs_needed,
    enumerated_moments,
    exact_log_likelihood,
)
from penumbra.lab.experiments.regression.prediction import (
    Gaussian,
    Mixture,
    dropout_samples,
    propagated,
    propagated_stack,
)
from penumbra.lab.experiments.regression.stacked_networks import NetworkStack, train, weight_decay

VALIDATION = 0.2  # of the training rows, the last ones: Gal's choice
OURS, SAMPLED = 0, 1  # the two networks of a split: chosen by our likelihood, by Monte Carlo's

Bar = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class ProtocolSettings:
    """The parameters of the protocol."""

    epochs: int = 400
    samples: int = 10_000
    grid_samples: int = 200  # of Monte Carlo, for its own choice on the grid
    seed: int = 0


@dataclass(frozen=True)
class NormalisedRows:
    """Training rows of all splits, normalised by themselves: (splits, rows, …)."""

    x: Tensor
    y: Tensor
    scales: list[Normalisation]

    @classmethod
    def of(cls, data: RegressionSet, rows: list[np.ndarray]) -> NormalisedRows:
        """The rows of each split, by their indices."""
        scales = [Normalisation.on(data.x[r], data.y[r]) for r in rows]
        pairs = list(zip(scales, rows, strict=True))
        x = np.stack([s.inputs(data.x[r]) for s, r in pairs])
        y = np.stack([s.targets(data.y[r]) for s, r in pairs])
        return cls(torch.from_numpy(x), torch.from_numpy(y), scales)


def measure(data: RegressionSet, settings: ProtocolSettings, bar: Bar) -> dict[str, Any]:
    """The figures of every split, as lists in the order of the splits."""
    grid = torch.cartesian_prod(torch.tensor(data.rates), torch.tensor(data.taus))
    with torch.no_grad():
        chosen = _choose(data, settings, bar)
        stack, part = _final(data, grid[chosen], settings, bar)
        splits = bar(range(len(data.splits)), "test")
        tested = [_test(data, stack, part, grid[chosen], i, settings) for i in splits]
    return {
        "rows": len(data.x), "features": data.x.shape[1], "hidden": data.hidden,
        "grid": grid.tolist(), "chosen": chosen.tolist(),
        "splits": {name: [one[name] for one in tested] for name in tested[0]},
    }  # fmt: skip


def measure_without_gaussian(
    data: RegressionSet, settings: ProtocolSettings, bar: Bar, part: dict[str, Any]
) -> dict[str, list[float]]:
    """Moments and likelihood by enumeration, for the networks that `measure` has chosen."""
    points = torch.tensor(part["grid"])[torch.tensor(part["chosen"])[:, :1]]
    names = ("enumerated_ll", "enumerated_variance", "exact_ll")
    found: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        stack, rows = _final(data, points, settings, bar)
        for i in bar(range(len(data.splits)), "exact likelihood"):
            scale, test = rows.scales[i], data.splits[i][1]
            x = torch.from_numpy(scale.inputs(data.x[test]))
            y = torch.from_numpy((data.y[test] - scale.y_mean) / scale.y_std)
            tau = float(points[i, OURS, 1]) * scale.y_std**2
            model, unit = stack.network(i, OURS), math.log(scale.y_std)
            most = dropped_inputs_needed(float(points[i, OURS, 0]), x.shape[1])
            moments = enumerated_moments(model, x, most)
            found["enumerated_ll"].append(float(moments.log_likelihood(y, tau).mean()) - unit)
            found["enumerated_variance"].append(float(moments.variance.mean()) * scale.y_std**2)
            likelihood = exact_log_likelihood(model, x, y, tau, most)
            found["exact_ll"].append(float(likelihood.mean()) - unit)
    return found


def _final(
    data: RegressionSet, chosen: Tensor, settings: ProtocolSettings, bar: Bar
) -> tuple[NetworkStack, NormalisedRows]:
    """The chosen networks, (splits, 2), trained on all training rows."""
    part = NormalisedRows.of(data, [train for train, _ in data.splits])
    return _trained(data, part, chosen, settings, bar, "training"), part


def _trained(
    data: RegressionSet,
    part: NormalisedRows,
    points: Tensor,
    settings: ProtocolSettings,
    bar: Bar,
    what: str,
) -> NetworkStack:
    rates, taus = points.unbind(-1)
    decays = weight_decay(rates, taus, part.x.shape[1])
    return train(
        part.x, part.y, rates.contiguous(), decays, data.hidden, epochs=settings.epochs,
        seed=settings.seed, splits=range(len(data.splits)),
        progress=lambda epochs: bar(epochs, what),
    )  # fmt: skip


def _choose(data: RegressionSet, settings: ProtocolSettings, bar: Bar) -> Tensor:
    """The most likely grid point of each split on its validation rows, (splits, 2).

    Ours by the closed form; Monte Carlo's by samples, since the paper searched for each.

    τ affects training only through the weight decay, at most 3e-6 here. For the choice, the points
    of one rate therefore share the network of the middle τ: 117 of 120 choices (yacht, Boston,
    energy) were the same with a network for each. The chosen network is trained with the decay of
    its own τ.
    """
    borders = [int((1 - VALIDATION) * len(train)) for train, _ in data.splits]
    part = NormalisedRows.of(data, [t[:b] for (t, _), b in zip(data.splits, borders, strict=True)])
    middle = data.taus[len(data.taus) // 2]
    points = torch.tensor([[rate, middle] for rate in data.rates])
    stack = _trained(data, part, points.expand(len(data.splits), -1, -1), settings, bar, "grid")
    chosen = []
    for i in bar(range(len(data.splits)), "choice"):
        scale = part.scales[i]
        held_out = data.splits[i][0][borders[i] :]
        x = torch.from_numpy(scale.inputs(data.x[held_out]))
        y = torch.from_numpy(data.y[held_out])
        gaussians = propagated_stack(stack, i, x).scaled(scale.y_std, scale.y_mean)
        ours, sampled = [], []  # by rate, then by τ: the order of the grid
        for k in range(len(data.rates)):
            one = Gaussian(gaussians.mean[k], gaussians.variance[k])
            ours += [one.log_likelihood(y, tau).mean() for tau in data.taus]
            drawn = list(dropout_samples(stack, i, k, x, settings.grid_samples, settings.seed))
            mixtures = [_mixture(drawn, y, tau, scale) for tau in data.taus]
            sampled += [mixture.log_likelihood().mean() for mixture in mixtures]
        chosen.append([int(np.argmax(ours)), int(np.argmax(sampled))])
    return torch.tensor(chosen)


def _mixture(drawn: Iterable[Tensor], y: Tensor, tau: float, scale: Normalisation) -> Mixture:
    mixture = Mixture(y, tau)
    for part in drawn:
        mixture.add(part * scale.y_std + scale.y_mean)
    return mixture


def _test(
    data: RegressionSet,
    stack: NetworkStack,
    part: NormalisedRows,
    points: Tensor,
    split: int,
    settings: ProtocolSettings,
) -> dict[str, Any]:
    """All figures of one split, in the target's own units."""
    scale, rows = part.scales[split], data.splits[split][1]
    x = torch.from_numpy(scale.inputs(data.x[rows]))
    y = torch.from_numpy(data.y[rows])
    tau = float(points[split, OURS, 1])
    figures: dict[str, Any] = {"rate": float(points[split, OURS, 0]), "tau": tau}

    def note(name: str, mean: Tensor, likelihood: Tensor) -> None:
        figures[f"{name}_rmse"] = float((y - mean).square().mean().sqrt())
        figures[f"{name}_ll"] = float(likelihood.mean())

    sampled: dict[str, Mixture] = {}
    for name, point in (("mc", OURS), ("mc_own_choice", SAMPLED)):
        if sampled and torch.equal(points[split, OURS], points[split, SAMPLED]):
            note(name, sampled["mc"].moments().mean, sampled["mc"].log_likelihood())
            continue  # the same network and the same samples
        drawn = dropout_samples(stack, split, point, x, settings.samples, settings.seed)
        sampled[name] = _mixture(drawn, y, float(points[split, point, 1]), scale)
        note(name, sampled[name].moments().mean, sampled[name].log_likelihood())
    moments = sampled["mc"].moments()
    # The best that any Gaussian rule could reach: Monte Carlo's own mean and variance.
    note("gaussian_of_mc", moments.mean, moments.log_likelihood(y, tau))
    figures["mc_coverage"] = moments.coverage(y, tau)
    figures["mc_kurtosis"] = float(sampled["mc"].kurtosis().median())
    figures["mc_variance"] = float(moments.variance.mean())
    for relu in ("jacobian", "moment"):
        ours = propagated(stack.network(split, OURS), x, relu).scaled(scale.y_std, scale.y_mean)
        note(relu, ours.mean, ours.log_likelihood(y, tau))
        likelihood = ours.sampled_log_likelihood(y, tau, settings.samples, settings.seed + split)
        figures[f"{relu}_sampled_ll"] = float(likelihood.mean())
        figures[f"{relu}_coverage"] = ours.coverage(y, tau)
        figures[f"{relu}_variance"] = float(ours.variance.mean())
    return figures
