"""An executor that goes on whatever arrives.

Any participant can publish bytes that are no message of the topic's type. Fast DDS skips them
without a word to rclpy. Other middlewares make rclpy raise while it takes the message, after which
the callback group never runs again: no timer, no heartbeat. Here messages are taken as bytes and
read afterwards; what cannot be read is reported, and nothing stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy._rclpy_pybind11 import InvalidHandle
from rclpy.executors import SingleThreadedExecutor, await_or_execute
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from penumbra.text import printable


class UnreadableMessageError(Exception):
    """A message or request that arrived could not be read."""


class SurvivingExecutor(SingleThreadedExecutor):
    """Reports what cannot be read from a subscription or service to `report`, and goes on."""

    def __init__(self, report: Callable[[Exception], None]) -> None:
        super().__init__()
        self._report = report

    def _take_subscription(self, sub: Any) -> Any:
        """A coroutine that calls the callback; None, which rclpy skips, without a message."""
        try:
            with sub.handle:
                taken = sub.handle.take_message(sub.msg_type, True)  # as bytes
            if taken is None:
                return None
            data, info = taken
            message = data if sub.raw else deserialize_message(data, sub.msg_type)
        except InvalidHandle:  # destroyed by a callback since it was ready
            return None
        except Exception as error:
            self._refuse(f"a message on {sub.topic_name}", error)
            return None
        alone = sub._callback_type is Subscription.CallbackType.MessageOnly
        arguments = (message,) if alone else (message, info)

        async def execute() -> None:
            await await_or_execute(sub.callback, *arguments)

        return execute

    def _take_service(self, srv: Any) -> Any:
        try:
            return super()._take_service(srv)  # type: ignore[no-untyped-call] # as rclpy
        except Exception as error:
            self._refuse(f"a request to {srv.srv_name}", error)
            return None

    def _refuse(self, what: str, error: Exception) -> None:
        text = f"{what} cannot be read: {' '.join(str(error).split())}"
        self._report(UnreadableMessageError(printable(text, 300)))
