"""What is concluded from a frame, or from its absence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.regions import Region


class Cause(str, Enum):
    """What an alert is about (docs/contracts.md)."""

    SCENE = "scene"
    OBJECT = "object"
    UNCERTAINTY = "uncertainty"
    CAMERA = "camera"
    INPUT = "input"


class Direction(Enum):
    """On which side of its threshold a score is abnormal."""

    ABOVE = 1
    BELOW = -1


@dataclass(frozen=True)
class CauseVerdict:
    """One cause: its score, what the score is held against, and the level it supports."""

    cause: Cause
    level: Level
    score: float  # NaN when no frame was judged
    threshold: float | None
    direction: Direction
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The level after one frame; STARTING and STALE are about no frame."""

    level: Level
    score: float  # NaN when no frame was judged; infinite when a pixel is non-finite
    uncertain_fraction: float  # of pixels over pixel_threshold; NaN when no frame was judged
    regions: tuple[Region, ...]  # the largest first
    reason: str  # one line for a person
    frame_threshold: float | None
    pixel_threshold: float | None
    number: int  # counts the verdicts of one monitor: a later one supersedes an earlier one
    causes: tuple[CauseVerdict, ...] = ()
