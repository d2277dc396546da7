"""The curves of the report, each an SVG of its own."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penumbra.verification.comparison import DECADES
from penumbra.verification.facts import OURS, SAMPLED, FrameFacts, SparsificationCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {OURS: "propagated", SAMPLED: "Monte Carlo"}
_COLOURS = {OURS: "#1f5fa8", SAMPLED: "#d9772b"}
_GREY = "#888888"


def density(counts: np.ndarray) -> str:
    """The standard deviation of every pixel, propagated over sampled; equal on the line."""

    from matplotlib.ticker import NullFormatter

    def draw(axes: Axes) -> None:
        shown = np.argwhere(counts)
        # The lowest decades are cut off where fewer than one pixel in a thousand is below.
        mass = np.cumsum(counts.sum(1)) / max(1, counts.sum())
        first = max(int(np.searchsorted(mass, 1e-3)) - 2, 0)
        last = int(shown.max()) + 3 if len(shown) else len(counts)
        edges = 10.0**DECADES
        high = edges[min(last, len(edges) - 1)]
        low = min(edges[first], high / 10)  # at least one decade, so that the axes have numbers
        share = np.ma.masked_equal(counts.T, 0)
        axes.pcolormesh(edges, edges, share, norm="log", cmap="viridis", rasterized=True)
        axes.plot([low, high], [low, high], color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="standard deviation by Monte Carlo", ylabel="propagated")
        axes.set_title("all pixels, propagated over sampled")

    return _svg(draw)


def error_by_quantile(sparsification: Mapping[str, SparsificationCurves], what: str) -> str:
    """The mean error by decile of the uncertainty, from the most certain pixels on."""

    def draw(axes: Axes) -> None:
        for method, curves in sparsification.items():
            rates = np.array(curves.quantiles)
            places = (np.arange(len(rates)) + 0.5) / len(rates) * 100
            axes.plot(places, rates, "o-", color=_COLOURS[method], label=NAMES[method], ms=4)
        axes.set(xlabel="pixels by uncertainty, percentile", ylabel=what, ylim=(0, None))
        axes.set_title("error by decile of the uncertainty")
        axes.legend(frameon=False)

    return _svg(draw)


def sparsification_curves(sparsification: Mapping[str, SparsificationCurves], what: str) -> str:
    """The mean error of the rest when the most uncertain pixels are removed."""

    def draw(axes: Axes) -> None:
        oracle = np.array(sparsification[OURS].oracle)
        removed = np.arange(len(oracle)) / len(oracle) * 100
        for method, curves in sparsification.items():
            axes.plot(removed, curves.curve, color=_COLOURS[method], label=NAMES[method])
        axes.plot(removed, oracle, color=_GREY, linestyle="--", label="oracle")
        axes.axhline(oracle[0], color=_GREY, linestyle=":", label="random")
        axes.set(xlabel="most uncertain pixels removed, %", ylabel=f"{what} of the rest")
        axes.set(ylim=(0, None))
        axes.set_title("sparsification")
        axes.legend(frameon=False)

    return _svg(draw)


def over_frames(
    per_frame: Sequence[FrameFacts],
    name: str,
    title: str,
    tolerance: float | None,
    noise: Callable[[Mapping[str, float]], float],
) -> str:
    """One figure along the drive, with the noise of the reference, and the tolerance."""

    def draw(axes: Axes) -> None:
        times = [frame.time_s for frame in per_frame]
        values = np.array([frame.figures[name] for frame in per_frame])
        spread = np.array([noise(frame.figures) for frame in per_frame])
        axes.errorbar(times, values, spread, fmt="o-", ms=4, color=_COLOURS[OURS], capsize=2,
                      elinewidth=0.8, label="figure ± noise of the reference")  # fmt: skip
        if tolerance is not None:
            axes.axhline(tolerance, color="#b2182b", linewidth=0.9, label="tolerance")
        axes.set(xlabel="time in the bag, s")
        axes.set_title(title)
        axes.legend(frameon=False)

    return _svg(draw)


def _svg(draw: Callable[[Axes], None]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(
        {
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.hashsalt": "penumbra",
        }
    ):
        figure = Figure(figsize=(4.6, 3.4), layout="constrained")
        draw(figure.subplots())
        content = io.StringIO()
        figure.savefig(content, format="svg", dpi=150, metadata={"Date": None})
    return content.getvalue()
