"""The level of one camera, with hysteresis over its frames.

    monitor = Monitor(MonitorSettings(frame_threshold=0.22, pixel_threshold=0.15))
    monitor.start(time.monotonic())
    verdict = monitor.judge(result.uncertainty, time.monotonic())   # for every frame
    late = monitor.check(time.monotonic())                          # by a timer: STALE, or None

The caller passes times of a steady clock, in seconds: simulated time stops with its bag.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from threading import Lock

import numpy as np

from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.regions import Region, uncertain_regions
from penumbra.vehicle.monitor.scores import frame_score
from penumbra.vehicle.monitor.settings import LONGEST_WINDOW, MonitorSettings
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict, Direction, Verdict

NO_THRESHOLDS = (
    "the bundle has no thresholds: run `penumbra fit-alerts` on it, or set ood.frame_threshold and "
    "ood.pixel_threshold"
)


class Monitor:
    """The level of one camera. Thread-safe.

    OK and WARN follow the single frame. An ALERT is raised by enough recent frames over the
    threshold, and ended by enough frames under it. A gap in the frames (STALE) does not end an
    ALERT. Without thresholds no frame is OK.
    """

    def __init__(self, settings: MonitorSettings) -> None:
        self._lock = Lock()
        self._settings = settings
        # Scores, not levels: a new threshold also applies to recent frames.
        self._scores: deque[float] = deque(maxlen=LONGEST_WINDOW)
        self._alert = False
        self._frames_in_alert = 0  # judged since it was raised
        self._level = Level.STARTING
        self._last_frame = math.nan  # time of the last verdict on a frame, or of the start
        self._verdicts = 0

    @property
    def settings(self) -> MonitorSettings:
        """The settings; may be replaced at any time without losing the history."""
        return self._settings

    @settings.setter
    def settings(self, settings: MonitorSettings) -> None:
        with self._lock:
            self._settings = settings

    @property
    def level(self) -> Level:
        """The current level, after hysteresis."""
        return self._level

    def start(self, now: float, reason: str = "waiting for the first result") -> Verdict:
        """Reset the history; the time to STALE counts from now."""
        with self._lock:
            self._scores.clear()
            self._alert = False
            self._level = Level.STARTING
            self._last_frame = now
            return self._without_frame(reason)

    def judge(self, uncertainty: np.ndarray, now: float) -> Verdict:
        """Judge one frame and return the verdict."""
        settings = self._settings
        score = frame_score(uncertainty, settings.score_fraction)
        regions, fraction = uncertain_regions(
            uncertainty, settings.pixel_threshold, settings.min_region_area, settings.max_regions
        )
        with self._lock:
            self._last_frame = now
            self._scores.append(score)
            reason = self._step(score, settings)
            cause = CauseVerdict(
                Cause.UNCERTAINTY,
                self._level,
                score,
                settings.frame_threshold,
                Direction.ABOVE,
                reason,
            )
            return self._verdict(cause, settings, fraction, regions)

    def check(self, now: float, missing: str = "result") -> Verdict | None:
        """Return STALE once if the last frame is too old, otherwise None.

        `missing` appears in the reason: "image" if none arrived, "result" if none was computed.
        """
        with self._lock:
            silence = now - self._last_frame
            limit = self._settings.stale_after
            if not silence > limit:
                return None
            return self._stale(f"no {missing} for {silence:.1f} s (limit {limit:g} s)")

    def fail(self, reason: str) -> Verdict | None:
        """Set STALE immediately, for a known failure; None if the level is STALE already."""
        with self._lock:
            return self._stale(reason)

    def _stale(self, reason: str) -> Verdict | None:
        if self._level == Level.STALE:
            return None
        self._level = Level.STALE
        self._scores.clear()  # hysteresis does not span a gap
        self._frames_in_alert = 0
        return self._without_frame(reason)

    def _verdict(
        self,
        cause: CauseVerdict,
        settings: MonitorSettings,
        fraction: float = math.nan,
        regions: tuple[Region, ...] = (),
    ) -> Verdict:
        self._verdicts += 1
        return Verdict(
            level=self._level,
            score=cause.score,
            uncertain_fraction=fraction,
            regions=regions,
            reason=cause.reason,
            frame_threshold=settings.frame_threshold,
            pixel_threshold=settings.pixel_threshold,
            number=self._verdicts,
            causes=(cause,),
        )

    def _without_frame(self, reason: str) -> Verdict:
        cause = CauseVerdict(Cause.INPUT, self._level, math.nan, None, Direction.ABOVE, reason)
        return self._verdict(cause, self._settings)

    def _step(self, score: float, settings: MonitorSettings) -> str:
        """Update the level with the latest score; returns the reason."""
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
        if self._alert:
            self._level = Level.ALERT
        else:
            self._level = Level.OK if not is_over and settings.has_thresholds else Level.WARN
        if not is_over and not self._alert and not settings.has_thresholds:
            return NO_THRESHOLDS
        reason = f"score {score:.3g}"
        if settings.frame_threshold is not None:
            reason += f" {'over' if is_over else 'under'} {settings.frame_threshold:.3g}"
        if math.isinf(score):
            reason = f"non-finite uncertainty in some pixels; {reason}"
        return f"{reason} {tally}" if is_over or self._alert else reason

    def _count_over(self, frames: int, settings: MonitorSettings) -> int:
        return sum(_is_over(score, settings) for score in islice(reversed(self._scores), frames))


def _is_over(score: float, settings: MonitorSettings) -> bool:
    """Whether the score is over its threshold; without one, whether it is non-finite."""
    threshold = settings.frame_threshold
    return math.isinf(score) if threshold is None else score > threshold
