"""What was seen of a node under a sustained load."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penumbra.replay.process_usage import ProcessUsage


@dataclass
class LoadRecord:
    """What was seen from outside."""

    bundle: str
    runner: str
    rate_hz: float
    answer_ms: float  # one image after the other, before the watching began
    usage: list[ProcessUsage] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)  # seconds since the beginning, frame by frame
    latency_ms: list[float] = field(default_factory=list)  # of the same frames; NaN: lost
    dropped: dict[str, int] = field(default_factory=dict)  # by the node's own count and reason
    seconds: float = 0.0
    interrupted: bool = False
    node_ended: bool = False

    @property
    def lost(self) -> int:
        """Frames that were never answered in full."""
        return int(np.isnan(self.latency_ms).sum()) if self.latency_ms else 0
