"""Monte Carlo of similar cost: how many samples are as accurate as ours, and cost as much.

The supplement's comparison on Boston Housing: the mean absolute difference of mean and standard
deviation to those of 10,000 samples, as a function of the number of samples; ours is a constant.
Here over all test rows of the twenty splits, in thousands of dollars, with the paper's ReLU and
with the analytic one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from penumbra.lab.experiments.regression.data import Normalisation, load_regression_set
from penumbra.lab.experiments.regression.prediction import dropout_samples, propagated
from penumbra.lab.experiments.regression.protocol import NormalisedRows
from penumbra.lab.experiments.regression.runtime import samples_of_equal_cost
from penumbra.lab.experiments.regression.stacked_networks import NetworkStack, train, weight_decay
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLUE, GREEN, GREY, RED, axes_grid

NEEDS = "uci"
TAU = 0.2  # of Gal's grid; its only effect is a weight decay of 1e-6
SHOWN = 0.05  # the rate in the figure, the median of the likelihood's choices
TRUTH = 10_000
COUNTS = (2, 3, 5, 10, 20, 50, 100, 175, 200, 500, 1_000, 2_000, 5_000)
REPEATED = 10_000  # samples in total for each count: small counts are repeated more often
OURS = {"jacobian": "ours, the paper's ReLU", "moment": "ours, analytic ReLU"}


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Differences by dropout rate and number of samples, and the number of equal cost."""
    data = load_regression_set(setting.data_set(NEEDS), "bostonHousing")
    part = NormalisedRows.of(data, [train_rows for train_rows, _ in data.splits])
    splits = range(len(data.splits))
    rates = torch.tensor(data.rates).expand(len(splits), -1).contiguous()
    decays = weight_decay(rates, torch.tensor(TAU), part.x.shape[1])
    with torch.no_grad():
        stack = train(
            part.x, part.y, rates, decays, data.hidden, epochs=400, seed=setting.seed,
            splits=splits, progress=lambda epochs: setting.bar(epochs, "training"),
        )  # fmt: skip
        tests = [torch.from_numpy(part.scales[i].inputs(data.x[data.splits[i][1]])) for i in splits]
        found = {
            str(rate): _mean([
                _differences(stack, i, point, tests[i], part.scales[i], setting.seed)
                for i in setting.bar(splits, f"sampling, rate {rate}")
            ])
            for point, rate in enumerate(data.rates)
        }  # fmt: skip
        runtime = samples_of_equal_cost(stack.network(0, 0), tests[0])
    return {"counts": list(COUNTS), "rates": found, "runtime": runtime}


def _mean(splits: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.mean([one[name] for one in splits], axis=0).tolist() for name in splits[0]}


def _differences(
    stack: NetworkStack, split: int, point: int, x: torch.Tensor, scale: Normalisation, seed: int
) -> dict[str, Any]:
    """Mean absolute differences to the truth over the rows, of ours and of every count."""
    truth, other = (
        torch.cat(list(dropout_samples(stack, split, point, x, count, seed + shift))) * scale.y_std
        for shift, count in ((0, TRUTH), (1, REPEATED))
    )
    mean, std = truth.mean(0), truth.std(0)
    result: dict[str, Any] = {"true_std": float(std.mean()), "mean": [], "std": []}
    for count in COUNTS:
        blocks = other[: REPEATED // count * count].view(-1, count, len(x))
        result["mean"].append(float((blocks.mean(1) - mean).abs().mean()))
        result["std"].append(float((blocks.std(1) - std).abs().mean()))
    for relu in OURS:
        ours = propagated(stack.network(split, point), x, relu)
        result[f"{relu}_mean"] = float((ours.mean * scale.y_std - mean).abs().mean())
        result[f"{relu}_std"] = float((ours.variance.sqrt() * scale.y_std - std).abs().mean())
    return result


def crossing(counts: list[int], differences: list[float], ours: float) -> float | None:
    """The number of samples with the difference of ours, interpolated in log-log; None: no such."""
    logs = np.log(counts), np.log(differences)
    below = np.flatnonzero(np.asarray(differences) <= ours)
    if not len(below):
        return None
    first = int(below[0])
    if first == 0:
        return float(counts[0])
    piece = slice(first - 1, first + 1)
    return float(np.exp(np.interp(-np.log(ours), -logs[1][piece], logs[0][piece])))


def _crossings(result: dict[str, Any], rate: str, relu: str) -> dict[str, float | None]:
    found = result["rates"][rate]
    return {
        what: crossing(result["counts"], found[what], found[f"{relu}_{what}"])
        for what in ("mean", "std")
    }


def _samples(count: float | None) -> str:
    return f"more than {COUNTS[-1]:,}" if count is None else f"{count:,.0f}"


def table(result: dict[str, Any]) -> str:
    """Numbers of samples of equal accuracy and cost, and the curve of one rate."""
    titles = {
        "mean": "samples for an equally accurate mean",
        "std": "samples for an equally accurate standard deviation",
    }
    paper = {"mean": "about 100", "std": "more than 500"}
    lines = [
        [f"{titles[what]}, rate {rate}", paper[what],
         *(_samples(_crossings(result, rate, relu)[what]) for relu in OURS)]
        for what in titles for rate in result["rates"]
    ]  # fmt: skip
    cost = [_samples(result["runtime"][f"{relu}_samples"]) for relu in OURS]
    crossings = rows(
        ["", "paper", *OURS.values()], [*lines, ["samples of equal cost", "about 175", *cost]]
    )
    return f"{crossings}\n\n{_curve(result)}\n\n{_words(result)}"


def _curve(result: dict[str, Any]) -> str:
    shown = result["rates"][str(SHOWN)]
    sampled = [
        [f"MC, {count:,} samples", f"{mean:.4f}", f"{std:.4f}"]
        for count, mean, std in zip(result["counts"], shown["mean"], shown["std"], strict=True)
    ]
    ours = [
        [name, f"{shown[f'{relu}_mean']:.4f}", f"{shown[f'{relu}_std']:.4f}"]
        for relu, name in OURS.items()
    ]
    head = [f"difference to {TRUTH:,} samples, 1,000 $, rate {SHOWN}", "mean", "standard deviation"]
    return rows(head, [*sampled, *ours])


def _words(result: dict[str, Any]) -> str:
    true = ", ".join(f"{found['true_std']:.2f}" for found in result["rates"].values())
    return (
        "The paper does not state the dropout rate of its network; these are all rates of Gal's "
        f"grid. The standard deviations themselves are {true} on average (rates as above). The "
        "cost is that of all test rows of a split by the faster way of sampling. It depends on the "
        "machine and on the implementation of sampling; the paper's 175 refers to its own."
    )


def draw(result: dict[str, Any]) -> Figure:
    """Left the mean, right the standard deviation; the intersections are marked."""
    figure, ((left, right),) = axes_grid(1, 2, (4.8, 3.6))
    shown = result["rates"][str(SHOWN)]
    for axes, what, title in ((left, "mean", "mean"), (right, "std", "standard deviation")):
        axes.plot(result["counts"], shown[what], "o-", color=RED, ms=4, label="Monte Carlo")
        for relu, colour, line in (("jacobian", BLUE, "-"), ("moment", GREEN, "--")):
            ours = shown[f"{relu}_{what}"]
            axes.axhline(ours, color=colour, linestyle=line, label=OURS[relu])
            meets = _crossings(result, str(SHOWN), relu)[what]
            if meets is not None:
                axes.plot([meets], [ours], "x", color=colour, ms=8, mew=2)
        axes.axvline(result["runtime"]["jacobian_samples"], color=GREY, linestyle=":",
                     label="same cost as ours, the paper's ReLU")  # fmt: skip
        axes.set(xscale="log", yscale="log", title=title, xlabel="samples of Monte Carlo")
        axes.set_ylabel(f"mean absolute difference\nto {TRUTH:,} samples, 1,000 $")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=8)
    figure.suptitle(f"Boston Housing, 20 splits, dropout rate {SHOWN}")
    return figure
