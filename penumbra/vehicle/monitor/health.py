"""Health of the camera: which of its scores left their normal range, and for how long.

    monitor = HealthMonitor(normal, "bgr8")
    findings = monitor.update(image, time.monotonic())      # for every frame; empty: healthy

The image is the camera's own, before it is fitted to the size of a network: works with any bundle.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from penumbra.vehicle.monitor.health_range import SCORES, HealthRange
from penumbra.vehicle.monitor.health_scores import Measured, measure
from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.verdict import Direction

WARN_FRAMES = (2, 3)  # N of the last M frames out of range: WARN
ALERT_FRAMES = (3, 5)  # N of the last M frames twice as far out: ALERT
ALERT_EXCESS = 2.0
GAP = 5.0  # seconds without a frame, after which the frames before say nothing


@dataclass(frozen=True)
class HealthFinding:
    """A score that is out of range; the most urgent finding comes first."""

    name: str
    level: Level  # WARN or ALERT
    score: float
    threshold: float
    direction: Direction
    unit: str
    excess: float  # distance from the normal value; 1 is the threshold
    reason: str


class HealthMonitor:
    """The findings on one camera, with hysteresis. Not thread-safe: one camera, one thread."""

    def __init__(self, normal: HealthRange, order: str) -> None:
        self._normal, self._order = normal, order
        self._last_frame = -np.inf
        self.excess = np.nan  # of the last frame: the largest; over 1 is out of range
        self._start()

    def update(self, image: np.ndarray, now: float) -> list[HealthFinding]:
        """Judge a frame: `uint8`, height x width x 3; `now` in seconds of a steady clock."""
        return self.step(measure(image, self._order), now)

    def step(self, measured: Measured, now: float) -> list[HealthFinding]:
        """Judge a frame that was measured already, which is nearly all of the work."""
        if now - self._last_frame > GAP:
            self._start()
        self._last_frame = now
        values = self._history.step(measured)
        excesses = self._normal.excesses(values)
        self.excess = max(excesses.values(), default=0.0)
        found = []
        for name, excess in excesses.items():
            recent = self._recent[name]
            recent.append(excess)
            level = _level(recent)
            if level is not Level.OK:
                found.append(self._finding(name, level, values[name], excess))
        return sorted(found, key=lambda finding: (-finding.level, -finding.excess))

    def _start(self) -> None:
        self._history = self._normal.history()
        longest = max(WARN_FRAMES[1], ALERT_FRAMES[1])
        self._recent: dict[str, deque[float]] = {
            name: deque(maxlen=longest) for name in self._normal.scores
        }

    def _finding(self, name: str, level: Level, value: float, excess: float) -> HealthFinding:
        score, known = SCORES[name], self._normal.scores[name]
        # A finding that outlasts its cause by a frame or two has its score back in range.
        above = value >= known.centre if score.above and score.below else score.above
        threshold = known.high if above else known.low
        side = "over" if above else "under"
        reason = f"{score.what}: {value:.3g} {score.unit}, normally not {side} {threshold:.3g}"
        direction = Direction.ABOVE if above else Direction.BELOW
        return HealthFinding(name, level, value, threshold, direction, score.unit, excess, reason)


def _level(recent: deque[float]) -> Level:
    """The level of one score after its last excesses."""
    frames = list(recent)
    needed, window = ALERT_FRAMES
    if sum(excess > ALERT_EXCESS for excess in frames[-window:]) >= needed:
        return Level.ALERT
    needed, window = WARN_FRAMES
    return Level.WARN if sum(excess > 1 for excess in frames[-window:]) >= needed else Level.OK
