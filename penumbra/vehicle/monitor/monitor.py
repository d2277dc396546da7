"""The level of one camera, from its frames and the conditions around them.

    monitor = Monitor(MonitorSettings(frame_threshold=0.22, pixel_threshold=0.15))
    monitor.start(time.monotonic())
    verdict = monitor.judge(result.uncertainty, time.monotonic(), conditions)   # for every frame
    changed = monitor.check(time.monotonic(), conditions)                       # by a timer

The caller passes times of a steady clock, in seconds: simulated time stops with its bag.
"""

from __future__ import annotations

import math
from dataclasses import replace
from threading import Lock

import numpy as np

from penumbra.vehicle.monitor.conditions import HOLDS, Conditions, conclude
from penumbra.vehicle.monitor.frozen import FrozenImage
from penumbra.vehicle.monitor.hysteresis import Hysteresis
from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.regions import Region, uncertain_regions
from penumbra.vehicle.monitor.scores import frame_score
from penumbra.vehicle.monitor.settings import MonitorSettings
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict, Direction, Verdict


class Monitor:
    """The level of one camera. Thread-safe.

    A gap in the frames (STALE) neither ends an ALERT nor forgets the frames that lead to one.
    Without thresholds no frame is OK.
    """

    def __init__(self, settings: MonitorSettings) -> None:
        self._lock = Lock()
        self._settings = settings
        self._hysteresis = Hysteresis()
        self._frozen = FrozenImage()
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
            self._hysteresis, self._frozen = Hysteresis(), FrozenImage()
            self._last_frame = now
            return self._without_frame(Level.STARTING, reason)

    def judge(
        self,
        uncertainty: np.ndarray,
        now: float,
        conditions: Conditions,
        digest: int | None = None,
    ) -> Verdict:
        """Judge one frame; `digest` identifies the pixels of its image.

        A frame whose conditions do not hold is STALE. Its score still counts for the hysteresis.
        """
        settings = self._settings
        score = frame_score(uncertainty, settings.score_fraction)
        regions, fraction = uncertain_regions(
            uncertainty, settings.pixel_threshold, settings.min_region_area, settings.max_regions
        )
        with self._lock:
            level, reason = self._hysteresis.step(score, settings)
            judged = CauseVerdict(
                Cause.UNCERTAINTY, level, score, settings.frame_threshold, Direction.ABOVE, reason
            )
            camera = self._frozen.update(digest, now, settings.frozen_after)
            causes = conclude(replace(conditions, camera=camera), [judged])
            self._last_frame = now
            if causes[0].level is Level.STALE:  # nothing of the frame is to be used
                return self._verdict(causes, math.nan, math.nan, ())
            return self._verdict(causes, score, fraction, regions)

    def check(self, now: float, conditions: Conditions, missing: str = "result") -> Verdict | None:
        """The new verdict if the last one holds no longer; None if it does.

        `missing` appears in the reason: "image" if none arrived, "result" if none was computed.
        """
        with self._lock:
            silence, limit = now - self._last_frame, self._settings.stale_after
            late = f"no {missing} for {silence:.1f} s (limit {limit:g} s)"
            if math.isnan(silence):
                late = "no frame was awaited yet"
            # These were checked with the last frame.
            facts = replace(conditions, camera=HOLDS, output=HOLDS, calibration=HOLDS)
            worst = conclude(facts, [_RESULT])[0]
            if worst.level is Level.STARTING is self._level:
                return None
            if worst.level in (Level.STARTING, Level.STALE):
                return self._stale(worst.reason)  # explains a silence better than its duration
            return self._stale(late) if not silence <= limit else None

    def fail(self, reason: str) -> Verdict | None:
        """Set STALE immediately, for a known failure; None if the level is STALE already."""
        with self._lock:
            return self._stale(reason)

    def _stale(self, reason: str) -> Verdict | None:
        return None if self._level is Level.STALE else self._without_frame(Level.STALE, reason)

    def _without_frame(self, level: Level, reason: str) -> Verdict:
        cause = CauseVerdict(Cause.INPUT, level, math.nan, None, Direction.ABOVE, reason)
        return self._verdict((cause,), math.nan, math.nan, ())

    def _verdict(
        self,
        causes: tuple[CauseVerdict, ...],
        score: float,
        fraction: float,
        regions: tuple[Region, ...],
    ) -> Verdict:
        self._verdicts += 1
        self._level = causes[0].level
        return Verdict(
            level=causes[0].level,
            score=score,
            uncertain_fraction=fraction,
            regions=regions,
            reason=causes[0].reason,
            frame_threshold=self._settings.frame_threshold,
            pixel_threshold=self._settings.pixel_threshold,
            number=self._verdicts,
            causes=causes,
        )


# Stands for the scores of the last frame while only the conditions are checked.
_RESULT = CauseVerdict(Cause.UNCERTAINTY, Level.OK, math.nan, None, Direction.ABOVE, "")
