"""Everything besides the scores that must be true for OK, and the conclusion from it.

OK is a conclusion, never a default: `conclude` demands every field of `Conditions`, and a field
that is None is unknown, which is STALE. A new condition is a new field; whoever forgets to state it
gets STALE, not OK.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

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


def conclude(conditions: Conditions, scores: Sequence[CauseVerdict]) -> tuple[CauseVerdict, ...]:
    """The causes of a verdict, the most urgent first; its level is that of the first.

    `scores` are the causes judged by a score. Without any the frame was not judged, which is never
    OK.
    """
    found = [*scores]
    for cause in (Cause.CAMERA, Cause.INPUT):
        facts = [
            getattr(conditions, field.name) or Fact.stale(f"{field.name} is unknown")
            for field in fields(conditions)
            if (field.name == "camera") is (cause is Cause.CAMERA)
        ]
        if cause is Cause.INPUT and not scores:
            facts.append(Fact.stale("no frame was judged"))
        worst = max(facts, key=lambda fact: fact.level.urgency)
        found.append(
            CauseVerdict(cause, worst.level, math.nan, None, Direction.ABOVE, worst.reason)
        )
    return tuple(sorted(found, key=lambda cause: -cause.level.urgency))
