"""Counters, rates and latencies of one camera's images."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median
from threading import Lock

WINDOW = 5.0  # seconds over which a rate is averaged


class Rate:
    """Events per second, averaged over WINDOW."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._times: deque[float] = deque()

    def add(self, now: float) -> None:
        """Count one event."""
        self._times.append(now)
        self._expire(now)

    def at(self, now: float) -> float:
        """The rate at time `now`."""
        self._expire(now)
        return len(self._times) / max(min(WINDOW, now - self._since), 0.1)

    def _expire(self, now: float) -> None:
        while self._times and self._times[0] < now - WINDOW:
            self._times.popleft()


@dataclass
class Timings:
    """Stage times of the last processed image in milliseconds, as in FrameStats."""

    age_ms: float = math.nan
    wait_ms: float = math.nan
    convert_ms: float = math.nan
    infer_ms: float = math.nan
    postprocess_ms: float = math.nan
    publish_ms: float = math.nan
    total_ms: float = math.nan


@dataclass
class Counts:
    """Counts since the camera was opened. Hold `lock` to change them or to read several."""

    since: float  # steady clock, as all times here
    received: int = 0
    processed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # busy, old, rate, invalid, failed
    invalid: Counter[str] = field(default_factory=Counter)  # by reason of the conversion
    last_error: str = ""  # of a conversion
    last_arrival: float = math.nan
    timings: Timings = field(default_factory=Timings)
    totals: deque[float] = field(default_factory=lambda: deque(maxlen=50))  # seconds

    def __post_init__(self) -> None:
        self.lock = Lock()
        self.input_rate, self.output_rate = Rate(self.since), Rate(self.since)

    def add_arrival(self, now: float) -> None:
        """Count an image that arrived."""
        self.received += 1
        self.last_arrival = now
        self.input_rate.add(now)

    def add_drop(self, why: str, error: Exception, reason: str | None = None) -> None:
        """Count a dropped image: `why` as in `dropped`, `reason` as in `invalid`."""
        self.dropped[why] += 1
        if reason is not None:
            self.invalid[reason] += 1
            self.last_error = str(error)

    def add_result(self, now: float, timings: Timings) -> None:
        """Count an image whose results were published."""
        self.processed += 1
        self.timings = timings
        self.totals.append(timings.total_ms / 1e3)
        self.output_rate.add(now)

    def median_latency(self) -> float:
        """Median latency in seconds; NaN before the first result."""
        return median(self.totals) if self.totals else math.nan
