"""The causes that a frame is judged by: from what is seen to a score, and from it to a level.

Each judge has its own hysteresis. None of them decides on OK for the frame:
`penumbra.vehicle.monitor.conditions.conclude` does.
"""

from __future__ import annotations

import math

import numpy as np

from penumbra.vehicle.monitor.health import HealthMonitor
from penumbra.vehicle.monitor.health_range import HealthRange
from penumbra.vehicle.monitor.health_scores import Measured, measure
from penumbra.vehicle.monitor.hysteresis import Hysteresis
from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.models import SceneModel
from penumbra.vehicle.monitor.settings import MonitorSettings
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict, Direction

_HEALTH_THRESHOLD = 1.0  # of the largest excess, by its definition


class UncertaintyJudge:
    """The score of the judged map. Without thresholds it only notices non-finite pixels."""

    def __init__(self) -> None:
        self._hysteresis = Hysteresis()

    def step(self, score: float, settings: MonitorSettings) -> CauseVerdict:
        """Judge the next frame."""
        threshold = settings.frame_threshold
        level, reason = self._hysteresis.step(score, threshold, settings)
        if not math.isfinite(score):
            reason = f"non-finite uncertainty in some pixels; {reason}"
        elif level is Level.OK and threshold is not None and settings.pixel_threshold is None:
            level, reason = Level.WARN, "ood.pixel_threshold is not set; run `penumbra fit-alerts`"
        return _verdict(Cause.UNCERTAINTY, level, score, threshold, reason)


class SceneJudge:
    """Familiarity: the share of ordinary frames that are as strange."""

    def __init__(self, model: SceneModel) -> None:
        self._model = model
        self._hysteresis = Hysteresis()

    def step(self, statistics: np.ndarray | None, settings: MonitorSettings) -> CauseVerdict:
        """Judge the next frame, by the statistics of its features; None: the graph has none."""
        score = math.nan if statistics is None else self._model.familiarity.score(statistics)
        threshold = self._model.threshold
        level, reason = self._hysteresis.step(score, threshold, settings)
        if level is not Level.OK:
            reason = f"unlike the ordinary frames of this camera; {reason}"
        return _verdict(Cause.SCENE, level, score, threshold, reason)


class CameraJudge:
    """Health of the camera: its score is the largest excess of all health scores."""

    def __init__(self, normal: HealthRange, channel_order: str) -> None:
        self._order = f"{channel_order}8"
        self._health = HealthMonitor(normal, self._order)

    def measure(self, image: np.ndarray | None) -> Measured | None:
        """What `step` needs of an image; may run while another frame is judged."""
        return None if image is None else measure(image, self._order)

    def step(self, measured: Measured | None, now: float) -> CauseVerdict:
        """Judge the next frame."""
        if measured is None:
            score, level, reason = math.nan, Level.WARN, "there is no image to judge it by"
        else:
            findings = self._health.step(measured, now)
            score, level = self._health.excess, Level.OK
            reason = f"score {score:.3g} under {_HEALTH_THRESHOLD:g}"
            if findings:
                level, reason = findings[0].level, findings[0].reason
            elif not score <= _HEALTH_THRESHOLD:
                reason = f"score {score:.3g} over {_HEALTH_THRESHOLD:g} in a single frame"
        return _verdict(Cause.CAMERA, level, score, _HEALTH_THRESHOLD, reason)


def _verdict(
    cause: Cause, level: Level, score: float, threshold: float | None, reason: str
) -> CauseVerdict:
    return CauseVerdict(cause, level, score, threshold, Direction.ABOVE, f"{cause.value}: {reason}")
