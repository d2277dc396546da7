"""Hysteresis of one score: when frames over its threshold raise an ALERT, and when it ends."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.settings import LONGEST_WINDOW, MonitorSettings

NO_THRESHOLDS = (
    "the bundle has no thresholds: run `penumbra fit-alerts` on it, or set ood.frame_threshold and "
    "ood.pixel_threshold"
)


class Hysteresis:
    """The level of one score.

    OK and WARN follow the single frame. An ALERT is raised by enough of the last frames over the
    threshold, and ended by enough frames under it. A gap between frames changes neither: frames
    count, not time.
    """

    def __init__(self) -> None:
        # Scores, not levels: a new threshold also applies to recent frames.
        self._scores: deque[float] = deque(maxlen=LONGEST_WINDOW)
        self._alert = False
        self._frames_in_alert = 0  # judged since it was raised

    def step(self, score: float, settings: MonitorSettings) -> tuple[Level, str]:
        """The level after this frame, and its reason."""
        self._scores.append(score)
        needed, window = settings.raise_frames
        over = self._count_over(window, settings)
        judged = min(window, len(self._scores))
        tally = f"in {over} of {judged} frame{'s' if judged > 1 else ''}"
        self._frames_in_alert += 1
        if over >= needed:
            if not self._alert:
                self._alert, self._frames_in_alert = True, 0
        elif self._alert:
            clear, clear_window = settings.clear_frames
            since = min(clear_window, self._frames_in_alert, len(self._scores))
            under = since - self._count_over(since, settings)
            if under >= clear:
                self._alert = False
            else:
                tally = f"in {under} of {clear} frames that end the alert"
        is_over = _is_over(score, settings)
        if not is_over and not self._alert:
            if not settings.has_thresholds:
                return Level.WARN, NO_THRESHOLDS
            return Level.OK, _compared(score, settings)
        return (
            Level.ALERT if self._alert else Level.WARN,
            f"{_compared(score, settings)} {tally}",
        )

    def _count_over(self, frames: int, settings: MonitorSettings) -> int:
        return sum(_is_over(score, settings) for score in islice(reversed(self._scores), frames))


def _is_over(score: float, settings: MonitorSettings) -> bool:
    """Whether the score is over its threshold; without one, whether it is non-finite."""
    threshold = settings.frame_threshold
    if threshold is None:
        return not math.isfinite(score)
    return not score <= threshold  # NaN is over, too


def _compared(score: float, settings: MonitorSettings) -> str:
    text = f"score {score:.3g}"
    if settings.frame_threshold is not None:
        side = "over" if _is_over(score, settings) else "under"
        text += f" {side} {settings.frame_threshold:.3g}"
    return text if math.isfinite(score) else f"non-finite uncertainty in some pixels; {text}"
