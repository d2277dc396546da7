"""The verdict on a frame, or on missing frames."""

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
    """The side of its threshold on which a score is abnormal."""

    ABOVE = 1
    BELOW = -1


@dataclass(frozen=True)
class CauseVerdict:
    """One cause: its score, its threshold, and its level."""

    cause: Cause
    level: Level
    score: float  # NaN when no frame was judged
    threshold: float | None
    direction: Direction
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The level after one frame; STARTING and STALE refer to no frame."""

    level: Level
    score: float  # NaN when no frame was judged; infinite when a pixel is non-finite
    uncertain_fraction: float  # of pixels over pixel_threshold; NaN when no frame was judged
    regions: tuple[Region, ...]  # the largest first
    reason: str  # one human-readable line
    frame_threshold: float | None
    pixel_threshold: float | None
    number: int  # counter of the monitor's verdicts: later ones supersede earlier ones
    causes: tuple[CauseVerdict, ...] = ()
