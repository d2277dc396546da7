"""Monocular depth on KITTI: uncertainty against error, and Monte Carlo against samples.

The paper's second task: Monodepth with one dropout in front of its last convolution, whose noise
propagation follows exactly up to the sigmoid. Ours is what the bundle computes (moments of the
sigmoid); the paper's rule is the sigmoid's first order. Depth is judged against LiDAR.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from penumbra.lab.drawing import BLUE, GREEN, GREY, ORANGE, RED, plate
from penumbra.lab.experiments.pictures import depth
from penumbra.lab.experiments.pictures.networks import OURS, PAPER, load
from penumbra.lab.experiments.pictures.panels import grid
from penumbra.lab.experiments.pictures.runtime import runtime
from penumbra.lab.experiments.pictures.sampling_noise import variance_off_by_chance
from penumbra.lab.experiments.reporting import Setting
from penumbra.lab.experiments.reporting.markdown import rows
from penumbra.offline.metrics.agreement import Sparsification, by_quantile, spearman
from penumbra.offline.metrics.depth import DepthErrors
from penumbra.vehicle.colours import colour_depth

NEEDS = "kitti/raw"
BUNDLES = {"network": "monodepth-kitti"}
SAMPLES = 50  # of Monte Carlo, as the paper's
COUNTS = (2, 3, 5, 10, 20, 50, 100, 200)  # along which it comes near to ours
EVERY = 5  # one frame in so many: 16 of 78, which are one drive
BINS = 10  # of the absolute error, with as many pixels in each
SHOWN = (0, 5, 10)  # of these frames, in the panel
MC, PLAIN = "mc", "deterministic"
NAMES = {PLAIN: "deterministic", MC: "MC", OURS: "ours", PAPER: "the paper's rule"}


def measure(setting: Setting) -> dict[str, Any]:
    network = load(BUNDLES["network"])
    recordings = depth.frames(setting.data / NEEDS, EVERY)
    errors = {method: DepthErrors() for method in (PLAIN, MC, OURS)}
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
            for walk, found in walked.items():
                off[walk][i] += float((found.variance - variance).abs().mean())
        answers = {PLAIN: depth.plain(network, frame), MC: reference[SAMPLES], OURS: walked[OURS]}
        for method, disparity in answers.items():
            found = depth.metres(network, frame, disparity)
            errors[method].add(frame.truth, found.depth)
            if method in pixels:
                judged = found.at(depth.known(frame))
                pixels[method].append((depth.errors(frame, found), judged.std))
                known[method].append(depth.sparsifications(frame, found))
    first = depth.read(recordings[0])
    return {
        "samples": SAMPLES,
        **{name: network.bundle.manifest["variant"][name] for name in ("width", "rate")},
        "frames": len(recordings),
        "counts": list(COUNTS),
        "difference": {walk: (total / size).tolist() for walk, total in off.items()},
        "errors": {method: found.summary() for method, found in errors.items()},
        "by_error": {method: _by_error(found) for method, found in pixels.items()},
        "sparsification": {method: _curves(found) for method, found in known.items()},
        "runtime": runtime(network, network.input(first.image)),
    }


def _by_error(frames: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Mean error and mean standard deviation (metres) in each part of the pixels, by error."""
    error, std = (np.concatenate(part) for part in zip(*frames, strict=True))
    return {
        "error": by_quantile(error, error, BINS).tolist(),
        "std": by_quantile(std, error, BINS).tolist(),
        "spearman": spearman(error, std),
    }


def _curves(frames: list[dict[str, Sparsification]]) -> dict[str, Any]:
    """By measure, the mean over the frames."""
    found = {
        name: Sparsification.mean([frame[name] for frame in frames]) for name in depth.MEASURES
    }
    return {
        name: {"ause": one.ause, "aurg": one.aurg, "curve": one.curve.tolist(),
               "oracle": one.oracle.tolist()}
        for name, one in found.items()
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
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
        [f"{count}", f"{variance_off_by_chance(count):.1%}",
         *(f"{result['difference'][walk][i]:.1%}" for walk in (OURS, PAPER)),
         f"{times[count]:.2f}" if count in times else ""]
        for i, count in enumerate(result["counts"])
    ]  # fmt: skip
    head = ["samples", "variance off, by chance alone", "off ours", "off the paper's rule",
            "seconds of a frame"]  # fmt: skip
    return rows(head, lines)


def _words(result: dict[str, Any]) -> str:
    times, known = result["runtime"], result["by_error"]
    ranks = ", ".join(f"{NAMES[name]} {found['spearman']:.2f}" for name, found in known.items())
    chance = variance_off_by_chance(result["counts"][-1])
    floor = {walk: result["difference"][walk][-1] for walk in (OURS, PAPER)}
    return (
        f"A frame takes ours {times[OURS]:.2f} s, the paper's rule {times[PAPER]:.2f} s, the plain "
        f"network {times['plain']:.2f} s: MC-{times['counts'][-1]} / ours is "
        f"{times['ratio'][OURS]:.1f} ({times['ratio'][PAPER]:.1f} by the paper's rule; PyTorch, "
        f"what stands before the dropout computed once, {times['way']}). Variance is that of the "
        "disparity; off is the mean absolute difference over the mean of MC's, which the paper "
        f"draws and does not print. At {result['counts'][-1]} samples {floor[OURS]:.1%} is left "
        f"({floor[PAPER]:.1%} by the paper's rule), {chance:.1%} would be chance.\n\n"
        f"σ of the depth is z σ / d of the disparity. Its rank correlation with the error, pixel "
        f"by pixel: {ranks}. AUSE says how much worse it is than removing the most wrong pixels "
        "first (0 is best), AURG how much better than removing at random (more is better), both as "
        "means over the frames (Poggi et al. 2020).\n\n"
        f"What differs from the paper: {result['frames']} frames of one drive, and a network of "
        f"{result['width']:g} times the width, with a dropout rate of {result['rate']:g}."
    )


def draw(result: dict[str, Any]) -> Figure:
    """The paper's two figures, and the sparsification."""
    figure, ((error, time, sparse),) = plate(1, 3, (4.4, 3.7))
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
    axes.set(xscale="log", yscale="log", xlabel="samples", ylabel="seconds of a frame",
             title="b) runtime and difference")  # fmt: skip
    other = axes.twinx()
    other.spines["right"].set_visible(True)
    for walk, colour, style in ((PAPER, GREEN, "^--"), (OURS, RED, "v-")):
        other.plot(result["counts"], 100 * np.array(result["difference"][walk]), style, ms=4,
                   color=colour, label=f"MC - {NAMES[walk]}, variance")  # fmt: skip
    chance = [100 * variance_off_by_chance(count) for count in result["counts"]]
    other.plot(result["counts"], chance, ":", color=GREY, label="by chance alone")
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


def panel(setting: Setting, result: dict[str, Any]) -> Figure:
    """The paper's rows: input, depth, and the logarithm of the variance, sampled and propagated."""
    network = load(BUNDLES["network"])
    recordings = depth.frames(setting.data / NEEDS, EVERY)
    cells, logs = [], []
    for place in dict.fromkeys(place % len(recordings) for place in SHOWN):
        frame = depth.read(recordings[place])
        found = {
            MC: depth.sampled(setting, network, frame, COUNTS)[SAMPLES],
            OURS: depth.propagated(network, OURS, frame),
        }
        metres = {name: depth.metres(network, frame, one).depth for name, one in found.items()}
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
    """Measured depth in colours, large enough to be seen, on black."""
    import cv2

    colours = colour_depth(np.maximum(truth, 1e-3))
    colours[truth <= 0] = 0
    return cv2.dilate(colours, np.ones((3, 3), np.uint8))
