"""Runs one node in this process until a signal, and shuts it down cleanly."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import rclpy
from rclpy.exceptions import InvalidNodeNameException, NameValidationException
from rclpy.logging import LoggingSeverity, set_logger_level
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from penumbra.errors import PenumbraError
from penumbra.text import LONGEST_LINE, printable
from penumbra.vehicle.node.executor import SurvivingExecutor
from penumbra.vehicle.node.large_images import make_room_for_images

AnyNode = TypeVar("AnyNode", bound=Node)
POLL_PERIOD = 0.1  # seconds between checks for a signal


def run_node(
    make_node: Callable[[], AnyNode],
    on_error: Callable[[AnyNode, Exception], None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run the node; exit code 0 after SIGINT or SIGTERM at any time.

    What a callback raises, and what cannot be read, goes to `on_error`, and the node goes on.
    PenumbraError, in one line, if the command line is invalid.

    rclpy's own handlers invalidate the context while it is in use: a signal during construction of
    the node, or before the first spin, ends in a traceback (observed on Jazzy). Here a signal only
    sets an event, and everything is destroyed in order.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    make_room_for_images()
    _init(arguments)
    try:
        try:
            node = make_node()
        except (NameValidationException, InvalidNodeNameException) as error:  # by a remapping
            raise PenumbraError(printable(error, LONGEST_LINE)) from error
        executor = SurvivingExecutor(lambda error: on_error(node, error))
        executor.add_node(node)
        while not stop.is_set():
            try:
                executor.spin_once(timeout_sec=POLL_PERIOD)
            except Exception as error:
                on_error(node, error)
        executor.shutdown()
        node.destroy_node()  # type: ignore[no-untyped-call] # rclpy is typed in part
    finally:
        rclpy.shutdown()
    return 0


def _init(arguments: Sequence[str] | None) -> None:
    """Initialise rclpy; it raises RCLError, ValueError and others on an invalid command line."""
    # Its own line about the same error would be a second one, with nothing in it.
    set_logger_level("rcl", LoggingSeverity.FATAL)
    try:
        rclpy.init(
            args=None if arguments is None else list(arguments),
            signal_handler_options=SignalHandlerOptions.NO,
        )
    except Exception as error:
        raise PenumbraError(
            f"invalid ROS arguments: {printable(' '.join(str(error).split()), LONGEST_LINE)}"
        ) from error
    finally:
        set_logger_level("rcl", LoggingSeverity.UNSET)


def exit_despite_threads(code: int) -> None:
    """Exit immediately if a thread is still running.

    Loading a model cannot be interrupted, and finalising Python during it could crash.
    """
    if threading.active_count() > 1:
        sys.stderr.flush()
        os._exit(code)
