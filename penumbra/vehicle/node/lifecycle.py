"""Rejects invalid lifecycle transitions, which end the whole node in rclpy on Jazzy."""

from __future__ import annotations

from typing import Any

from lifecycle_msgs.srv import ChangeState
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode


def refuse_unknown_transitions(node: LifecycleNode) -> None:
    """Respond with `success: false` where rclpy raises from the executor."""
    service = node._service_change_state
    change = service.callback

    def answer(request: ChangeState.Request, response: ChangeState.Response) -> Any:
        try:
            return change(request, response)
        except rclpy_implementation.RCLError as error:
            requested = request.transition.label or request.transition.id
            state = node._state_machine.current_state[1]
            reason = " ".join(str(error).split())
            node.get_logger().warning(f"no transition {requested} from {state}: {reason}")
            response.success = False
            return response

    service.callback = answer
