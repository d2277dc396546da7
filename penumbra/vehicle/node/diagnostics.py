"""What goes to /diagnostics once a second: one status for everything that can go wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from penumbra.vehicle.monitor import Level
from penumbra.vehicle.node.camera import CameraStream
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineStatus
from penumbra.vehicle.node.parameters import Values

OK, WARN, ERROR, STALE = (
    DiagnosticStatus.OK,
    DiagnosticStatus.WARN,
    DiagnosticStatus.ERROR,
    DiagnosticStatus.STALE,
)
_STEADIED = ("input", "latency", "dropped", "conversion", "calibration")
RAISE_AFTER, CLEAR_AFTER = 2, 3  # reports in a row that say so


class Steady:
    """A level that follows what is seen with a delay, so that it does not flicker."""

    def __init__(self) -> None:
        self.level: bytes = OK
        self._seen: list[bytes] = []

    def settle(self, seen: bytes) -> bytes:
        """Up after RAISE_AFTER reports that are worse, down after CLEAR_AFTER that are better."""
        self._seen = [*self._seen, seen][-CLEAR_AFTER:]
        worse, better = self._seen[-RAISE_AFTER:], self._seen[-CLEAR_AFTER:]
        if len(worse) == RAISE_AFTER and min(worse) > self.level:
            self.level = min(worse)
        elif len(better) == CLEAR_AFTER and max(better) < self.level:
            self.level = max(better)
        return self.level


class CameraDiagnostics:
    """The statuses of one camera, from one report to the next."""

    def __init__(self, camera: CameraStream) -> None:
        self._camera = camera
        self._before: Counter[str] = Counter()
        self._steady = {name: Steady() for name in _STEADIED}

    def report(self, now: float, values: Values) -> list[DiagnosticStatus]:
        """All that is known of the camera; called once a second."""
        camera = self._camera
        with camera.counts.lock:
            counts = camera.counts
            totals = Counter({**counts.dropped, "received": counts.received})
            rate = counts.input_rate.at(now)
            latency = counts.median_latency()
            invalid, complaint = dict(counts.invalid), counts.last_complaint
        fresh = totals - self._before
        self._before = totals
        return [
            self._input(rate, totals["received"], values),
            self._latency(latency, values),
            self._dropped(fresh, totals, values),
            self._conversion(fresh, invalid, complaint),
            *self._calibration(),
            self._ood(),
        ]

    def _input(self, rate: float, received: int, values: Values) -> DiagnosticStatus:
        least = values["diagnostics.min_input_rate"]
        seen = OK if rate >= least else WARN if rate > 0 else ERROR
        said = f"{rate:.1f} images a second" if rate else "no images"
        if seen != OK:
            said += f"; expected at least {least:g} a second"
        return self._status("input", "input rate", seen, said, {"rate": rate, "received": received})

    def _latency(self, latency: float, values: Values) -> DiagnosticStatus:
        most = values["diagnostics.max_latency"]
        seen = WARN if latency > most else OK
        said = "no result yet" if math.isnan(latency) else f"median {latency * 1e3:.1f} ms"
        if seen != OK:
            said += f"; expected at most {most * 1e3:g} ms"
        return self._status("latency", "latency", seen, said, {"median_seconds": latency})

    def _dropped(
        self, fresh: Counter[str], totals: Counter[str], values: Values
    ) -> DiagnosticStatus:
        lost = sum(fresh[why] for why in ("busy", "old", "invalid", "failed"))
        share = lost / fresh["received"] if fresh["received"] else 0.0
        seen = WARN if share > values["diagnostics.max_dropped_share"] else OK
        said = f"{share:.0%} of the last second's images dropped"
        kinds = ("busy", "old", "rate", "invalid", "failed")
        return self._status("dropped", "dropped frames", seen, said, {w: totals[w] for w in kinds})

    def _conversion(
        self, fresh: Counter[str], invalid: Mapping[str, int], complaint: str
    ) -> DiagnosticStatus:
        wrong = fresh["invalid"]
        seen = OK if not wrong else ERROR if wrong >= fresh["received"] else WARN
        said = f"{wrong} in the last second; the last: {complaint}" if wrong else "none"
        return self._status("conversion", "conversion errors", seen, said, invalid)

    def _calibration(self) -> list[DiagnosticStatus]:
        """Of depth: whether the camera's focal length is known."""
        if not self._camera.calibration.is_needed:
            return []
        missing = self._camera.calibration.guesses_focal_length()
        said = missing or "the camera's focal length is known"
        return [
            self._status("calibration", "camera calibration", WARN if missing else OK, said, {})
        ]

    def _ood(self) -> DiagnosticStatus:
        monitor = self._camera.monitor  # it has hysteresis of its own
        level = monitor.level
        text = level.name
        if level is not Level.STALE and not monitor.settings.has_thresholds:
            level, text = max(level, Level.WARN), "no thresholds: run `penumbra fit-alerts`"
        seen = {Level.WARN: WARN, Level.ALERT: ERROR, Level.STALE: STALE}.get(level, OK)
        return _status(self._name("OOD"), seen, text, {"level": monitor.level.name})

    def _status(
        self, key: str, name: str, seen: bytes, said: str, facts: Mapping[str, Any]
    ) -> DiagnosticStatus:
        return _status(self._name(name), self._steady[key].settle(seen), said, facts)

    def _name(self, what: str) -> str:
        return f"{self._camera.name} {what}" if self._camera.name else what


def engine_status(status: EngineStatus) -> DiagnosticStatus:
    """Of the engine that all cameras share."""
    level = {EngineState.STARTING: WARN, EngineState.RUNNING: OK, EngineState.STOPPED: OK}.get(
        status.state, ERROR
    )
    facts = {"state": status.state.value, "progress": status.progress}
    return _status("engine", level, status.text, facts)


def diagnostic_array(
    node: Node, statuses: list[DiagnosticStatus], hardware_id: str
) -> DiagnosticArray:
    """The message, with the node's name before every status."""
    name = node.get_fully_qualified_name().lstrip("/")
    for status in statuses:
        status.name, status.hardware_id = f"{name}: {status.name}", hardware_id
    message = DiagnosticArray(status=statuses)
    message.header.stamp = node.get_clock().now().to_msg()
    return message


def _status(name: str, level: bytes, said: str, facts: Mapping[str, Any]) -> DiagnosticStatus:
    values = [KeyValue(key=key, value=_text(value)) for key, value in facts.items()]
    return DiagnosticStatus(name=name, level=level, message=said, values=values)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
