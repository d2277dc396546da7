"""Services that answer every request, and callbacks whose errors end nothing.

In rclpy an exception in a callback leaves the executor and ends the process; one undefined
parameter type from any participant is enough. Here it is logged and counted.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from lifecycle_msgs.srv import ChangeState
from rclpy.lifecycle import LifecycleNode
from rclpy.service import Service

from penumbra.text import printable
from penumbra.vehicle.node.logs import LOG_PERIOD

LONGEST_LABEL = 40  # characters
TYPE_HASH = re.compile("RIHS01_[0-9a-f]{64}")  # of REP 2016


class CallbackErrors:
    """Counts the errors of callbacks, and the transitions requested from outside."""

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self.errors: Counter[str] = Counter()  # by type of the error
        self.last_error = ""
        self.transitions: Counter[str] = Counter()  # requested by other nodes, by label
        self.last_transition = ""
        for service in node.services:
            self._protect(service)

    def report(self, what: str, error: BaseException) -> None:
        """Count and log an error."""
        self.errors[type(error).__name__] += 1
        self.last_error = printable(f"{what}: {type(error).__name__}: {error}", 200)
        log = self._node.get_logger()
        log.error(f"ignored after an error: {self.last_error}", throttle_duration_sec=LOG_PERIOD)
        log.debug("".join(traceback.format_exception(error)))

    def _protect(self, service: Service) -> None:
        """Answer with an empty response, which reports no success, where the callback raises."""
        answer: Callable[[Any, Any], Any] = service.callback
        kind: Any = service.srv_type

        def protected(request: Any, response: Any) -> Any:
            if hasattr(request, "type_hash") and not TYPE_HASH.fullmatch(request.type_hash):
                return kind.Response(failure_reason="the type hash is invalid")  # rcl logs it raw
            if kind is ChangeState:
                # rcl logs an unknown label as it is, with escape sequences and line breaks.
                request.transition.label = printable(request.transition.label, LONGEST_LABEL)
                self._note_transition(request)
            try:
                return answer(request, response)
            except Exception as error:
                self.report(f"request to {service.srv_name}", error)
                return kind.Response()

        service.callback = protected

    def _note_transition(self, request: ChangeState.Request) -> None:
        asked = request.transition
        label = asked.label or str(asked.id)
        if len(self.transitions) < 100 or label in self.transitions:  # labels are arbitrary
            self.transitions[label] += 1
        state = self._node._state_machine.current_state[1]
        self.last_transition = f"{label} while {state}"
        self._node.get_logger().warning(f"transition requested from outside: {label} ({state})")
