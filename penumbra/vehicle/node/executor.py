"""An executor that goes on whatever arrives.

Any participant can publish bytes that are no message of the topic's type. Fast DDS then drops them
and at most leaves a text in the error state of the thread, which rclpy neither raises nor clears.
Other middlewares make rclpy raise while it takes the message, after which the callback group never
runs again: no timer, no heartbeat. Here both are reported, and nothing stops.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from rclpy._rclpy_pybind11 import InvalidHandle
from rclpy.executors import SingleThreadedExecutor

from penumbra.text import printable

UNKNOWN = "no reason given"


class UnreadableMessageError(Exception):
    """A message or request that arrived could not be read."""


class SurvivingExecutor(SingleThreadedExecutor):
    """Reports what cannot be taken from a subscription or service to `report`, and goes on."""

    def __init__(self, report: Callable[[Exception], None]) -> None:
        super().__init__()
        self._report = report

    def _take_subscription(self, sub: Any) -> Any:
        if not _is_valid(sub):  # destroyed by a callback since it was ready
            return None
        what = f"a message on {sub.topic_name}"
        execute, reason = self._take(super()._take_subscription, sub)
        if execute is None:  # what was ready is gone, and there is no message
            self._refuse(what, reason or UNKNOWN)
        return execute

    def _take_service(self, srv: Any) -> Any:
        execute, reason = self._take(super()._take_service, srv)
        if reason is not None:  # what was taken does nothing then
            self._refuse(f"a request to {srv.srv_name}", reason)
        return execute

    def _take(self, take: Callable[[Any], Any], entity: Any) -> tuple[Any, str | None]:
        """What `take` returns, None (which rclpy skips) if it raises; and the error, if any."""
        take_error_text()  # of something else
        try:
            return take(entity), take_error_text()
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def _refuse(self, what: str, reason: str) -> None:
        text = printable(f"{what} cannot be read: {' '.join(reason.split())}", 300)
        self._report(UnreadableMessageError(text))


def _is_valid(sub: Any) -> bool:
    try:
        with sub.handle:
            return True
    except InvalidHandle:
        return False


class _ErrorString(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 1024)]


@cache
def _rcutils() -> ctypes.CDLL | None:
    """The library that keeps the error state; rclpy offers no access to it."""
    try:
        library = ctypes.CDLL("librcutils.so")  # loaded already
        library.rcutils_error_is_set.restype = ctypes.c_bool
        library.rcutils_get_error_string.restype = _ErrorString
    except (OSError, AttributeError):
        return None
    return library


def take_error_text() -> str | None:
    """The text that the middleware left in this thread, which is cleared; None if there is none.

    If it stayed, the next one would be printed as a block of ten lines, at any rate that a peer
    chooses.
    """
    library = _rcutils()
    if library is None or not library.rcutils_error_is_set():
        return None
    text: bytes = library.rcutils_get_error_string().text
    library.rcutils_reset_error()
    return text.decode("utf-8", "replace") or UNKNOWN
