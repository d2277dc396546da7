"""Diagnostics, published once a second: one status for each source of errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from penumbra.text import LONGEST_LINE, printable
from penumbra.vehicle.monitor import Fact, Level
from penumbra.vehicle.node.camera import CameraStream
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineStatus
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.node.safety_lock import SafetyLock
from penumbra.vehicle.node.services import CallbackErrors

OK, WARN, ERROR, STALE = (
    DiagnosticStatus.OK,
    DiagnosticStatus.WARN,
    DiagnosticStatus.ERROR,
    DiagnosticStatus.STALE,
)
# The one mapping from a level to diagnostics: only OK is OK.
_OF_LEVEL = {
    Level.STARTING: WARN,
    Level.OK: OK,
    Level.WARN: WARN,
    Level.ALERT: ERROR,
    Level.STALE: STALE,
}
_DEBOUNCED = ("input", "latency", "dropped", "conversion", "calibration")
RAISE_AFTER, CLEAR_AFTER = 2, 3  # consecutive reports


class DebouncedLevel:
    """A level with hysteresis, so that it does not flicker."""

    def __init__(self) -> None:
        self.level: bytes = OK
        self._recent: list[bytes] = []

    def update(self, level: bytes) -> bytes:
        """Raised after RAISE_AFTER worse reports in a row, lowered after CLEAR_AFTER better."""
        self._recent = [*self._recent, level][-CLEAR_AFTER:]
        worse, better = self._recent[-RAISE_AFTER:], self._recent[-CLEAR_AFTER:]
        if len(worse) == RAISE_AFTER and min(worse) > self.level:
            self.level = min(worse)
        elif len(better) == CLEAR_AFTER and max(better) < self.level:
            self.level = max(better)
        return self.level


class CameraDiagnostics:
    """The diagnostics of one camera."""

    def __init__(self, camera: CameraStream) -> None:
        self._camera = camera
        self._before: Counter[str] = Counter()  # totals of the previous report
        self._levels = {name: DebouncedLevel() for name in _DEBOUNCED}

    def report(self, now: float, values: Values) -> list[DiagnosticStatus]:
        """The statuses of the camera; called once a second."""
        camera = self._camera
        with camera.counts.lock:
            counts = camera.counts
            totals = Counter({**counts.dropped, "received": counts.received})
            rate = counts.input_rate.at(now)
            latency = counts.median_latency()
            invalid, error = dict(counts.invalid), counts.last_error
        fresh = totals - self._before
        self._before = totals
        return [
            self._input(rate, totals["received"], values),
            self._latency(latency, values),
            self._dropped(fresh, totals, values),
            self._conversion(fresh, invalid, error),
            *self._calibration(),
            self._ood(),
            *self._causes(),
        ]

    def _input(self, rate: float, received: int, values: Values) -> DiagnosticStatus:
        least = values["diagnostics.min_input_rate"]
        level = OK if rate >= least else WARN if rate > 0 else ERROR
        text = f"{rate:.1f} images per second" if rate else "no images"
        if level != OK:
            text += f"; expected at least {least:g} per second"
        facts = {"rate": rate, "received": received}
        return self._status("input", "input rate", level, text, facts)

    def _latency(self, latency: float, values: Values) -> DiagnosticStatus:
        most = values["diagnostics.max_latency"]
        level = WARN if latency > most else OK
        text = "no result yet" if math.isnan(latency) else f"median {latency * 1e3:.1f} ms"
        if level != OK:
            text += f"; expected at most {most * 1e3:g} ms"
        return self._status("latency", "latency", level, text, {"median_seconds": latency})

    def _dropped(
        self, fresh: Counter[str], totals: Counter[str], values: Values
    ) -> DiagnosticStatus:
        lost = sum(fresh[why] for why in ("busy", "old", "invalid", "failed"))
        share = lost / fresh["received"] if fresh["received"] else 0.0
        level = WARN if share > values["diagnostics.max_dropped_share"] else OK
        text = f"{share:.0%} of the images dropped in the last second"
        facts = {why: totals[why] for why in ("busy", "old", "rate", "invalid", "failed")}
        return self._status("dropped", "dropped frames", level, text, facts)

    def _conversion(
        self, fresh: Counter[str], invalid: Mapping[str, int], error: str
    ) -> DiagnosticStatus:
        wrong = fresh["invalid"]
        level = OK if not wrong else ERROR if wrong >= fresh["received"] else WARN
        text = f"{wrong} in the last second; the latest: {error}" if wrong else "none"
        return self._status("conversion", "conversion errors", level, text, invalid)

    def _calibration(self) -> list[DiagnosticStatus]:
        """For depth, or if a CameraInfo was refused."""
        calibration = self._camera.calibration
        fact = calibration.fact
        if not calibration.is_needed and fact.level in (Level.OK, Level.STARTING):
            return []
        text = fact.reason or "the calibration belongs to the image"
        return [self._status("calibration", "camera calibration", _OF_LEVEL[fact.level], text, {})]

    def _ood(self) -> DiagnosticStatus:
        monitor = self._camera.monitor  # which has its own hysteresis
        text = monitor.level.name
        if monitor.level is not Level.STALE and not monitor.has_thresholds:
            text = "no thresholds: run `penumbra fit-alerts`"
        facts = {"level": monitor.level.name}
        return _status(self._name("OOD"), _OF_LEVEL[monitor.level], text, facts)

    def _causes(self) -> list[DiagnosticStatus]:
        """One status for each cause that frames are judged by, also while none is judged."""
        monitor = self._camera.monitor
        last = {cause.cause: cause for cause in monitor.causes}
        statuses = []
        for cause in monitor.judged_causes:
            name = self._name(f"cause {cause.value}")
            found = last.get(cause)
            if found is None:
                statuses.append(_status(name, STALE, "no frame is judged", {}))
                continue
            facts: dict[str, Any] = {"score": found.score}
            if found.threshold is not None:
                facts["threshold"] = found.threshold
            statuses.append(_status(name, _OF_LEVEL[found.level], found.reason or "OK", facts))
        return statuses

    def _status(
        self, key: str, name: str, level: bytes, text: str, facts: Mapping[str, Any]
    ) -> DiagnosticStatus:
        return _status(self._name(name), self._levels[key].update(level), text, facts)

    def _name(self, what: str) -> str:
        return f"{self._camera.name} {what}" if self._camera.name else what


class NodeDiagnostics:
    """The diagnostics that all cameras share: engine, clock, parameters, requests, callbacks."""

    def __init__(self, lock: SafetyLock, errors: CallbackErrors) -> None:
        self._lock, self._errors = lock, errors
        self._before: Counter[str] = Counter()  # totals of the previous report

    def report(self, engine: EngineStatus, clock: Fact, values: Values) -> list[DiagnosticStatus]:
        """The statuses; called once a second."""
        errors = self._errors
        totals = Counter({"errors": errors.errors.total(), "requests": errors.transitions.total()})
        fresh = totals - self._before
        self._before = totals
        return [
            _engine(engine),
            _status("clock", _OF_LEVEL[clock.level], clock.reason or "advances", {}),
            self._parameters(values),
            _status(
                "lifecycle",
                WARN if fresh["requests"] else OK,
                f"requested from outside: {errors.last_transition}"
                if errors.last_transition
                else "no request from outside",
                errors.transitions,
            ),
            _status(
                "callbacks",
                ERROR if fresh["errors"] else OK,
                f"{fresh['errors']} errors in the last second; the latest: {errors.last_error}"
                if fresh["errors"]
                else f"{totals['errors']} errors since the start",
                errors.errors,
            ),
        ]

    def _parameters(self, values: Values) -> DiagnosticStatus:
        """Every safety parameter that is not at its default."""
        different = self._lock.deviations(values)
        text = f"{len(different)} safety parameters differ from their defaults"
        if not self._lock.locked:
            text = f"safety.lock is off: any participant can loosen them; {text}"
        return _status("parameters", OK if self._lock.locked else WARN, text, different)


def _engine(status: EngineStatus) -> DiagnosticStatus:
    """OK only if the engine runs."""
    level = {
        EngineState.STARTING: WARN,
        EngineState.RUNNING: OK,
        EngineState.STOPPED: WARN,
    }.get(status.state, ERROR)
    facts = {"state": status.state.value, "progress": status.progress}
    return _status("engine", level, status.text, facts)


def _status(name: str, level: bytes, text: str, facts: Mapping[str, Any]) -> DiagnosticStatus:
    values = [KeyValue(key=key, value=_text(value)) for key, value in facts.items()]
    message = printable(text, LONGEST_LINE)
    return DiagnosticStatus(name=name, level=level, message=message, values=values)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(value)
