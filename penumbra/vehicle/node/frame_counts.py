"""Counters and latencies of one camera's images."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median
from threading import Lock

WINDOW = 5.0  # seconds that a rate looks back


class Rate:
    """Events per second, over the last seconds."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._times: deque[float] = deque()

    def note(self, now: float) -> None:
        """Count one event."""
        self._times.append(now)
        self._forget(now)

    def at(self, now: float) -> float:
        """The rate, seen from `now`."""
        self._forget(now)
        return len(self._times) / max(min(WINDOW, now - self._since), 0.1)

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] < now - WINDOW:
            self._times.popleft()


@dataclass
class Timings:
    """Where the time of the last processed image went, in milliseconds; as in FrameStats."""

    age_ms: float = math.nan
    wait_ms: float = math.nan
    convert_ms: float = math.nan
    infer_ms: float = math.nan
    postprocess_ms: float = math.nan
    publish_ms: float = math.nan
    total_ms: float = math.nan


@dataclass
class Counts:
    """Since the camera was opened. Hold `lock` to change them, or to read several at once."""

    since: float  # of a steady clock, as all times here
    received: int = 0
    processed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # busy, old, rate, invalid, failed
    invalid: Counter[str] = field(default_factory=Counter)  # by the conversion's reason
    last_complaint: str = ""  # of a conversion
    last_arrival: float = math.nan
    timings: Timings = field(default_factory=Timings)
    totals: deque[float] = field(default_factory=lambda: deque(maxlen=50))  # seconds

    def __post_init__(self) -> None:
        self.lock = Lock()
        self.input_rate, self.output_rate = Rate(self.since), Rate(self.since)

    def arrived(self, now: float) -> None:
        """Count an image that came in."""
        self.received += 1
        self.last_arrival = now
        self.input_rate.note(now)

    def lost(self, why: str, error: Exception, reason: str | None = None) -> None:
        """`why` as in `dropped`; `reason` if the image itself is at fault, as in `invalid`."""
        self.dropped[why] += 1
        if reason is not None:
            self.invalid[reason] += 1
            self.last_complaint = str(error)

    def done(self, now: float, timings: Timings) -> None:
        """Count an image whose results were published."""
        self.processed += 1
        self.timings = timings
        self.totals.append(timings.total_ms / 1e3)
        self.output_rate.note(now)

    def median_latency(self) -> float:
        """Seconds; NaN before the first result."""
        return median(self.totals) if self.totals else math.nan
