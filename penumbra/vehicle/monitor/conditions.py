"""Everything besides the scores that must be true for OK, and the conclusion from it.

OK is a conclusion, never a default: `conclude` demands every field of `Conditions`, and a field
that is None is unknown, which is STALE. A new condition is a new field; whoever forgets to state it
gets STALE, not OK.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict, Direction


@dataclass(frozen=True)
class Fact:
    """What is known about one condition: the level it supports, and why."""

    level: Level
    reason: str

    @staticmethod
    def stale(reason: str) -> Fact:
        """A condition that does not hold."""
        return Fact(Level.STALE, reason)


HOLDS = Fact(Level.OK, "")


@dataclass(frozen=True)
class Conditions:
    """The conditions of a frame; None is unknown."""

    engine: Fact | None = None  # the engine runs
    clock: Fact | None = None  # the node's clock advances, and was not set back
    image: Fact | None = None  # the image is fresh, and its stamps are in order
    output: Fact | None = None  # the outputs of the network are as the manifest states
    camera: Fact | None = None  # the camera delivers new images
    calibration: Fact | None = None  # outputs that need the camera calibration have it
    parameters: Fact | None = None  # no safety parameter is looser than at the start

    @staticmethod
    def assumed() -> Conditions:
        """All hold, on the caller's own responsibility: for use without a node, on files."""
        return Conditions(**{field.name: HOLDS for field in fields(Conditions)})


NO_THRESHOLDS = (
    "the bundle has no thresholds: run `penumbra fit-alerts` on it, or set ood.frame_threshold and "
    "ood.pixel_threshold"
)


def conclude(conditions: Conditions, scores: Sequence[CauseVerdict]) -> tuple[CauseVerdict, ...]:
    """The causes of a verdict, the most urgent first; its level is that of the first.

    `scores` are the causes judged by a score, each at most once. Never OK are a frame without any
    of them, a score that is not finite, and scores none of which has a threshold.
    """
    fitted = any(cause.threshold is not None for cause in scores)
    found = {cause.cause: _never_ok_by_default(cause, fitted) for cause in scores}
    for cause in (Cause.CAMERA, Cause.INPUT):
        facts = [
            getattr(conditions, field.name) or Fact.stale(f"{field.name} is unknown")
            for field in fields(conditions)
            if (field.name == "camera") is (cause is Cause.CAMERA)
        ]
        if cause is Cause.INPUT and not scores:
            facts.append(Fact.stale("no frame was judged"))
        worst = max(facts, key=lambda fact: fact.level.urgency)
        judged = found.get(cause)
        if judged is None:
            found[cause] = CauseVerdict(
                cause, worst.level, math.nan, None, Direction.ABOVE, worst.reason
            )
        elif worst.level.urgency > judged.level.urgency:  # frozen prevails over unhealthy
            found[cause] = replace(judged, level=worst.level, reason=worst.reason)
    return tuple(sorted(found.values(), key=lambda cause: -cause.level.urgency))


def _never_ok_by_default(cause: CauseVerdict, fitted: bool) -> CauseVerdict:
    """The cause, but WARN instead of OK where nothing vouches for OK."""
    if cause.level is not Level.OK:
        return cause
    if not math.isfinite(cause.score):
        return replace(cause, level=Level.WARN, reason=f"{cause.cause.value}: no finite score")
    return cause if fitted else replace(cause, level=Level.WARN, reason=NO_THRESHOLDS)
