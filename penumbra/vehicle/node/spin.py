"""Run one node in this process until somebody ends it, and end well."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from penumbra.vehicle.node.large_images import make_room_for_images

ATTENTION = 0.1  # seconds between two looks at whether to stop


def run_node(make_node: Callable[[], Node], arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 after SIGINT or SIGTERM, at whatever moment it comes.

    rclpy's own handlers tear the context down under whoever is using it: a signal that comes while
    the node is being made, or before the first spin, ends in a traceback (seen on Jazzy). Here a
    signal only asks to stop, and everything is taken down in order.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    make_room_for_images()
    rclpy.init(
        args=None if arguments is None else list(arguments),
        signal_handler_options=SignalHandlerOptions.NO,
    )
    try:
        node = make_node()
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        while not stop.is_set():
            executor.spin_once(timeout_sec=ATTENTION)
        executor.shutdown()
        node.destroy_node()
    finally:
        rclpy.shutdown()
    return 0


def leave_threads_behind(code: int) -> None:
    """End the process if a thread still runs, of which nothing is needed any more.

    A model that is being loaded cannot be interrupted, and Python must not be taken down under it.
    """
    if threading.active_count() > 1:
        sys.stderr.flush()
        os._exit(code)
