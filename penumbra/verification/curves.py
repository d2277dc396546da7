"""The curves of the report, each an SVG of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from penumbra.verification.comparison import DECADES, OURS, SAMPLED

NAMES = {OURS: "propagated", SAMPLED: "Monte Carlo"}
_COLOURS = {OURS: "#1f5fa8", SAMPLED: "#d9772b"}
_GREY = "#888888"


def density(counts: np.ndarray) -> str:
    """Every pixel's standard deviation, propagated over sampled; on the line they are equal."""

    from matplotlib.ticker import NullFormatter

    def draw(axes: Any) -> None:
        shown = np.argwhere(counts)
        # Of the lowest decades only what one pixel in a thousand reaches.
        mass = np.cumsum(counts.sum(1)) / max(1, counts.sum())
        first = max(int(np.searchsorted(mass, 1e-3)) - 2, 0)
        last = int(shown.max()) + 3 if len(shown) else len(counts)
        edges = 10.0**DECADES
        high = edges[min(last, len(edges) - 1)]
        low = min(edges[first], high / 10)  # a whole decade at least, so that the axes have numbers
        share = np.ma.masked_equal(counts.T, 0)
        axes.pcolormesh(edges, edges, share, norm="log", cmap="viridis", rasterized=True)
        axes.plot([low, high], [low, high], color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="standard deviation by Monte Carlo", ylabel="propagated")
        axes.set_title("all pixels, propagated over sampled")

    return _svg(draw)


def error_by_quantile(calibration: dict[str, Any], what: str) -> str:
    """How often the prediction is wrong, from the most certain tenth of the pixels on."""

    def draw(axes: Any) -> None:
        for method, curves in calibration.items():
            rates = np.array(curves["quantiles"])
            places = (np.arange(len(rates)) + 0.5) / len(rates) * 100
            axes.plot(places, rates, "o-", color=_COLOURS[method], label=NAMES[method], ms=4)
        axes.set(xlabel="pixels by uncertainty, percentile", ylabel=what, ylim=(0, None))
        axes.set_title("error by uncertainty, tenth by tenth")
        axes.legend(frameon=False)

    return _svg(draw)


def sparsification(calibration: dict[str, Any], what: str) -> str:
    """What is left of the error when the most uncertain pixels are left out."""

    def draw(axes: Any) -> None:
        for method, curves in calibration.items():
            curve = np.array(curves["curve"])
            removed = np.arange(len(curve)) / len(curve) * 100
            axes.plot(removed, curve, color=_COLOURS[method], label=NAMES[method])
        oracle = np.array(calibration[OURS]["oracle"])
        axes.plot(removed, oracle, color=_GREY, linestyle="--", label="oracle")
        axes.axhline(oracle[0], color=_GREY, linestyle=":", label="random")
        axes.set(xlabel="most uncertain pixels removed, %", ylabel=f"{what} of the rest")
        axes.set(ylim=(0, None))
        axes.set_title("sparsification")
        axes.legend(frameon=False)

    return _svg(draw)


def over_frames(
    per_frame: list[dict[str, Any]], name: str, title: str, tolerance: float | None,
    noise: Callable[[dict[str, Any]], float],
) -> str:  # fmt: skip
    """One figure along the drive, with the noise of the reference, and the tolerance."""

    def draw(axes: Any) -> None:
        times = [frame["time_s"] for frame in per_frame]
        values = np.array([frame[name] for frame in per_frame])
        spread = np.array([noise(frame) for frame in per_frame])
        axes.errorbar(times, values, spread, fmt="o-", ms=4, color=_COLOURS[OURS], capsize=2,
                      elinewidth=0.8, label="figure ± noise of the reference")  # fmt: skip
        if tolerance is not None:
            axes.axhline(tolerance, color="#b2182b", linewidth=0.9, label="tolerance")
        axes.set(xlabel="time in the bag, s")
        axes.set_title(title)
        axes.legend(frameon=False)

    return _svg(draw)


def _svg(draw: Callable[[Any], None]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
             "axes.spines.right": False, "svg.hashsalt": "penumbra"}  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(4.6, 3.4), layout="constrained")
        draw(figure.subplots())
        content = io.StringIO()
        figure.savefig(content, format="svg", dpi=150, metadata={"Date": None})
    return content.getvalue()
