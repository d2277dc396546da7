"""Measurements of a node under sustained load."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penumbra.replay.process_usage import ProcessUsage


@dataclass
class LoadRecord:
    """Measurements of the node's process and answers, taken from outside."""

    bundle: str
    runner: str
    rate_hz: float
    answer_ms: float  # median before the test, one image at a time
    usage: list[ProcessUsage] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)  # seconds since the start, frame by frame
    latency_ms: list[float] = field(default_factory=list)  # of the same frames; NaN: lost
    dropped: dict[str, int] = field(default_factory=dict)  # as counted by the node, by reason
    seconds: float = 0.0
    interrupted: bool = False
    node_ended: bool = False

    @property
    def lost(self) -> int:
        """Frames without a complete answer."""
        return int(np.isnan(self.latency_ms).sum()) if self.latency_ms else 0
