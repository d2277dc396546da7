"""Hysteresis of one score: when abnormal frames raise an ALERT, and when it ends."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.settings import LONGEST_WINDOW, MonitorSettings
from penumbra.vehicle.monitor.verdict import Direction


class Hysteresis:
    """The level of one score.

    OK and WARN follow the single frame. An ALERT is raised by enough of the last frames beyond the
    threshold, and ended by enough frames within it. A gap between frames changes neither: frames
    count, not time.
    """

    def __init__(self, direction: Direction = Direction.ABOVE) -> None:
        self._direction = direction
        # Scores, not levels: a new threshold also applies to recent frames.
        self._scores: deque[float] = deque(maxlen=LONGEST_WINDOW)
        self._alert = False
        self._frames_in_alert = 0  # judged since it was raised

    def step(
        self, score: float, threshold: float | None, settings: MonitorSettings
    ) -> tuple[Level, str]:
        """The level after this frame, and its reason; a threshold of None is not fitted."""
        self._scores.append(score)
        needed, window = settings.raise_frames
        beyond = self._count_beyond(window, threshold)
        judged = min(window, len(self._scores))
        tally = f"in {beyond} of {judged} frame{'s' if judged > 1 else ''}"
        self._frames_in_alert += 1
        if beyond >= needed:
            if not self._alert:
                self._alert, self._frames_in_alert = True, 0
        elif self._alert:
            clear, clear_window = settings.clear_frames
            since = min(clear_window, self._frames_in_alert, len(self._scores))
            within = since - self._count_beyond(since, threshold)
            if within >= clear:
                self._alert = False
            else:
                tally = f"in {within} of {clear} frames that end the alert"
        compared = self._compared(score, threshold)
        if self._alert:
            return Level.ALERT, f"{compared} {tally}"
        if self._is_beyond(score, threshold):
            return Level.WARN, f"{compared} {tally}"
        return Level.OK, compared

    def _count_beyond(self, frames: int, threshold: float | None) -> int:
        recent = islice(reversed(self._scores), frames)
        return sum(self._is_beyond(score, threshold) for score in recent)

    def _is_beyond(self, score: float, threshold: float | None) -> bool:
        """Whether the score is abnormal; without a threshold, whether it is non-finite."""
        if threshold is None or not math.isfinite(score):
            return not math.isfinite(score)
        return (score - threshold) * self._direction.value > 0

    def _compared(self, score: float, threshold: float | None) -> str:
        text = f"score {score:.3g}"
        if threshold is not None:
            over = score > threshold or not math.isfinite(score)
            text += f" {'over' if over else 'under'} {threshold:.3g}"
        return text
