"""The levels of an alert."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """Levels as in penumbra_msgs/OodAlert; 0 is STARTING, so that an empty message is never OK."""

    STARTING = 0
    OK = 1
    WARN = 2
    ALERT = 3
    STALE = 4
