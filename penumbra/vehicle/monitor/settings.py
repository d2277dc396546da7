"""Thresholds and hysteresis of the monitor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penumbra.errors import PenumbraError

LONGEST_WINDOW = 1000  # frames of history


@dataclass(frozen=True)
class MonitorSettings:
    """Settings of a monitor. A threshold of None is not fitted: no frame is OK then."""

    frame_threshold: float | None
    pixel_threshold: float | None
    score_fraction: float = 0.01  # the score is the mean of this share of pixels, the highest
    raise_frames: tuple[int, int] = (3, 5)  # N of the last M frames over the threshold: ALERT
    clear_frames: tuple[int, int] = (8, 10)  # N of the last M frames since under it: ALERT ends
    min_region_area: int = 64  # pixels; smaller regions are omitted
    max_regions: int = 16
    stale_after: float = 1.0  # seconds without a result
    frozen_after: float = 1.0  # seconds without a change of the image; 0: never frozen

    def __post_init__(self) -> None:
        for name in ("frame_threshold", "pixel_threshold"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise PenumbraError(f"{name} is {value:g}: it must be finite and at least 0")
        if not 0 < self.score_fraction <= 1:
            raise PenumbraError(
                f"score_fraction is {self.score_fraction:g}: it must be positive and at most 1"
            )
        for name in ("raise_frames", "clear_frames"):
            window = getattr(self, name)
            if len(window) != 2 or not 1 <= window[0] <= window[1] <= LONGEST_WINDOW:
                raise PenumbraError(
                    f"{name} is {tuple(window)}: it must be N, M with 1 <= N <= M <= "
                    f"{LONGEST_WINDOW}, for N of the last M frames"
                )
        for name, least in (("min_region_area", 1), ("max_regions", 0)):
            if getattr(self, name) < least:
                raise PenumbraError(f"{name} is {getattr(self, name)}: it must be at least {least}")
        if not (math.isfinite(self.stale_after) and self.stale_after > 0):
            raise PenumbraError(
                f"stale_after is {self.stale_after:g}: it must be positive (seconds)"
            )

        if not (math.isfinite(self.frozen_after) and self.frozen_after >= 0):
            raise PenumbraError(
                f"frozen_after is {self.frozen_after:g}: it must be at least 0 (seconds)"
            )

    @property
    def has_thresholds(self) -> bool:
        """Whether both thresholds are set, so that a frame can be OK."""
        return self.frame_threshold is not None and self.pixel_threshold is not None
