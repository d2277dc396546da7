"""Class hold-out on CamVid: uncertainty of classes that the network was trained without.

A SegNet trained without pedestrians and bicyclists, against one trained with all classes: the mean
uncertainty of each true class, relative to that of the network trained with all classes, as in the
paper's figure. Beyond the paper: how well each score detects the pixels of the withheld classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from penumbra.errors import PenumbraError
from penumbra.lab.experiments.images.networks import OURS, NetworkForms, load_network
from penumbra.lab.experiments.images.panels import grid
from penumbra.lab.experiments.images.segmentation import (
    CamvidFrame,
    frames,
    painted,
    propagated,
    read,
    sampled,
)
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, axes_grid
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.metrics.detection import Detection
from penumbra.offline.metrics.segmentation import IGNORE

NEEDS = "camvid"
BUNDLES = {"without": "segnet-camvid-holdout", "all": "segnet-camvid-encdec"}
SAMPLES = 50  # of Monte Carlo
EVERY = 5  # every n-th test frame is evaluated ...
SAMPLED = 3  # ... and every n-th of these sampled
SHOWN = 4  # frames in the panel: those with most pixels of withheld classes
SCORES = {
    OURS: "ours, standard deviation",
    "mc": "MC, standard deviation",
    "max_softmax": "1 - largest probability",
    "entropy": "entropy",
    "max_logit": "- largest score (max-logit)",
    "known": "ours, network trained with all classes",
}
_WHERE_RIGHT, _BY_SAMPLING = "uncertainty_where_right", "uncertainty_by_sampling"
_COLOURS = {OURS: (ORANGE, "-"), "mc": (BLUE, "-"), "max_softmax": (GREEN, "--"),
            "entropy": (RED, "-."), "max_logit": (BLACK, ":"), "known": (GREY, "-")}  # fmt: skip


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Mean uncertainty by class and network, and the detection of withheld classes by score."""
    networks = {what: load_network(name) for what, name in BUNDLES.items()}
    withheld = withheld_from(networks["without"])
    everywhere, where_right, by_sampling = (ClassMeans(networks) for _ in range(3))
    scores: dict[str, list[np.ndarray]] = {name: [] for name in SCORES}
    positive: list[np.ndarray] = []
    paths = frames(setting.data_set(NEEDS), EVERY)
    for number, path in enumerate(setting.bar(paths, "frames")):
        frame = read(path)
        known = frame.label != IGNORE
        truth = frame.label[known]
        outputs = {what: propagated(network, OURS, frame)[1] for what, network in networks.items()}
        maps = {what: found["uncertainty"] for what, found in outputs.items()}
        everywhere.add(frame.label, maps, known)
        where_right.add(frame.label, maps, known & (outputs["all"]["labels"] == frame.label))
        if number % SAMPLED == 0:
            positive.append(np.isin(truth, withheld))
            judged = _scores(outputs["without"])
            stds = {
                what: sampled(setting, network, frame, SAMPLES)[0].std
                for what, network in networks.items()
            }
            by_sampling.add(frame.label, stds, known)
            judged["mc"] = stds["without"]
            judged["known"] = outputs["all"]["uncertainty"]
            for name, values in judged.items():
                scores[name].append(values[known])
    found = np.concatenate(positive)
    return {
        "samples": SAMPLES,
        "frames": len(paths),
        "sampled_frames": len(positive),
        "withheld": [CLASSES[number] for number in withheld],
        "variance": {what: n.bundle.variant["variance"] for what, n in networks.items()},
        "pixels": dict(zip(CLASSES, everywhere.pixels.tolist(), strict=True)),
        "right": dict(zip(CLASSES, where_right.pixels.tolist(), strict=True)),
        "uncertainty": everywhere.means(),
        _WHERE_RIGHT: where_right.means(),
        _BY_SAMPLING: by_sampling.means(),
        "share": float(found.mean()),
        "detection": {name: _judged(np.concatenate(s), found) for name, s in scores.items()},
    }


def withheld_from(network: NetworkForms) -> list[int]:
    """The numbers of the classes that a network was trained without."""
    names = [spec.name for spec in network.bundle.classes]
    withheld = [number for number, name in enumerate(CLASSES) if name not in names]
    if not withheld:
        raise PenumbraError(
            f"the bundle {network.bundle.name} has all classes of CamVid: export one that was "
            "trained with `penumbra train segnet --withhold pedestrian,bicyclist`"
        )
    return withheld


def _scores(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The scores of a frame, each high where the network is uncertain."""
    return {
        OURS: outputs["uncertainty"],
        "max_softmax": 1 - outputs["confidence"],
        "entropy": outputs["entropy"],
        "max_logit": -outputs["max_logit"],
    }


class ClassMeans:
    """The mean uncertainty of each true class, by each of several networks."""

    def __init__(self, networks: Iterable[str]) -> None:
        self.pixels = np.zeros(len(CLASSES), np.int64)
        self._sums = {what: np.zeros(len(CLASSES)) for what in networks}

    def add(self, label: np.ndarray, maps: dict[str, np.ndarray], where: np.ndarray) -> None:
        """Add the pixels of a frame in the mask `where`; `maps` by network."""
        truth = label[where]
        self.pixels += np.bincount(truth, minlength=len(CLASSES))
        for what, values in maps.items():
            weights = values[where].astype(float)
            self._sums[what] += np.bincount(truth, weights, minlength=len(CLASSES))

    def means(self) -> dict[str, dict[str, float | None]]:
        """By network and class; None for a class without pixels."""
        return {
            what: {name: float(total / count) if count else None
                   for name, total, count in zip(CLASSES, totals, self.pixels, strict=True)}
            for what, totals in self._sums.items()
        }  # fmt: skip


def _judged(scores: np.ndarray, positive: np.ndarray) -> dict[str, Any]:
    found = Detection.of(scores, positive)
    curve = dict(zip(("false", "true"), found.roc(), strict=True))
    return {"auroc": found.auroc, "average_precision": found.average_precision,
            "fpr95": found.fpr95, "roc": curve}  # fmt: skip


def increases(result: dict[str, Any], figure: str = "uncertainty") -> dict[str, float]:
    """Relative increase of a class's mean uncertainty by withholding, largest first."""
    without, every = (result[figure][what] for what in ("without", "all"))
    found = {name: without[name] / every[name] - 1 for name in CLASSES if every[name]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def table(result: dict[str, Any]) -> str:
    """Uncertainty by class and detection by score; then the differences to the paper."""
    order, where_right = increases(result), increases(result, _WHERE_RIGHT)
    by_sampling = increases(result, _BY_SAMPLING)
    places, sampled_places = (
        {name: place for place, name in enumerate(found, start=1)}
        for found in (where_right, by_sampling)
    )

    def growth(found: dict[str, float], name: str) -> str:
        return f"{found[name]:+.0%}" if name in found else ""

    classes = rows(
        ["true class", "paper", "trained with all", "two withheld", "increase", "rank",
         f"increase by MC-{result['samples']}", "rank", "labelled correctly by the former",
         "our increase there", "rank"],
        [[f"**{name}**" if name in result["withheld"] else name,
          "among the two largest" if name in result["withheld"] else "",
          *(f"{result['uncertainty'][what][name]:.4f}" for what in ("all", "without")),
          growth(order, name), place, growth(by_sampling, name), sampled_places.get(name, ""),
          f"{result['right'][name] / result['pixels'][name]:.0%}",
          growth(where_right, name), places.get(name, "")]
         for place, name in enumerate(order, start=1)],
    )  # fmt: skip
    scores = rows(
        ["pixels of the withheld classes", "AUROC", "average precision", "FPR95"],
        [[SCORES[name], f"{found['auroc']:.3f}", f"{found['average_precision']:.3f}",
          f"{found['fpr95']:.3f}"] for name, found in result["detection"].items()],
    )  # fmt: skip
    return "\n\n".join([classes, scores, _words(result, list(order))])


def _words(result: dict[str, Any], order: list[str]) -> str:
    count = len(result["withheld"])
    first = order[:count]
    holds = set(first) == set(result["withheld"])
    known = {name: result["detection"][name]["auroc"] for name in (OURS, "known")}
    begin = "As in the paper" if holds else "In the paper they are the withheld ones; here"
    return (
        f"{begin}, the {count} classes with the largest increase are {' and '.join(first)}. The "
        "paper prints a bar chart without figures. Uncertainty is the standard deviation averaged "
        "over the classes, nine instead of eleven, which raises all bars alike. By sampling (on "
        f"{result['sampled_frames']} of the frames) the largest increases are those of "
        f"{_first(result, _BY_SAMPLING)}. The last columns cover only the pixels that the network "
        "trained with all classes labels correctly, where the largest increases are those of "
        f"{_first(result, _WHERE_RIGHT)}.\n\n"
        f"Detection is over all labelled pixels of {result['sampled_frames']} test frames, of "
        f"which {result['share']:.1%} belong to withheld classes: the average precision of a "
        f"random score. MC has {result['samples']} samples. The last line is a control: the "
        f"network trained with all classes has an AUROC of {known['known']:.3f}, so much of ours "
        f"({known[OURS]:.3f}) is because small objects with long borders are uncertain anyway."
        "\n\n"
        "What differs from the paper: dropout is throughout the network (ENCDEC) and not only "
        f"before the classifier, and {_variance(result)}. Class means are over "
        f"{result['frames']} test frames."
    )


def _first(result: dict[str, Any], figure: str) -> str:
    """The classes with the largest increase, as many as were withheld."""
    return " and ".join(list(increases(result, figure))[: len(result["withheld"])])


def _variance(result: dict[str, Any]) -> str:
    kinds = set(result["variance"].values())
    if kinds == {"calibrated"}:
        return "both networks have gains fitted to Monte Carlo on training frames"
    if len(kinds) == 1:
        return f"neither network has gains ({kinds.pop()})"
    of = ", ".join(f"{what}: {kind}" for what, kind in result["variance"].items())
    return f"**the two variances are of different kinds ({of}): the first table is meaningless**"


def draw(result: dict[str, Any]) -> Figure:
    """The paper's bars, and the curves of detection."""
    figure, ((bars, curves),) = axes_grid(1, 2, (5.4, 4.0), width_ratios=(1.6, 1))
    names = list(CLASSES)
    ratio = {name: 1 + increase for name, increase in increases(result).items()}
    places = np.arange(len(names))
    bars.bar(places - 0.2, [1.0] * len(names), 0.4, color=BLUE, label="trained with all classes")
    drawn = bars.bar(places + 0.2, [ratio.get(name, np.nan) for name in names], 0.4, color=RED,
                     label=f"{' and '.join(result['withheld'])} withheld")  # fmt: skip
    bars.bar_label(drawn, fmt="%.2f", fontsize=7)
    bars.set_xticks(places, names, rotation=40, ha="right")
    for label in bars.get_xticklabels():
        label.set_fontweight("bold" if label.get_text() in result["withheld"] else "normal")
    bars.set(
        ylabel="mean uncertainty (trained with all classes = 1)", title="mean uncertainty per class"
    )
    bars.margins(y=0.3)
    bars.legend(fontsize=8, loc="upper left")
    for name, found in result["detection"].items():
        colour, style = _COLOURS[name]
        curves.plot(found["roc"]["false"], found["roc"]["true"], style, color=colour,
                    label=f"{SCORES[name]}: {found['auroc']:.3f}")  # fmt: skip
    curves.plot([0, 1], [0, 1], color=GREY, linewidth=0.6)
    curves.set(xlabel="false-positive rate", ylabel="true-positive rate",
               title="pixels of withheld classes", xlim=(0, 1), ylim=(0, 1))  # fmt: skip
    curves.legend(fontsize=7, loc="lower right", title="AUROC", title_fontsize=8,
                  frameon=True, framealpha=0.9, edgecolor="none")  # fmt: skip
    return figure


def panel(setting: ExperimentSetting, result: dict[str, Any]) -> Figure:
    """The paper's rows: image, truth, Monte Carlo's segmentation, and the uncertainties."""
    networks = {what: load_network(name) for what, name in BUNDLES.items()}
    withheld = withheld_from(networks["without"])
    classes, learnt = (networks[what].bundle.classes for what in ("all", "without"))

    def amount(frame: CamvidFrame) -> int:
        return int(np.isin(frame.label, withheld).sum())

    found = [read(path) for path in frames(setting.data_set(NEEDS), EVERY)[::SAMPLED]]
    cells, top = [], 0.0
    for frame in sorted(found, key=amount, reverse=True)[:SHOWN]:
        reference, _ = sampled(setting, networks["without"], frame, SAMPLES)
        ours, knowing = (propagated(networks[what], OURS, frame)[0] for what in ("without", "all"))
        top = max(top, float(np.quantile(reference.std, 0.995)))
        cells.append([
            ("image", frame.image), ("truth (black: unlabelled)", painted(frame.label, classes)),
            (f"MC-{SAMPLES} prediction", painted(reference.labels, learnt)),
            (f"MC-{SAMPLES} uncertainty", reference.std), ("our uncertainty", ours.std),
            ("ours, all classes trained", knowing.std),
        ])  # fmt: skip
    scale = ("uncertainty: mean standard deviation of the class probabilities", 0.0, top, "inferno")
    return grid(cells, scale, classes)
