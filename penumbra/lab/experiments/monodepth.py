"""Monocular depth on KITTI: uncertainty against error, and convergence of Monte Carlo.

The paper's second task: Monodepth with one dropout before its last convolution. Propagation is
exact up to the sigmoid. Ours is what the bundle computes (moments of the sigmoid); the paper's rule
is first order. Depth is evaluated against LiDAR.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from penumbra.lab.experiments.images import depth
from penumbra.lab.experiments.images.networks import OURS, PAPER, load_network
from penumbra.lab.experiments.images.panels import grid
from penumbra.lab.experiments.images.runtime import runtime
from penumbra.lab.experiments.images.sampling_noise import sampling_error_of_variance
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.lab.figure_style import BLUE, GREEN, GREY, ORANGE, RED, axes_grid
from penumbra.offline.metrics.agreement import Sparsification, by_quantile, spearman
from penumbra.offline.metrics.depth import DepthErrors
from penumbra.vehicle.colours import colour_depth

NEEDS = "kitti/raw"
BUNDLES = {"network": "monodepth-kitti"}
SAMPLES = 50  # of Monte Carlo, as the paper's
COUNTS = (2, 3, 5, 10, 20, 50, 100, 200)  # samples of the convergence curve
EVERY = 5  # every n-th frame: 16 of 78, all of one drive
BINS = 10  # of the absolute error, with equally many pixels
SHOWN = (0, 5, 10)  # of these frames, in the panel
MC, DETERMINISTIC = "mc", "deterministic"
NAMES = {DETERMINISTIC: "deterministic", MC: "MC", OURS: "ours", PAPER: "the paper's rule"}


def measure(setting: ExperimentSetting) -> dict[str, Any]:
    """Errors, uncertainty by error, sparsification, convergence of Monte Carlo, runtime."""
    network = load_network(BUNDLES["network"])
    recordings = depth.frames(setting.data_set(NEEDS), EVERY)
    errors = {method: DepthErrors() for method in (DETERMINISTIC, MC, OURS)}
    pixels: dict[str, list[Any]] = {method: [] for method in (MC, OURS)}
    known: dict[str, list[dict[str, Sparsification]]] = {method: [] for method in (MC, OURS)}
    off = {walk: np.zeros(len(COUNTS)) for walk in (OURS, PAPER)}
    size = np.zeros(len(COUNTS))
    for recording in setting.bar(recordings, "frames"):
        frame = depth.read(recording)
        reference = depth.sampled(setting, network, frame, COUNTS)
        walked = {walk: depth.propagated(network, walk, frame) for walk in (OURS, PAPER)}
        for i, count in enumerate(COUNTS):
            variance = reference[count].variance
            size[i] += float(variance.mean())
            for walk, moments in walked.items():
                off[walk][i] += float((moments.variance - variance).abs().mean())
        disparities = {
            DETERMINISTIC: depth.deterministic(network, frame),
            MC: reference[SAMPLES],
            OURS: walked[OURS],
        }
        for method, disparity in disparities.items():
            found = depth.depth_estimate(network, frame, disparity)
            errors[method].add(frame.truth, found.depth)
            if method in pixels:
                evaluated = found.at(depth.evaluated_pixels(frame))
                pixels[method].append((depth.errors(frame, found), evaluated.std))
                known[method].append(depth.sparsifications(frame, found))
    first = depth.read(recordings[0])
    return {
        "samples": SAMPLES,
        **{name: network.bundle.variant[name] for name in ("width", "rate")},
        "frames": len(recordings),
        "counts": list(COUNTS),
        "difference": {walk: (total / size).tolist() for walk, total in off.items()},
        "errors": {method: found.summary() for method, found in errors.items()},
        "by_error": {method: _by_error(found) for method, found in pixels.items()},
        "sparsification": {method: _curves(found) for method, found in known.items()},
        "runtime": runtime(network, network.input(first.image)),
    }


def _by_error(frames: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Mean error and mean standard deviation (metres) by quantile of the error."""
    error, std = (np.concatenate(part) for part in zip(*frames, strict=True))
    return {
        "error": by_quantile(error, error, BINS).tolist(),
        "std": by_quantile(std, error, BINS).tolist(),
        "spearman": spearman(error, std),
    }


def _curves(frames: list[dict[str, Sparsification]]) -> dict[str, Any]:
    """By error measure, the mean over the frames."""
    found = {
        name: Sparsification.mean([frame[name] for frame in frames]) for name in depth.MEASURES
    }
    return {
        name: {"ause": one.ause, "aurg": one.aurg, "curve": one.curve.tolist(),
               "oracle": one.oracle.tolist()}
        for name, one in found.items()
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Errors, uncertainty by error, convergence of Monte Carlo; then the differences."""
    return "\n\n".join(part(result) for part in (_errors, _bins, _samples, _words))


def _errors(result: dict[str, Any]) -> str:
    head = ["", "abs rel", "rmse, m", "a1"]
    head += [f"{figure}, {name}" for name in depth.MEASURES for figure in ("AUSE", "AURG")]
    lines: list[list[object]] = [["paper", *["a figure only"] * 3, *["not given"] * 6]]
    for method, found in result["errors"].items():
        known = result["sparsification"].get(method)
        areas = [f"{known[name][figure]:.4f}" if known else ""
                 for name in depth.MEASURES for figure in ("ause", "aurg")]  # fmt: skip
        figures = [f"{found[name]:.3f}" for name in ("abs_rel", "rmse", "a1")]
        lines.append([NAMES[method], *figures, *areas])
    return rows(head, lines)


def _bins(result: dict[str, Any]) -> str:
    lines = [
        [f"{NAMES[method]}: {what}", *(f"{value:.2f}" for value in found[key])]
        for method, found in result["by_error"].items()
        for key, what in (("error", "mean absolute error, m"), ("std", "mean σ, m"))
    ]
    return rows(["tenths of the pixels by error", *(f"{n + 1}." for n in range(BINS))], lines)


def _samples(result: dict[str, Any]) -> str:
    times = dict(zip(result["runtime"]["counts"], result["runtime"]["mc"], strict=True))
    lines = [
        [f"{count}", f"{sampling_error_of_variance(count):.1%}",
         *(f"{result['difference'][walk][i]:.1%}" for walk in (OURS, PAPER)),
         f"{times[count]:.2f}" if count in times else ""]
        for i, count in enumerate(result["counts"])
    ]  # fmt: skip
    head = ["samples", "difference by sampling error alone", "difference to ours",
            "to the paper's rule", "seconds per frame"]  # fmt: skip
    return rows(head, lines)


def _words(result: dict[str, Any]) -> str:
    times, known = result["runtime"], result["by_error"]
    ranks = ", ".join(f"{NAMES[name]} {found['spearman']:.2f}" for name, found in known.items())
    chance = sampling_error_of_variance(result["counts"][-1])
    floor = {walk: result["difference"][walk][-1] for walk in (OURS, PAPER)}
    return (
        f"One frame takes {times[OURS]:.2f} s with ours, {times[PAPER]:.2f} s with the paper's "
        f"rule and {times['plain']:.2f} s with the plain network: MC-{times['counts'][-1]} / ours "
        f"is {times['ratio'][OURS]:.1f} ({times['ratio'][PAPER]:.1f} by the paper's rule; PyTorch, "
        f"layers before the dropout run once, {times['way']}). The difference is the mean absolute "
        "difference of the variance of the disparity over the mean of MC's; the paper draws it "
        f"without printing figures. At {result['counts'][-1]} samples it is {floor[OURS]:.1%} "
        f"({floor[PAPER]:.1%} by the paper's rule); sampling error alone accounts for {chance:.1%}."
        "\n\n"
        f"σ of the depth is z σ / d of the disparity. Its rank correlation with the error, pixel "
        f"by pixel: {ranks}. AUSE is how much worse it ranks pixels than the error itself (0 is "
        "best), AURG how much better than a random order (more is better), both as means over the "
        "frames (Poggi et al. 2020).\n\n"
        f"What differs from the paper: {result['frames']} frames of one drive, and a network of "
        f"{result['width']:g} times the width, with a dropout rate of {result['rate']:g}."
    )


def draw(result: dict[str, Any]) -> Figure:
    """The paper's two figures, and the sparsification."""
    figure, ((error, time, sparse),) = axes_grid(1, 3, (4.4, 3.7))
    for method, colour, marker in ((MC, BLUE, "o"), (OURS, ORANGE, "s")):
        found = result["by_error"][method]
        error.plot(found["error"], found["std"], f"{marker}-", ms=4, color=colour,
                   label=NAMES[method])  # fmt: skip
        curve = np.array(result["sparsification"][method]["abs_rel"]["curve"])
        removed = np.arange(len(curve)) / len(curve) * 100
        sparse.plot(removed, curve, color=colour, label=NAMES[method])
    error.set(xlabel="absolute error of the depth, m (means of tenths)", ylabel="mean σ, m",
              title="a) standard deviation by error", xlim=(0, None), ylim=(0, None))  # fmt: skip
    error.legend(fontsize=8)
    oracle = np.array(result["sparsification"][OURS]["abs_rel"]["oracle"])
    sparse.plot(removed, oracle, "--", color=GREY, label="oracle")
    sparse.axhline(oracle[0], color=GREY, linestyle=":", label="at random")
    sparse.set(xlabel="most uncertain pixels removed, %", ylabel="abs rel of the rest",
               title="c) sparsification", ylim=(0, None))  # fmt: skip
    sparse.legend(fontsize=8)
    _draw_samples(time, result)
    return figure


def _draw_samples(axes: Any, result: dict[str, Any]) -> None:
    times = result["runtime"]
    axes.plot(times["counts"], times["mc"], "o-", ms=4, color=BLUE, label="MC, time")
    axes.axhline(times[OURS], color=ORANGE, label="ours, time")
    axes.set(xscale="log", yscale="log", xlabel="samples", ylabel="seconds per frame",
             title="b) runtime and difference")  # fmt: skip
    other = axes.twinx()
    other.spines["right"].set_visible(True)
    for walk, colour, style in ((PAPER, GREEN, "^--"), (OURS, RED, "v-")):
        other.plot(result["counts"], 100 * np.array(result["difference"][walk]), style, ms=4,
                   color=colour, label=f"MC - {NAMES[walk]}, variance")  # fmt: skip
    chance = [100 * sampling_error_of_variance(count) for count in result["counts"]]
    other.plot(result["counts"], chance, ":", color=GREY, label="sampling error alone")
    other.set(yscale="log", ylabel="mean difference of the variance, %")
    axes.set_xticks(result["counts"], [str(count) for count in result["counts"]])
    for axis in (axes.xaxis, axes.yaxis, other.yaxis):
        axis.set_minor_formatter(NullFormatter())
    for axis in (axes.yaxis, other.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
    other.grid(visible=False)
    lines = [*axes.get_lines(), *other.get_lines()]
    other.legend(lines, [str(line.get_label()) for line in lines], fontsize=7, loc="upper center",
                 bbox_to_anchor=(0.5, -0.15), ncols=2)  # fmt: skip


def panel(setting: ExperimentSetting, result: dict[str, Any]) -> Figure:
    """The paper's rows: image, depth, and the logarithm of the variance, sampled and propagated."""
    network = load_network(BUNDLES["network"])
    recordings = depth.frames(setting.data_set(NEEDS), EVERY)
    cells, logs = [], []
    for place in dict.fromkeys(place % len(recordings) for place in SHOWN):
        frame = depth.read(recordings[place])
        found = {
            MC: depth.sampled(setting, network, frame, COUNTS)[SAMPLES],
            OURS: depth.propagated(network, OURS, frame),
        }
        metres = {
            name: depth.depth_estimate(network, frame, one).depth for name, one in found.items()
        }
        variances = {name: _log_variance(network.outputs(one, frame.image)["uncertainty"])
                     for name, one in found.items()}  # fmt: skip
        logs.append(variances[MC])
        cells += [
            [("image", frame.image), (f"MC-{SAMPLES} depth", colour_depth(metres[MC])),
             ("our depth", colour_depth(metres[OURS]))],
            [("LiDAR", _points(frame.truth)), (f"MC-{SAMPLES} variance", variances[MC]),
             ("our variance", variances[OURS])],
        ]  # fmt: skip
    low, high = (float(np.quantile(logs, share)) for share in (0.005, 0.995))
    what = (
        "log10 of the variance of the disparity (image widths²); depth: yellow 1 m to violet 80 m"
    )
    return grid(cells, (what, low, high, "inferno"), wide=4.0)


def _log_variance(std: np.ndarray) -> np.ndarray:
    return 2 * np.log10(np.maximum(std, np.finfo(np.float32).tiny))


def _points(truth: np.ndarray) -> np.ndarray:
    """Measured depth in colours on black, dilated to be visible."""
    import cv2

    colours = colour_depth(np.maximum(truth, 1e-3))
    colours[truth <= 0] = 0
    return cv2.dilate(colours, np.ones((3, 3), np.uint8))
