"""Bayesian SegNet on CamVid: accuracy, misclassification by uncertainty, runtime, variance.

The paper's two networks, with dropout before the classifier (CLASS) and throughout the network
(ENCDEC), as shipped. Monte Carlo has 50 samples. Ours is what the bundles compute: moments with
gains fitted to Monte Carlo on training frames. The paper's own rules are included for comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from penumbra.lab.experiments.images.networks import (
    FAST,
    OURS,
    PAPER,
    WITHOUT_GAINS,
    NetworkForms,
    load_network,
)
from penumbra.lab.experiments.images.panels import grid
from penumbra.lab.experiments.images.runtime import runtime
from penumbra.lab.experiments.images.sampling_comparison import (
    DETERMINISTIC,
    MC,
    accuracy_without_sampling,
    compare_with_sampling,
)
from penumbra.lab.experiments.images.sampling_noise import sampling_error_of_variance
from penumbra.lab.experiments.images.segmentation import (
    CamvidFrame,
    Segmentation,
    frames,
    painted,
    propagated,
    read,
    sampled,
)
from penumbra.lab.experiments.images.softmax_error import softmax_error
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, axes_grid

NEEDS = "camvid"
BUNDLES = {"class": "segnet-camvid-class", "encdec": "segnet-camvid-encdec"}
SAMPLES = 50  # of Monte Carlo, as the paper's
EVERY = 15  # every n-th test frame is sampled: 16 of 233, which are consecutive video frames
ALL = 1  # the same where nothing is sampled
PIXELS = 1_000  # whose scores are used for the error of softmax
SHOWN = (0, 4, 8, 12)  # sampled frames in the panel
FEW = (2, 10)  # samples of the paper's first figure
NAMES = {
    DETERMINISTIC: "deterministic",
    MC: "MC",
    OURS: "ours",
    WITHOUT_GAINS: "ours, without gains",
    PAPER: "the paper's rules",
    FAST: "ours, fast",
}
_FIGURES = ("global_accuracy", "class_average", "mean_iou")


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Figures by network (CLASS, ENCDEC), the error of softmax, and the runtime."""
    paths = frames(setting.data_set(NEEDS), EVERY)
    networks = {place: load_network(name) for place, name in BUNDLES.items()}
    found: dict[str, Any] = {"samples": SAMPLES, "every": EVERY}
    variant = networks["encdec"].bundle.variant
    found |= {name: variant[name] for name in ("width", "rate")}
    for place, network in networks.items():
        found[place] = compare_with_sampling(setting, network, paths, SAMPLES, place)
    every = frames(setting.data_set(NEEDS), ALL)
    found["all_frames"] = accuracy_without_sampling(setting, networks["encdec"], every)
    first = networks["class"].input(read(paths[0]).image)
    found["softmax"] = softmax_error(_scores(networks["class"], first), seed=setting.seed)
    timed = setting.bar(networks.items(), "runtime")
    found["runtime"] = {place: runtime(network, first) for place, network in timed}
    return found


@torch.inference_mode()
def _scores(network: NetworkForms, x: torch.Tensor) -> torch.Tensor:
    """Score vectors at pixels evenly spread over the frame."""
    scores = network.model(x)[0].flatten(1).T
    return scores[:: max(1, len(scores) // PIXELS)][:PIXELS].contiguous()


def table(result: dict[str, Any]) -> str:
    """Accuracy, misclassification, runtime, variance, and softmax alone; then the differences."""
    parts = (_accuracy, _misclassified, _times, _variances, _softmax)
    return "\n\n".join([*(part(result) for part in parts), _words(result)])


def _accuracy(result: dict[str, Any]) -> str:
    def line(name: str, count: object, found: dict[str, float]) -> list[object]:
        return [name, count, *(f"{100 * found[figure]:.1f}" for figure in _FIGURES)]

    every = result["all_frames"]
    lines: list[list[object]] = [
        ["paper: original Bayesian SegNet", 233, 86.9, 76.3, 63.1],
        ["paper: its own, ENCDEC", 233, 86.1, 76.4, 54.1],
        *(line(f"ENCDEC, {NAMES[method]}", every["frames"], found)
          for method, found in every["accuracy"].items()),
        *(line(f"{place.upper()}, {NAMES[method]}", result[place]["frames"], found)
          for place in ("encdec", "class") for method, found in result[place]["accuracy"].items()),
    ]  # fmt: skip
    return rows(["accuracy, %", "test frames", "global", "class average", "mean IoU"], lines)


def _misclassified(result: dict[str, Any]) -> str:
    tenths = [f"{n}." for n in range(1, 11)]
    lines = [
        [f"{place.upper()}, {NAMES[method]}", *(f"{100 * share:.1f}" for share in shares)]
        for place in ("encdec", "class")
        for method, shares in result[place]["misclassified"].items()
    ]
    return rows(["wrong labels, %, by tenth of the uncertainty", *tenths], lines)


def _times(result: dict[str, Any]) -> str:
    counts = result["runtime"]["class"]["counts"]
    paper = {2: "0.13", 10: "0.54", 50: "2.39"}
    walks = (PAPER, OURS, FAST)
    first = [*(paper.get(count, "") for count in counts), "", "0.14", "", "", "17", "", ""]
    lines: list[list[object]] = [["paper, first figure", *first]]
    for place, times in result["runtime"].items():
        seconds = [*times["mc"], times["plain"], *(times.get(walk) for walk in walks)]
        ratios = [times["ratio"].get(walk) for walk in walks]
        cells = [f"{value:.2f}" if value else "" for value in seconds]
        cells += [f"{value:.1f}" if value else "" for value in ratios]
        lines.append([place.upper(), *cells])
    head = ["seconds per frame", *(f"MC-{count}" for count in counts), "deterministic",
            *(NAMES[walk] for walk in walks),
            *(f"MC-{counts[-1]} / {NAMES[walk]}" for walk in walks)]  # fmt: skip
    return rows(head, lines)


def _variances(result: dict[str, Any]) -> str:
    lines: list[list[object]] = [["paper: ENCDEC", "93.7", "", "", ""]]
    for place in ("encdec", "class"):
        for walk in (PAPER, WITHOUT_GAINS, OURS):
            found = result[place]["difference"][walk]
            lines.append(
                [f"{place.upper()}, {NAMES[walk]}", f"{100 * found['variance']:.1f}",
                 f"{found['variance_ratio']:.2f}", f"{100 * found['std']:.1f}",
                 f"{found['std_ratio']:.2f}"]
            )  # fmt: skip
    head = [f"against MC-{result['samples']}",
            "mean absolute difference of the variance / its mean, %", "ratio of the means",
            "the same of the standard deviation, %", "ratio"]  # fmt: skip
    return rows(head, lines)


def _softmax(result: dict[str, Any]) -> str:
    found = result["softmax"]
    lines = [
        [f"{std:g}", *(f"{100 * found[rule][figure][i]:.1f}"
                       for rule in ("jacobian", "moment") for figure in ("std", "mean"))]
        for i, std in enumerate(found["stds"])
    ]  # fmt: skip
    errors = ("error of σ, %", "error of the mean, %")
    head = [f"{rule}: {error}" for rule in ("first order", "our moments") for error in errors]
    return rows(["standard deviation of the scores", *head], lines)


def _words(result: dict[str, Any]) -> str:
    samples = result["samples"]
    noise = sampling_error_of_variance(samples)
    size = {place: result[place]["score_std"] for place in ("encdec", "class")}
    spread = "; ".join(
        f"{place.upper()} {found['0.5']:.2f} ({found['0.05']:.2f} to {found['0.95']:.2f})"
        for place, found in size.items()
    )
    alike = ", ".join(f"{place.upper()} {result[place]['labels_as_mc']:.1%}" for place in size)
    ways = ", ".join(f"{p.upper()} {t['way']}" for p, t in result["runtime"].items())
    return (
        f"What differs from the paper: our networks have {result['width']:g} times the width and a "
        f"dropout rate of {result['rate']:g}, and were trained for hours on a CPU. MC has "
        f"{samples} samples, on every {result['every']}th test frame "
        f"({result['encdec']['frames']}); the test split is video, in which neighbouring frames "
        "are alike. The gains of ours were fitted on training frames. The paper's rules are first "
        "order for ReLU and softmax, and diagonal.\n\n"
        f"Share of labels equal to MC's, ours: {alike}. Even an exact variance would differ from "
        f"MC's by {noise:.0%}, the sampling error of {samples} Gaussian samples.\n\n"
        "Runtimes are medians of interleaved runs of plain PyTorch in one process; sampling runs "
        f"the layers before the first dropout once, and draws in the faster way ({ways}). The "
        "paper's factor of 17 was measured on another machine at full width. Ours spends extra "
        "time on the moments of ReLU and the covariance of the classes, which PyTorch computes op "
        "by op; docs/benchmarks.md has the cost of the exported graphs, which fuse them. Fast "
        "propagates the noise of the last dropout alone, with gains that account for the others."
        "\n\n"
        "The last table is the analysis of softmax that the paper announces and does not print: "
        f"independent Gaussian noise on the scores of {result['softmax']['pixels']:,} pixels. "
        f"The sampled standard deviation of the scores, median (5 to 95 %): {spread}."
    )


def draw(result: dict[str, Any]) -> Figure:
    """Above, the paper's two curves; below, the errors of softmax and of the variance."""
    figure, ((wrong, time), (softmax, variance)) = axes_grid(2, 2, (5.0, 3.6))
    tenths = np.arange(10) * 10 + 5
    styles = {"encdec": "-", "class": "--"}
    for place, style in styles.items():
        shares = result[place]["misclassified"]
        for method, colour, marker in ((MC, BLUE, "o"), (OURS, ORANGE, "s")):
            wrong.plot(tenths, 100 * np.array(shares[method]), style, marker=marker, ms=4,
                       color=colour, label=f"{place.upper()}, {NAMES[method]}")  # fmt: skip
    wrong.set(xlabel="quantile of the standard deviation, %", ylabel="wrong labels, %",
              title="a) misclassification rate", xlim=(0, 100))  # fmt: skip
    wrong.legend(fontsize=8)
    colours = {"encdec": (ORANGE, GREEN), "class": (BLUE, RED)}  # the paper's
    for place, (sampling, ours) in colours.items():
        found = result["runtime"][place]
        name = place.upper()
        time.plot(found["counts"], found["mc"], "o-", ms=4, color=sampling, label=f"{name}, MC")
        time.axhline(found[OURS], color=ours, label=f"{name}, ours")
        for walk, style in ((FAST, "-."), (PAPER, ":")):
            if walk in found:
                time.axhline(
                    found[walk], color=ours, linestyle=style, label=f"{name}, {NAMES[walk]}"
                )
    time.set(xlabel="samples", ylabel="seconds per frame", title="b) runtime", ylim=(0, None))
    time.legend(fontsize=8)
    _draw_softmax(softmax, result)
    places = np.arange(2)
    colours_of_walks = {PAPER: GREY, WITHOUT_GAINS: PURPLE, OURS: ORANGE}
    for shift, (walk, colour) in enumerate(colours_of_walks.items()):
        shares = [100 * result[place]["difference"][walk]["variance"] for place in styles]
        bars = variance.bar(places + 0.27 * (shift - 1), shares, 0.25, color=colour,
                            label=NAMES[walk])  # fmt: skip
        variance.bar_label(bars, fmt="%.0f", fontsize=8)
    variance.plot([-0.45, 0.45], [93.7, 93.7], "--", color="black", label="the paper, ENCDEC: 93.7")
    variance.set_xticks(places, [place.upper() for place in styles])
    variance.set(ylabel="% of the mean variance", title="d) variance, mean difference to MC's")
    variance.margins(y=0.35)
    variance.legend(fontsize=8, loc="upper right")
    return figure


def _draw_softmax(axes: Any, result: dict[str, Any]) -> None:
    found = result["softmax"]
    for rule, colour, name in (
        ("jacobian", GREY, "first order (the paper)"),
        ("moment", ORANGE, "our moments"),
    ):
        axes.plot(found["stds"], 100 * np.array(found[rule]["std"]), "o-", ms=4, color=colour,
                  label=name)  # fmt: skip
    for place, colour, height in (("encdec", GREEN, -4), ("class", BLUE, -8)):
        size = result[place]["score_std"]
        axes.plot([size["0.25"], size["0.75"]], [height, height], color=colour, linewidth=4,
                  label=f"{place.upper()}: half of its scores")  # fmt: skip
    axes.set(xscale="log", xlabel="standard deviation of the scores",
             ylabel="error of the standard deviation, %", title="c) softmax alone",
             ylim=(-12, None))  # fmt: skip
    axes.legend(fontsize=8)


def panel(setting: ExperimentSetting, result: dict[str, Any]) -> Figure:
    """The paper's first figure in the first row, then its rows of frames (ENCDEC)."""
    paths = frames(setting.data_set(NEEDS), EVERY)
    shown = [read(paths[i % len(paths)]) for i in dict.fromkeys(SHOWN)]
    networks = {place: load_network(name) for place, name in BUNDLES.items()}
    classes = networks["class"].bundle.classes

    def sample(place: str, frame: CamvidFrame, count: int = SAMPLES) -> Segmentation:
        return sampled(setting, networks[place], frame, count)[0]

    first, times = shown[0], result["runtime"]["class"]
    seconds = dict(zip(times["counts"], times["mc"], strict=True))
    teaser = {count: sample("class", first, count) for count in (*FEW, SAMPLES)}
    ours, _ = propagated(networks["class"], OURS, first)
    cells: list[list[tuple[str, np.ndarray]]] = [[
        ("CLASS: image", first.image), ("MC prediction", painted(teaser[SAMPLES].labels, classes)),
        (f"ours: {times[OURS]:.2f} s", ours.std),
        *((f"MC-{count}: {seconds.get(count, np.nan):.2f} s", found.std)
          for count, found in teaser.items()),
    ]]  # fmt: skip
    top = float(np.quantile(teaser[SAMPLES].std, 0.995))
    for frame in shown:
        reference = sample("encdec", frame)
        ours, _ = propagated(networks["encdec"], OURS, frame)
        top = max(top, float(np.quantile(reference.std, 0.995)))
        cells.append([
            ("ENCDEC: image", frame.image),
            ("truth (black: unlabelled)", painted(frame.label, classes)),
            (f"MC-{SAMPLES} prediction", painted(reference.labels, classes)),
            ("our prediction", painted(ours.labels, classes)),
            (f"MC-{SAMPLES} uncertainty", reference.std), ("our uncertainty", ours.std),
        ])  # fmt: skip
    scale = ("uncertainty: mean standard deviation of the class probabilities", 0.0, top, "inferno")
    return grid(cells, scale, classes)
