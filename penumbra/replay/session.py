"""A ROS node for the duration of a replay."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
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
UNKNOWN = "_NODE_NAME_UNKNOWN_"  # rmw's name for a node that is not discovered yet
POLL = 0.05  # seconds between two checks of a condition without an event
HISTORY = 100  # queued messages of a topic


class Stopped(Exception):
    """Raised when the replay was asked to stop."""


class Session:
    """A node in its own rclpy context, independent of other nodes of the process."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()

    def __enter__(self) -> Session:
        make_room_for_images()
        self._context = Context()
        # Without arguments, rclpy would parse those of the command line.
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

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Process messages until the condition holds (True) or the time is over (False)."""
        deadline = time.monotonic() + seconds
        while not until():
            if self._stop.is_set():
                raise Stopped
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._executor.spin_once(timeout_sec=min(left, POLL))
        return True

    def rest(self, until_ns: int) -> None:
        """Process messages until a time of the steady clock."""
        while (left := until_ns - time.monotonic_ns()) > 0:
            self.wait(lambda: time.monotonic_ns() >= until_ns, left / 1e9)
        if self._stop.is_set():
            raise Stopped

    def publishers_of(self, topic: str) -> list[TopicEndpointInfo]:
        """The publishers of a topic in other nodes."""
        ends = self.node.get_publishers_info_by_topic(topic)
        return [end for end in ends if end.node_name != NAME]

    def has_publishers(self, topic: str) -> bool:
        """Whether another node publishes this topic."""
        return bool(self.publishers_of(topic))

    def subscribe(
        self,
        topic: str,
        kind: type,
        publishers: Sequence[TopicEndpointInfo],
        take: Callable[[bytes], None],
    ) -> None:
        """Receive a topic as bytes, with the QoS that all its publishers offer."""
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
        """Wait until the publishers of these topics have discovered all subscriptions made so far.

        Discovering a publisher does not mean that it has discovered us, and what it sends before is
        lost. DDS announces the subscriptions of a process in order of creation, and the receiving
        end of a service client is one: a node that answers a call of a client created now knows all
        earlier subscriptions.
        """

        def nodes() -> set[str]:
            ends = [end for topic in topics for end in self.publishers_of(topic)]
            return {f"{end.node_namespace.rstrip('/')}/{end.node_name}" for end in ends}

        # DDS announces a publisher before the name of its node.
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
    """The Python class of `package/msg/Name`; None if it is not installed."""
    package, _, name = type_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        return None
