"""The levels of an alert, and which of two is more urgent."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """Levels as in penumbra_msgs/OodAlert; 0 is STARTING, so that an empty message is never OK."""

    STARTING = 0
    OK = 1
    WARN = 2
    ALERT = 3
    STALE = 4

    @property
    def urgency(self) -> int:
        """OK is the least urgent, so that any other level prevails over it; STALE is the most."""
        return _URGENCY.index(self)


_URGENCY = (Level.OK, Level.STARTING, Level.WARN, Level.ALERT, Level.STALE)
