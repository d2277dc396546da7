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


class FirstFrames:
    """Counts the strange ones among the first frames with the cause `scene`."""

    def __init__(self) -> None:
        self._judged = self._strange = 0

    def are_strange(self, causes: Sequence[CauseVerdict]) -> bool:
        """True once at most: with the last of the first frames, if most of them were strange."""
        scene = next((cause for cause in causes if cause.cause is Cause.SCENE), None)
        if scene is None or self._judged >= FIRST_FRAMES:
            return False
        self._judged += 1
        self._strange += scene.level in (Level.WARN, Level.ALERT)
        return self._judged == FIRST_FRAMES and self._strange >= STRANGE_SHARE * FIRST_FRAMES
