"""Memory, latency, handles and threads of a node over time."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.lab.soak.assessment import FEWEST, MEMORY_MIB, tenth
from penumbra.replay.load_record import LoadRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WINDOWS = 100  # of which the median is drawn


def draw(record: LoadRecord) -> bytes:
    """The plot as PNG."""
    try:
        from penumbra.lab import figure_style
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("penumbra"):
            raise
        raise PenumbraError(f"no plot without {error.name}: scripts/setup dev") from None
    return figure_style.png(lambda: _figure(record, figure_style))


def _figure(record: LoadRecord, style: ModuleType) -> Figure:
    figure, ((memory,), (latency,), (counts,)) = style.axes_grid(3, 1, (7.5, 2.2), sharex=True)
    unit, scale = ("minutes", 60) if record.seconds >= 180 else ("seconds", 1)
    watched = np.array([h.seconds for h in record.usage]) / scale
    held = [h.memory_mib for h in record.usage]
    memory.plot(watched, held, color=style.BLUE, label="the node")
    if len(held) >= FEWEST:
        limit = np.median(tenth(held, 1)) + MEMORY_MIB
        memory.axhline(limit, color=style.BLACK, linestyle=":", label="limit at the end")
    memory.set(ylabel="resident memory [MiB]", title=_title(record))
    memory.set_ylim(min(held, default=0) - MEMORY_MIB, None)
    sent, delay = np.array(record.sent) / scale, np.array(record.latency_ms)
    latency.plot(sent, delay, ".", color=style.GREY, markersize=3, alpha=0.6, label="each image")
    latency.plot(*_medians(sent, delay), color=style.RED, label="running median")
    for place, time in enumerate(sent[np.isnan(delay)]):
        name = "lost" if place == 0 else None
        latency.axvline(time, color=style.BLACK, linewidth=0.8, label=name)
    top = np.nanmax(delay) if np.isfinite(delay).any() else 1
    latency.set(ylabel="latency [ms]", ylim=(0, 1.15 * top))
    handles = [h.handles for h in record.usage]
    counts.plot(watched, handles, color=style.GREEN, label="open handles")
    threads = [h.threads for h in record.usage]
    counts.plot(watched, threads, color=style.ORANGE, linestyle="--", label="threads")
    top = max([*handles, *threads], default=1)
    counts.set(ylabel="count", xlabel=f"time [{unit}]", ylim=(0, 1.15 * top))
    for axes in (memory, latency, counts):
        axes.set_xlim(0, max(record.seconds / scale, 1e-9))
        axes.legend(loc="upper right" if axes is latency else "lower right", ncols=3)
        axes.axvspan(0, record.seconds / scale / 10, color=style.GREY, alpha=0.12, linewidth=0)
    return figure


def _title(record: LoadRecord) -> str:
    return (
        f"{record.bundle}, {len(record.sent)} images at {record.rate_hz:.3g} Hz, {record.lost} lost"
        " (grey: the first tenth)"
    )


def _medians(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians of time and value in windows of equally many frames."""
    known = ~np.isnan(values)
    parts = max(1, min(_WINDOWS, int(known.sum()) // 5))
    pairs = zip(
        np.array_split(times[known], parts), np.array_split(values[known], parts), strict=True
    )
    middle = [(np.median(t), np.median(v)) for t, v in pairs if t.size]
    return np.array([t for t, _ in middle]), np.array([v for _, v in middle])
