"""Safety parameters cannot be loosened while the node runs, whoever asks and in whatever state.

Any participant of a ROS 2 network can set parameters and request transitions. Values are therefore
bounded by those at the start of the process, from the launch or parameter file: tighter values, and
back to these, are accepted; looser ones are refused. `safety.lock: false` switches this off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penumbra.bundle import Bundle
from penumbra.vehicle.monitor import HOLDS, Fact
from penumbra.vehicle.node.parameters import Parameter, Values, defaults, parameters

_BUNDLE_VALUES = {"ood.frame_threshold": "frame", "ood.pixel_threshold": "pixel"}
# Parameters of rclpy that decide on the age of images.
_OF_RCLPY = ("use_sim_time",)


class SafetyLock:
    """Compares parameter values with those at the start of the node."""

    def __init__(self, start: Values, task: str) -> None:
        self._start = dict(start)
        self._task = task
        self.locked = bool(start["safety.lock"])

    def refusal(self, changed: Mapping[str, Any], bundle: Bundle | None) -> str | None:
        """Why these new values are refused; None if none of them is looser than at the start."""
        if not self.locked:
            return None
        for name, value in changed.items():
            if name in _OF_RCLPY:
                return f"{name} cannot be set while safety.lock is on: set it in the launch file"
            if self._is_looser(name, value, bundle):
                return (
                    f"{name} cannot be loosened from {self._start[name]!r} to {value!r} while "
                    "safety.lock is on: set it in the launch or parameter file, and start again"
                )
        return None

    def fact(self, values: Values, bundle: Bundle | None) -> Fact:
        """Whether the current values are as locked."""
        if self.locked:
            for name in parameters():
                if self._is_looser(name, values[name], bundle):
                    return Fact.stale(f"{name} is looser than at the start of the node")
        return HOLDS

    def deviations(self, values: Values) -> dict[str, Any]:
        """The safety parameters that differ from their defaults."""
        usual = defaults(self._task)
        return {
            name: values[name]
            for name, parameter in parameters().items()
            if ("safer" in parameter.schema or name.startswith("safety."))
            and values[name] != usual[name]
        }

    def _is_looser(self, name: str, value: Any, bundle: Bundle | None) -> bool:
        parameter = parameters().get(name)
        start = self._start.get(name)
        if parameter is None or "safer" not in parameter.schema or value == start:
            return False
        before, after = (_limit(parameter, v, bundle) for v in (start, value))
        if before is None or after is None:  # not comparable
            return True
        return after > before if parameter.schema["safer"] == "lower" else after < before


def _limit(parameter: Parameter, value: Any, bundle: Bundle | None) -> float | None:
    """The value as a number that can be compared; None if unknown."""
    if parameter.schema["safer"] == "unchanged":
        return None
    if value == 0 and "zero" in parameter.schema:
        if parameter.schema["zero"] == "infinite":
            return math.inf
        fitted = None if bundle is None else bundle.thresholds
        return None if fitted is None else float(getattr(fitted, _BUNDLE_VALUES[parameter.name]))
    return float(value)
