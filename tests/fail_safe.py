"""The camera of a node under test, and what its alerts and diagnostics say while it is mistreated.

Reaction times are measured, never asserted: they are in docs/fail-safe.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from perception import LATCHED, TIMEOUT, Peer
from sensor_msgs.msg import Image

from penumbra_msgs.msg import OodAlert

PERIOD = 0.05  # seconds between images
THRESHOLDS = {"pixel": 0.9, "frame": 0.9, "false_alarm_rate": 0.001, "frames": 100}
LEVELS = {getattr(OodAlert, name): name for name in ("STARTING", "OK", "WARN", "ALERT", "STALE")}
# Frames that are not OK, and none that is, after which a level is taken to stay.
ENOUGH = 6
REACTIONS: list[Reaction] = []


@dataclass(frozen=True)
class Reaction:
    """How the node reacted to one fault."""

    row: str
    situation: str
    level: str
    seconds: float  # NaN: it was never OK


def ordinary(seed: int, height: int = 36, width: int = 48) -> np.ndarray:
    """An image of which the stub runner is certain enough, another one for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 100, (height, width, 3), dtype=np.uint8)
    pixels[0, 0] = 0
    return pixels


def with_first_pixel(pixel: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """An ordinary image that asks the stub runner to misbehave."""
    pixels = ordinary(seed)
    pixels[0, 0] = pixel
    return pixels


class Drive:
    """Sends images, and keeps every alert with the steady time of its arrival."""

    def __init__(self, peer: Peer, topic: str = "/penumbra/image", kind: type = Image) -> None:
        self.peer, self.topic, self.kind = peer, topic, kind
        self.alerts: list[tuple[float, OodAlert]] = []
        self._number = 0
        peer.node.create_subscription(OodAlert, "/penumbra/ood", self._receive, LATCHED)
        peer.collect(DiagnosticArray, "/diagnostics")

    def _receive(self, alert: OodAlert) -> None:
        self.alerts.append((time.monotonic(), alert))

    @property
    def level(self) -> str:
        """The last published level; empty before the first."""
        return LEVELS[self.alerts[-1][1].level] if self.alerts else ""

    def message(self, pixels: np.ndarray | None = None) -> Image:
        """The next ordinary image, or one with these pixels."""
        self._number += 1
        pixels = ordinary(self._number) if pixels is None else pixels
        return self.peer.image(pixels, frame_id=str(self._number))

    def run(
        self, until: Callable[[], Any], what: str, send: Callable[[], Image | None] | None = None
    ) -> Any:
        """Send an image every PERIOD until `until` returns a true value, and return that."""
        send = send or self.message
        due, deadline = 0.0, time.monotonic() + TIMEOUT
        while not (result := until()):
            now = time.monotonic()
            assert now < deadline, f"{what}: not in {TIMEOUT:.0f} s; last {self._last()}"
            if now >= due:
                image, due = send(), now + PERIOD
                if image is not None:
                    self.peer.publisher(self.topic, self.kind).publish(image)
            self.peer.spin(0.01)
        return result

    def reach_ok(self) -> None:
        """Drive until the level is OK: otherwise no test would show anything."""
        self.run(lambda: self.level == "OK", "OK")

    def leaves_ok(
        self,
        row: str,
        situation: str,
        words: str,
        send: Callable[[], Image | None] | None = None,
        level: str = "STALE",
    ) -> OodAlert:
        """Drive with `send` until the level is `level`, and stays not OK; the alert.

        `words` must be in its reason. Without a call to `reach_ok` before, nothing was OK at all.
        """
        start, first = time.monotonic(), len(self.alerts)
        was_ok = self.level == "OK"

        def found() -> OodAlert | None:
            for _, alert in self.alerts[first:] if was_ok else self.alerts:
                if LEVELS[alert.level] == level and words in alert.reason:
                    return alert
            return None

        alert = self.run(found, f"{level} with {words!r}", send)
        place = next(n for n, (_, a) in enumerate(self.alerts) if a is alert)
        self.run(lambda: len(self.alerts) > place + ENOUGH, "further alerts", send)
        later = [LEVELS[a.level] for _, a in self.alerts[place:]]
        assert "OK" not in later, (situation, later)
        assert alert.causes and LEVELS[alert.causes[0].level] == level
        left = next(at for at, a in self.alerts[first:] if a.level != OodAlert.OK)
        seconds = max(0.0, left - start) if was_ok else math.nan
        REACTIONS.append(Reaction(row, situation, level, seconds))
        return alert

    def diagnosed(self, name: str, level: bytes, words: str = "", send: Any = None) -> None:
        """Wait for this status in /diagnostics."""

        def found() -> bool:
            arrays = self.peer.received["/diagnostics"][-1:]
            status = {s.name: s for a in arrays for s in a.status}.get(f"penumbra: {name}")
            return status is not None and status.level == level and words in status.message

        self.run(found, f"{name} at {level!r} with {words!r}", send or (lambda: None))

    def _last(self) -> str:
        if not self.alerts:
            return "nothing"
        alert = self.alerts[-1][1]
        return f"{self.level}: {alert.reason}"


OK, WARN, ERROR, STALE = (
    DiagnosticStatus.OK,
    DiagnosticStatus.WARN,
    DiagnosticStatus.ERROR,
    DiagnosticStatus.STALE,
)


def table() -> str:
    """The reactions as lines of a Markdown table."""
    return "\n".join(
        f"| {r.row} | {r.situation} | {r.level} | {r.seconds:.2f} s |" for r in REACTIONS
    )
