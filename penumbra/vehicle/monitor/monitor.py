"""The level of one camera, from its frames and the conditions around them.

    monitor = Monitor(MonitorSettings(frame_threshold=0.22, pixel_threshold=0.15), models)
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
from penumbra.vehicle.monitor.judges import CameraJudge, SceneJudge, UncertaintyJudge
from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.models import CauseModels
from penumbra.vehicle.monitor.regions import Region, uncertain_regions
from penumbra.vehicle.monitor.scores import frame_score
from penumbra.vehicle.monitor.settings import MonitorSettings
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict, Direction, Verdict


class Monitor:
    """The level of one camera. Thread-safe.

    Each cause has its own score, threshold and hysteresis; the most urgent decides. A cause without
    a model is not judged. A gap in the frames (STALE) neither ends an ALERT nor forgets the frames
    that lead to one. Without thresholds no frame is OK.
    """

    def __init__(self, settings: MonitorSettings, models: CauseModels | None = None) -> None:
        self._lock = Lock()
        self._settings = settings
        self._models = models or CauseModels()
        self._reset()
        self._level = Level.STARTING
        self._causes: tuple[CauseVerdict, ...] = ()
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

    @property
    def causes(self) -> tuple[CauseVerdict, ...]:
        """The causes of the last verdict, the most urgent first."""
        return self._causes

    @property
    def judged_causes(self) -> tuple[Cause, ...]:
        """The causes that every frame is judged by."""
        scene = (Cause.SCENE,) if self._models.scene is not None else ()
        return (Cause.UNCERTAINTY, *scene, Cause.CAMERA)

    @property
    def has_thresholds(self) -> bool:
        """Whether some cause has what it needs, so that a frame can be OK."""
        models = self._models
        fitted = models.scene is not None or models.camera is not None
        return fitted or self._settings.has_thresholds

    def start(self, now: float, reason: str = "waiting for the first result") -> Verdict:
        """Reset the history; the time to STALE counts from now."""
        with self._lock:
            self._reset()
            self._last_frame = now
            return self._without_frame(Level.STARTING, reason)

    def judge(
        self,
        uncertainty: np.ndarray,
        now: float,
        conditions: Conditions,
        digest: int | None = None,
        image: np.ndarray | None = None,
        statistics: np.ndarray | None = None,
    ) -> Verdict:
        """Judge one frame.

        `digest` identifies the pixels of its image. `image` is the camera's own, before it is
        scaled, and `statistics` are those of the features; a cause that needs one and does not get
        it is never OK. A frame whose conditions do not hold is STALE. Its scores still count for
        the hysteresis.
        """
        settings = self._settings
        score = frame_score(uncertainty, settings.score_fraction)
        regions, fraction = uncertain_regions(
            uncertainty, settings.pixel_threshold, settings.min_region_area, settings.max_regions
        )
        measured = None if self._camera is None else self._camera.measure(image)
        with self._lock:
            judged = [self._uncertainty.step(score, settings)]
            if self._scene is not None:
                judged.append(self._scene.step(statistics, settings))
            if self._camera is not None:
                judged.append(self._camera.step(measured, now))
            camera = self._frozen.update(digest, now, settings.frozen_after)
            causes = conclude(replace(conditions, camera=camera), judged)
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

    def _reset(self) -> None:
        """Forget all frames."""
        models = self._models
        self._uncertainty = UncertaintyJudge()
        self._scene = None if models.scene is None else SceneJudge(models.scene)
        self._camera = None
        if models.camera is not None:
            self._camera = CameraJudge(models.camera, models.channel_order)
        self._frozen = FrozenImage()

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
        self._level, self._causes = causes[0].level, causes
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
_RESULT = CauseVerdict(Cause.UNCERTAINTY, Level.OK, 0.0, 0.0, Direction.ABOVE, "")
