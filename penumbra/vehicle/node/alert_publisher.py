"""The alert topic of one camera, from the start of the node to its end.

Alerts are published at least once per heartbeat, whatever the state of the node: a subscriber that
hears nothing knows that the node is dead (docs/fail-safe.md, the contract for consumers).
"""

from __future__ import annotations

import math
from threading import Lock

from rclpy.node import Node

from penumbra.vehicle.monitor import Cause, Level
from penumbra.vehicle.node import qos
from penumbra_msgs.msg import OodAlert, OodCause

_OF_NO_FRAME = (Level.STARTING, Level.STALE)


class AlertPublisher:
    """Publishes alerts, and repeats the last one while it holds. Thread-safe."""

    def __init__(self, node: Node, camera: str, heartbeat: float) -> None:
        self._node, self._heartbeat = node, heartbeat
        topic = f"~/{camera}/ood" if camera else "~/ood"
        self._publisher = node.create_publisher(OodAlert, topic, qos.alerts(heartbeat))
        self._lock = Lock()
        self._last: OodAlert | None = None
        self._published = -math.inf  # steady time

    def publish(self, alert: OodAlert, now: float) -> None:
        """Publish an alert; `now` is the steady time."""
        with self._lock:
            self._publish(alert, now)

    def publish_without_model(self, level: Level, reason: str, now: float) -> None:
        """Publish the level of a node that has no camera open, unless it was published already."""
        with self._lock:
            last = self._last
            if last is not None and (last.level, last.reason) == (level, reason):
                return
            cause = OodCause(
                cause=Cause.INPUT.value,
                level=int(level),
                score=math.nan,
                threshold=math.nan,
                direction=OodCause.ABOVE,
                reason=reason,
            )
            alert = OodAlert(level=int(level), reason=reason, causes=[cause])
            alert.frame_score = alert.uncertain_fraction = math.nan
            alert.frame_threshold = alert.pixel_threshold = math.nan
            alert.header.stamp = self._node.get_clock().now().to_msg()
            self._publish(alert, now)

    def beat(self, now: float) -> None:
        """Repeat the last alert if it was published a heartbeat ago."""
        with self._lock:
            if self._last is None or now - self._published < self._heartbeat:
                return
            if self._last.level in _OF_NO_FRAME:  # a judged frame keeps its own stamp
                self._last.header.stamp = self._node.get_clock().now().to_msg()
            self._publish(self._last, now)

    def destroy(self) -> None:
        """Destroy the publisher."""
        with self._lock:
            self._last = None
            self._node.destroy_publisher(self._publisher)

    def _publish(self, alert: OodAlert, now: float) -> None:
        self._last, self._published = alert, now
        self._publisher.publish(alert)
