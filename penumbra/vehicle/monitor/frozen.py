"""Detects a frozen camera: bit-identical images with new stamps.

The noise of a sensor changes every image. A rendered scene that stands still does not change, so
the limit can be switched off for simulation.
"""

from __future__ import annotations

from penumbra.vehicle.monitor.conditions import HOLDS, Fact


class FrozenImage:
    """How long the images of one camera have been identical."""

    def __init__(self) -> None:
        self._digest: int | None = None
        self._since = 0.0

    def update(self, digest: int | None, now: float, limit: float) -> Fact:
        """STALE if the image has not changed for `limit` seconds; a limit of 0 is none."""
        if digest is None or digest != self._digest:
            self._digest, self._since = digest, now
        unchanged = now - self._since
        if not limit or unchanged < limit:
            return HOLDS
        return Fact.stale(
            f"the image has not changed for {unchanged:.1f} s (limit {limit:g} s): the camera is "
            "frozen; for a simulation that stands still set frozen_after 0"
        )
