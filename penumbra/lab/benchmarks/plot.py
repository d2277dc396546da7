"""One figure: how time scales, and every ratio with its goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from penumbra.errors import PenumbraError
from penumbra.lab.benchmarks.goals import GOALS, Goal, Measured
from penumbra.lab.figure_style import BLACK, BLUE, ORANGE, RED, png

_UNITS = {"pixels": "pixels of the image", "multiply-adds": "multiply-adds of the network"}
_SLOPES = tuple(_UNITS)


def draw(measured: Measured, scaling: Mapping[str, Any] | None) -> bytes:
    """A PNG of the available measurements."""
    ratios = [goal for goal in GOALS.values() if not goal.unit and goal.key not in _SLOPES]
    values = [(goal, measured.get(goal.key)) for goal in ratios]
    bars = [(goal, value) for goal, value in values if isinstance(value, float)]
    if not bars and not scaling:
        raise PenumbraError("--plot: this measurement has no ratio to draw; leave it out")
    return png(lambda: _figure(bars, scaling))


def _figure(bars: list[tuple[Goal, float]], scaling: Mapping[str, Any] | None) -> Figure:
    wide, high = 8.5 if bars else 0, 1.2 + 0.36 * len(bars)
    columns = [5.2] * bool(scaling) + [wide] * bool(bars)
    figure = Figure(figsize=(sum(columns), max(high, 4.4)), layout="constrained")
    axes = list(figure.subplots(1, len(columns), width_ratios=columns, squeeze=False)[0])
    if scaling:
        _lines(axes.pop(0), scaling)
    if bars:
        _bars(axes.pop(0), bars)
    return figure


def _lines(axes: Axes, scaling: Mapping[str, Any]) -> None:
    """Each line relative to its smallest size, so that both fit into one plot."""
    styles = {"pixels": (BLUE, "o", "-"), "multiply-adds": (ORANGE, "s", "--")}
    longest = 1.0
    for name, line in scaling.items():
        amounts = np.array([point["amount"] for point in line["points"]], float)
        times = np.array([point["median_ms"] for point in line["points"]])
        colour, marker, dashes = styles[name]
        label = f"{_UNITS[name]}: slope {line['slope']:.3f}"
        axes.plot(amounts / amounts[0], times / times[0], color=colour, marker=marker,
                  linestyle=dashes, label=label)  # fmt: skip
        longest = max(longest, amounts[-1] / amounts[0])
    axes.plot([1, longest], [1, longest], color=BLACK, linewidth=0.8, linestyle=":",
              label="proportional: slope 1")  # fmt: skip
    axes.set(xscale="log", yscale="log", title="Time of one propagated frame")
    axes.set(xlabel="size relative to the smallest", ylabel="time relative to the smallest")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_numbers(axis)
    axes.set_box_aspect(1)
    axes.set_anchor("N")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=8)


def _bars(axes: Axes, bars: list[tuple[Goal, float]]) -> None:
    """Ratios as bars from 1 in either direction; the goal as a mark across each."""
    places = np.arange(len(bars))[::-1]
    values = np.array([value for _, value in bars])
    goals = np.array([goal.limit for goal, _ in bars])
    reached = np.array([goal.reached(value) for goal, value in bars])
    for which, colour, hatch, label in (
        (reached, BLUE, "", "goal reached"),
        (~reached, RED, "////", "goal missed"),
    ):
        if which.any():
            axes.barh(places[which], values[which] - 1, left=1, height=0.62, color=colour,
                      hatch=hatch, edgecolor="white", label=label)  # fmt: skip
    axes.plot(goals, places, "|", color=BLACK, markersize=15, markeredgewidth=2, label="goal")
    axes.axvline(1, color=BLACK, linewidth=0.8)
    low, high = min(0.8, *values * 0.9, *goals * 0.9), max(2.0, *values, *goals)
    for place, value, (goal, _) in zip(places, values, bars, strict=True):
        end = max(value, goal.limit, 1.0)
        axes.text(end * 1.06, place, f"{value:.3g} ({goal.text})", va="center", fontsize=8)
    axes.set(xscale="log", xlim=(low, high * 2.2), yticks=places, xlabel="ratio")
    axes.set_yticklabels([goal.what for goal, _ in bars], fontsize=8)
    axes.set(ylim=(-0.7, len(bars) - 0.3), title="Ratios within one run, and their goals")
    axes.grid(visible=False, axis="y")
    _plain_numbers(axes.xaxis)
    # Below the axes: bars of any length may leave no room between them.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -1.1 / (len(bars) + 4)), ncols=3,
                fontsize=8, markerscale=0.6)  # fmt: skip


def _plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10 … instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
