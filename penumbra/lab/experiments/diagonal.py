"""The diagonal approximation: covariance along a chain of dropout, convolution and ReLU.

The paper's figure shows for one trained network that the covariance matrix stays close to its
diagonal, and concludes that the diagonal suffices. This experiment evaluates the same chain trained
and untrained, and adds the figure that decides: the variance after each layer by propagation of the
diagonal alone, over the sampled variance.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from penumbra.lab.experiments.dropout_chain import covariances, network
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLACK, BLUE, ORANGE

NEEDS = "camvid"
NETWORKS = 3
PATCHES = 24
SHOWN = slice(105, 195)  # of the 300 units: three rows of the map, from its middle
KINDS = ("untrained", "trained")
_NAMES = [f"{i + 1}: {layer}" for i, layer in enumerate(network.LAYERS)] + ["9: dense"]


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Variance and covariance after each layer, for trained and untrained networks."""
    folder = setting.data_set(NEEDS)
    x, y, classes = network.patches(folder, "train", setting.seed)
    test_x, test_y, _ = network.patches(folder, "test", setting.seed)
    shown = test_x[:: len(test_x) // PATCHES][:PATCHES]
    found: dict[str, Any] = {kind: [] for kind in KINDS}
    accuracy = []
    for seed in range(setting.seed, setting.seed + NETWORKS):
        models = {
            "untrained": network.untrained(classes, seed),
            "trained": network.train(
                x, y, classes, seed, lambda steps: setting.bar(steps, "training")
            ),
        }
        with torch.no_grad():
            right = models["trained"](test_x).argmax(1) == test_y
        accuracy.append(float(right.float().mean()))
        for kind in setting.bar(KINDS, "covariances"):
            stages = covariances.measure(models[kind], network.stages(models[kind]), shown, seed)
            found[kind].append([_plain(stage) for stage in stages])
    most = float((test_y == test_y.mode().values).float().mean())
    return {"accuracy": accuracy, "most_frequent_class": most, **found}


def _plain(stage: covariances.LayerCovariance) -> dict[str, Any]:
    matrix = stage.matrix[SHOWN, SHOWN].numpy()
    return asdict(stage) | {"matrix": [[float(f"{v:.3g}") for v in line] for line in matrix]}


def _ratios(result: dict[str, Any], kind: str, name: str) -> np.ndarray:
    """A propagated variance over the sampled one, (networks, layers).

    Not averaged over the networks, in which errors of opposite sign would cancel.
    """
    return np.array(
        [[stage[name] / stage["variance"] for stage in stages] for stages in result[kind]]
    )


def _range(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def _normalized(result: dict[str, Any], kind: str, name: str) -> np.ndarray:
    """Mean variance after each layer relative to the first dropout's, as in the paper."""
    first = [stages[0]["variance"] for stages in result[kind]]
    values = [[stage[name] for stage in stages] for stages in result[kind]]
    return np.mean(np.array(values) / np.array(first)[:, None], axis=0)


def table(result: dict[str, Any]) -> str:
    """A line for each layer; what the columns mean, and what follows."""
    head, columns = ["after layer"], []
    for kind in KINDS:
        names = ("variance / first", "off the diagonal", "diagonal / MC", "full / MC")
        head += [f"{kind}: {what}" for what in names]
        shares = np.array([[stage["share"] for stage in stages] for stages in result[kind]])
        columns += [
            [f"{value:.2f}" for value in _normalized(result, kind, "variance")],
            [f"{abs(share):.0%}" for share in shares.mean(0)],
            *([_range(layer) for layer in _ratios(result, kind, name).T]
              for name in ("diagonal", "full")),
        ]  # fmt: skip
    lines = [list(line) for line in zip(_NAMES, *columns, strict=True)]
    return "\n\n".join([rows(head, lines), _words(result)])


def _words(result: dict[str, Any]) -> str:
    diagonal = {kind: _ratios(result, kind, "diagonal") for kind in KINDS}
    full = {kind: _ratios(result, kind, "full") for kind in KINDS}
    return (
        "Variance / first: mean variance relative to that after the first dropout, the paper's "
        "upper curve. Off the diagonal: the share of the squared covariance matrix (Frobenius) "
        "outside the diagonal. Diagonal / MC and full / MC: the propagated mean variance over the "
        f"sampled one ({covariances.SAMPLES:,} samples, {PATCHES} test patches), minimum to "
        f"maximum of {NETWORKS} networks; the first two columns are means. The trained "
        f"networks classify {np.mean(result['accuracy']):.0%} of the test patches correctly "
        f"(always the most frequent class: {result['most_frequent_class']:.0%}).\n\n"
        "The paper prints no figures here. Its observations hold: dropout strengthens the diagonal "
        "(layer 5), and most of the matrix stays near zero. Yet much of the squared matrix is off "
        "the diagonal after every convolution. The variance by the diagonal alone then errs in "
        f"either direction, depending on the network: {_range(diagonal['untrained'][:, 1:-1])} of "
        f"the sampled variance within the untrained chains, "
        f"{_range(diagonal['trained'][:, 1:-1])} within the trained ones. After the dense layer "
        f"all trained networks lose variance ({_range(diagonal['trained'][:, -1])}); the untrained "
        f"ones vary ({_range(diagonal['untrained'][:, -1])}). The full matrix gives "
        f"{_range(full['untrained'][:, -1])} there untrained and {_range(full['trained'][:, -1])} "
        f"trained: too much, for a reason not investigated. {NETWORKS} networks are few."
    )


def draw(result: dict[str, Any]) -> Figure:
    """The paper's figure for untrained and trained networks: curves above, matrices below."""
    count = len(network.LAYERS)
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    parts = figure.subfigures(2, 1, squeeze=False)
    for part, kind in zip(parts[:, 0], KINDS, strict=True):
        grid = part.add_gridspec(2, count, height_ratios=(1.5, 1))
        axes = part.add_subplot(grid[0, :])
        places = np.arange(count)
        for name, colour, marker, label in (
            ("variance", BLACK, "o", "Monte Carlo"),
            ("diagonal", ORANGE, "v", "propagated, diagonal alone"),
            ("full", BLUE, "s", "propagated, full covariance"),
        ):
            axes.plot(places, _normalized(result, kind, name)[:count], marker=marker, ms=4,
                      color=colour, label=label)  # fmt: skip
        axes.set(yscale="log", xlim=(-0.5, count - 0.5), ylabel="mean variance\n(first layer = 1)")
        axes.set_xticks(places, [])
        axes.grid(alpha=0.25)
        axes.legend(loc="lower left", fontsize=8)
        axes.set_title(
            f"{kind}: mean variance; below, mean absolute covariances, each to its maximum"
        )
        for i, layer in enumerate(network.LAYERS):
            tile = part.add_subplot(grid[1, i])
            matrix = np.array(result[kind][0][i]["matrix"])
            tile.imshow(matrix / matrix.max(), cmap="viridis", vmin=0, vmax=0.5)
            tile.set(xticks=[], yticks=[], xlabel=layer)
    return figure
