"""Why a diagonal, and where it fails: the covariance along a chain of dropout, convolution, ReLU.

The paper's figure shows for one trained network that the covariance matrix stays near its diagonal,
and concludes that the diagonal is enough. Here the same chain is looked at trained and untrained,
and beside the picture stands the figure that decides: the variance that propagation of the
diagonal alone finds after each layer, over the sampled one.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from penumbra.lab.drawing import BLACK, BLUE, ORANGE, plate
from penumbra.lab.experiments.chain import covariances, network
from penumbra.lab.experiments.reporting import Setting
from penumbra.lab.experiments.reporting.markdown import rows

NEEDS = "camvid"
NETWORKS = 3
PICTURES = 24
SHOWN = slice(105, 195)  # of the 300 units: three rows of the map, from its middle
KINDS = ("untrained", "trained")
_NAMES = [f"{i + 1}: {layer}" for i, layer in enumerate(network.LAYERS)] + ["9: dense"]


def measure(setting: Setting) -> dict[str, Any]:
    x, y, classes = network.patches(setting.data / NEEDS, "train", setting.seed)
    test_x, test_y, _ = network.patches(setting.data / NEEDS, "test", setting.seed)
    shown = test_x[:: len(test_x) // PICTURES][:PICTURES]
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


def _plain(stage: covariances.Stage) -> dict[str, Any]:
    matrix = stage.matrix[SHOWN, SHOWN].numpy()
    return asdict(stage) | {"matrix": [[float(f"{v:.3g}") for v in line] for line in matrix]}


def _ratios(result: dict[str, Any], kind: str, name: str) -> np.ndarray:
    """A propagated variance over the sampled one, (networks, layers).

    Never averaged: networks that err in opposite directions would seem right together.
    """
    return np.array(
        [[stage[name] / stage["variance"] for stage in stages] for stages in result[kind]]
    )


def _range(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def _normalized(result: dict[str, Any], kind: str, name: str) -> np.ndarray:
    """Mean variance after each layer in units of the first dropout's, as the paper has it."""
    first = [stages[0]["variance"] for stages in result[kind]]
    values = [[stage[name] for stage in stages] for stages in result[kind]]
    return np.mean(np.array(values) / np.array(first)[:, None], axis=0)


def table(result: dict[str, Any]) -> str:
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
        "Variance / first: mean variance over that after the first dropout, the paper's upper "
        "curve. Off the diagonal: the share of the squared covariance matrix (Frobenius) that the "
        "diagonal leaves out. Diagonal / MC and full / MC: the propagated mean variance over the "
        f"sampled one ({covariances.SAMPLES:,} samples, {PICTURES} test patches), the lowest to "
        f"the highest of {NETWORKS} networks; the first two columns are means. The trained "
        f"networks name the centre's class of {np.mean(result['accuracy']):.0%} of the test "
        f"patches (the most frequent class: {result['most_frequent_class']:.0%}).\n\n"
        "The paper prints no figures here. What it sees holds: dropout strengthens the diagonal "
        "(layer 5), and most of the matrix stays near zero. Yet much of the squared matrix is off "
        "the diagonal after every convolution. What the diagonal then finds is off to either side, "
        f"from network to network: {_range(diagonal['untrained'][:, 1:-1])} of the sampled "
        f"variance within the untrained chains, {_range(diagonal['trained'][:, 1:-1])} within the "
        "trained ones. After the dense layer all trained networks lose variance "
        f"({_range(diagonal['trained'][:, -1])}), the untrained ones do not agree "
        f"({_range(diagonal['untrained'][:, -1])}). The full matrix has "
        f"{_range(full['untrained'][:, -1])} there untrained and {_range(full['trained'][:, -1])} "
        f"trained: too much, for a reason not looked into. {NETWORKS} networks are few."
    )


def draw(result: dict[str, Any]) -> Figure:
    """The paper's figure, once untrained and once trained: curves above, matrices below."""
    count = len(network.LAYERS)
    figure, _ = plate(1, 1, (11, 6.4))
    figure.clear()
    parts = figure.subfigures(2, 1)
    for part, kind in zip(parts, KINDS, strict=True):
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
            f"{kind}: mean variance; below, the mean absolute covariance, each to its scale"
        )
        for i, layer in enumerate(network.LAYERS):
            tile = part.add_subplot(grid[1, i])
            matrix = np.array(result[kind][0][i]["matrix"])
            tile.imshow(matrix / matrix.max(), cmap="viridis", vmin=0, vmax=0.5)
            tile.set(xticks=[], yticks=[], xlabel=layer)
    return figure
