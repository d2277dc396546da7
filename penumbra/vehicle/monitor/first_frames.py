"""Whether the first frames of a camera say that it is a strange one.

A camera that nobody fitted is strange from its first frame on. A strange scene of a familiar
camera comes later, or passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from penumbra.vehicle.monitor.levels import Level
from penumbra.vehicle.monitor.verdict import Cause, CauseVerdict

FIRST_FRAMES = 50
STRANGE_SHARE = 0.8  # of them
_TELLING = (Cause.SCENE, Cause.UNCERTAINTY)


class FirstFrames:
    """Counts the strange ones among the first frames that have thresholds.

    By scene or by uncertainty: a network is unsure of the images of another camera, too. A camera
    that is unhealthy is another matter.
    """

    def __init__(self) -> None:
        self._judged = self._strange = 0

    def are_strange(self, causes: Sequence[CauseVerdict]) -> bool:
        """True once at most: with the last of the first frames, if most of them were strange."""
        found = [c for c in causes if c.cause in _TELLING and c.threshold is not None]
        if not found or self._judged >= FIRST_FRAMES:
            return False
        self._judged += 1
        self._strange += any(cause.level in (Level.WARN, Level.ALERT) for cause in found)
        return self._judged == FIRST_FRAMES and self._strange >= STRANGE_SHARE * FIRST_FRAMES
