"""A ROS node of our own for as long as a replay lasts."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import rclpy
from rcl_interfaces.srv import GetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rclpy.topic_endpoint_info import TopicEndpointInfo

from penumbra.vehicle.node.large_images import make_room_for_images

NAME = "penumbra_replay"
UNKNOWN = "_NODE_NAME_UNKNOWN_"  # rmw's name for a node of which it has not heard yet
ATTENTION = 0.05  # seconds between two looks at something that sends no event
HISTORY = 100  # messages of a topic that may wait to be taken


class Stopped(Exception):
    """Somebody asked to stop."""


class Session:
    """In a context of its own, so that it neither needs nor disturbs the process's other nodes."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()

    def __enter__(self) -> Session:
        make_room_for_images()
        self._context = Context()
        # No arguments: otherwise it takes those of the command line for ROS's own.
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(
            NAME,
            context=self._context,
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Handle what arrives until the condition holds (True) or the time is over (False)."""
        deadline = time.monotonic() + seconds
        while not until():
            if self._stop.is_set():
                raise Stopped
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._executor.spin_once(timeout_sec=min(left, ATTENTION))
        return True

    def rest(self, until_ns: int) -> None:
        """Handle what arrives until a time of the steady clock."""
        while (left := until_ns - time.monotonic_ns()) > 0:
            self.wait(lambda: time.monotonic_ns() >= until_ns, left / 1e9)
        if self._stop.is_set():
            raise Stopped

    def publishers_of(self, topic: str) -> list[TopicEndpointInfo]:
        """Those of other nodes."""
        ends = self.node.get_publishers_info_by_topic(topic)
        return [end for end in ends if end.node_name != NAME]

    def subscribe(
        self, topic: str, kind: type, publishers: Sequence[TopicEndpointInfo], take: Callable
    ) -> None:
        """Get the messages of a topic as bytes, as reliably as all its publishers offer them."""
        offered = [publisher.qos_profile for publisher in publishers]
        reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offered)
        latched = all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offered)
        profile = QoSProfile(
            depth=HISTORY,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )
        self.node.create_subscription(kind, topic, take, profile, raw=True)

    def make_known(self, topics: Sequence[str], seconds: float) -> None:
        """Wait until the nodes that publish these topics know all subscriptions made here so far.

        That we know a publisher does not mean that it knows us, and what it sends before is lost.
        But DDS announces the subscriptions of a process in the order in which they were made, and
        the receiving end of a service client is one: a node that has answered a call of a client
        made now has heard of all earlier ones.
        """

        def nodes() -> set[str]:
            ends = [end for topic in topics for end in self.publishers_of(topic)]
            return {f"{end.node_namespace.rstrip('/')}/{end.node_name}" for end in ends}

        # Of which node a publisher is, DDS says in a later message than that there is one.
        self.wait(lambda: not any(UNKNOWN in name for name in nodes()), seconds)
        for name in sorted(nodes()):
            if UNKNOWN in name:
                continue
            client = self.node.create_client(GetParameters, f"{name}/get_parameters")
            if self.wait(client.service_is_ready, seconds):
                answer = client.call_async(GetParameters.Request())
                self.wait(answer.done, seconds)
            self.node.destroy_client(client)


def message_class(type_name: str) -> Any | None:
    """The Python class of `package/msg/Name`; None where it is not installed."""
    package, _, name = type_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        return None
