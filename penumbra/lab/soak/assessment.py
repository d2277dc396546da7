"""The verdict of a soak test: growth of resources and latency, and lost frames.

The first tenth of the time is for settling: caches fill, the middleware touches its shared memory.
The growth of memory, handles and threads is the median of the last tenth minus the median of the
second tenth, which detects a slope as well as a step:

    growth = median(x[0.9 T .. T]) - median(x[0.1 T .. 0.2 T])

A steady leak of r per second shows as 0.8 r T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.replay.load_record import LoadRecord

# A node with a stub engine grew by 0.2 MiB over 10,000 frames; the allocator's arenas and the
# middleware's buffers vary by a few MiB. A leak of one label map (480x360: 0.16 MiB) every 500
# frames exceeds this after an hour at 10 Hz.
MEMORY_MIB = 5.0
LATENCY = 1.05
FEWEST = 20  # frames, and samples of the process: two in every tenth


@dataclass(frozen=True)
class SoakFinding:
    """One line of the verdict."""

    what: str
    value: float
    limit: float
    passed: bool
    text: str


def assess(record: LoadRecord) -> list[SoakFinding]:
    """All criteria, with whether each is met."""
    lost = f"{record.lost} of {len(record.sent)}"
    reasons = ", ".join(f"{count} {why}" for why, count in record.dropped.items() if count)
    findings = [
        _growth("memory", [h.memory_mib for h in record.usage], record, MEMORY_MIB, "MiB"),
        _growth("handles", [h.handles for h in record.usage], record, 0, ""),
        _growth("threads", [h.threads for h in record.usage], record, 0, ""),
        _latency(record),
        SoakFinding(
            "frames lost",
            record.lost,
            0,
            record.lost == 0 and bool(record.sent),
            f"{lost} (dropped by the node: {reasons})" if reasons else lost,
        ),
    ]
    if record.node_ended:
        text = f"unexpectedly, after {record.seconds:.0f} s: see its log"
        findings.append(SoakFinding("node ended", 1, 0, False, text))
    return findings


def growth(values: Sequence[float]) -> float:
    """The median of the last tenth minus that of the second."""
    return float(np.median(tenth(values, 9)) - np.median(tenth(values, 1)))


def slope(seconds: Sequence[float], values: Sequence[float]) -> float:
    """Per hour, by least squares, without the first tenth."""
    first = len(values) // 10
    times = np.asarray(seconds[first:], float)
    if np.ptp(times) == 0:
        return float("nan")
    return float(np.polyfit(times - times.mean(), np.asarray(values[first:], float), 1)[0] * 3600)


def _growth(
    what: str, values: Sequence[float], record: LoadRecord, limit: float, unit: str
) -> SoakFinding:
    if len(values) < FEWEST:
        return _too_few(what, len(values), "samples of the process", limit)
    grown = growth(values)
    before, after = np.median(tenth(values, 1)), np.median(tenth(values, 9))
    if unit:
        per_hour = slope([h.seconds for h in record.usage], values)
        text = f"{before:.1f} to {after:.1f} {unit} ({grown:+.1f}; by least squares "
        text += f"{per_hour:+.1f} an hour)"
    else:
        text = f"{before:.0f} to {after:.0f}"
    return SoakFinding(what, grown, limit, grown <= limit, text)


def _latency(record: LoadRecord) -> SoakFinding:
    """The median of the last tenth of the frames over that of the first."""
    what = "latency, last / first tenth"
    if len(record.latency_ms) < FEWEST:
        return _too_few(what, len(record.latency_ms), "frames", LATENCY)
    known = [np.asarray(tenth(record.latency_ms, place)) for place in (0, 9)]
    known = [values[~np.isnan(values)] for values in known]
    if not all(values.size for values in known):
        return SoakFinding(what, float("nan"), LATENCY, False, "all frames of a tenth were lost")
    first, last = map(np.median, known)
    p99 = np.nanquantile(record.latency_ms, 0.99)
    text = f"{first:.1f} to {last:.1f} ms ({last / first:.3f} times; p99 of all {p99:.1f} ms)"
    return SoakFinding(what, float(last / first), LATENCY, bool(last / first <= LATENCY), text)


def tenth(values: Sequence[float], place: int) -> Sequence[float]:
    """The tenth of `values` that begins at `place` tenths of them."""
    count = len(values)
    return values[count * place // 10 : count * (place + 1) // 10]


def _too_few(what: str, count: int, of: str, limit: float) -> SoakFinding:
    text = f"cannot be judged from {count} {of}: at least {FEWEST} are needed"
    return SoakFinding(what, float("nan"), limit, False, text)
