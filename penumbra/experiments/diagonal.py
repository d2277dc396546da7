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

from penumbra.experiments.chain import covariances, network
from penumbra.experiments.reporting import Setting
from penumbra.experiments.reporting.drawing import BLACK, BLUE, ORANGE, plate
from penumbra.experiments.reporting.markdown import rows

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


def _over_networks(result: dict[str, Any], kind: str, name: str, below: str = "") -> np.ndarray:
    """The mean over the networks of a figure after each layer, or of its ratio to another."""
    values = [
        [stage[name] / (stage[below] if below else 1) for stage in stages]
        for stages in result[kind]
    ]
    return np.mean(values, axis=0)


def _normalized(result: dict[str, Any], kind: str, name: str) -> np.ndarray:
    """Mean variance after each layer in units of the first dropout's, as the paper has it."""
    first = [stages[0]["variance"] for stages in result[kind]]
    values = [[stage[name] for stage in stages] for stages in result[kind]]
    return np.mean(np.array(values) / np.array(first)[:, None], axis=0)


def table(result: dict[str, Any]) -> str:
    def column(kind: str, name: str, below: str = "") -> np.ndarray:
        return _over_networks(result, kind, name, below)

    columns = [
        (_normalized(result, kind, "variance"), column(kind, "share"),
         column(kind, "diagonal", "variance"), column(kind, "full", "variance"))
        for kind in KINDS
    ]  # fmt: skip
    head = ["after layer"] + [
        f"{kind}: {what}"
        for kind in KINDS
        for what in ("variance / first", "off the diagonal", "diagonal / MC", "full / MC")
    ]
    lines = [
        [name, *(f"{abs(values[i]):.0%}" if j == 1 else f"{values[i]:.2f}"
                 for group in columns for j, values in enumerate(group))]
        for i, name in enumerate(_NAMES)
    ]  # fmt: skip
    return "\n\n".join([rows(head, lines), _words(result)])


def _words(result: dict[str, Any]) -> str:
    lost = {kind: _over_networks(result, kind, "diagonal", "variance") for kind in KINDS}
    full = _over_networks(result, "trained", "full", "variance")
    return (
        "Variance / first: mean variance over that after the first dropout, the paper's upper "
        "curve. Off the diagonal: the share of the squared covariance matrix (Frobenius) that the "
        "diagonal leaves out. Diagonal / MC and full / MC: the propagated mean variance over the "
        f"sampled one ({covariances.SAMPLES:,} samples, {PICTURES} test patches, mean of "
        f"{NETWORKS} networks). The trained networks name the centre's class of "
        f"{np.mean(result['accuracy']):.0%} of the test patches (the most frequent class: "
        f"{result['most_frequent_class']:.0%}).\n\n"
        "The paper prints no figures here. What it sees holds: dropout strengthens the diagonal "
        "(layer 5), variance falls where there is none, and most of the matrix stays near zero. "
        "Yet after every convolution about half or more of the squared matrix is off the diagonal. "
        "Between convolutions that does little harm, trained or not: 27 weights of mixed sign "
        "meet covariances that cancel, and the diagonal alone stays within "
        f"{max(abs(v - 1) for k in KINDS for v in lost[k][:-1]):.0%} of the sampled variance. It "
        "fails where trained weights sum up coherently what shares its noise: after the dense "
        f"layer it has {lost['trained'][-1]:.0%} of the variance in the trained networks, and "
        f"{lost['untrained'][-1]:.0%} in the untrained ones, whose weights have random signs. The "
        "full matrix is not the remedy at this depth: its rectified Gaussians add up to "
        f"{full[-1]:.1f} times the variance there."
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
