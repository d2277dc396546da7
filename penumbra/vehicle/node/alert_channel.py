"""Publishes the verdicts of one active camera in their order."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from rclpy.node import Node
from std_msgs.msg import Header

from penumbra.vehicle.monitor import Level, Verdict
from penumbra.vehicle.node.alert_publisher import AlertPublisher
from penumbra.vehicle.node.alerts import alert_message
from penumbra.vehicle.node.logs import LOG_PERIOD
from penumbra.vehicle.ordinary import Ordinary

if TYPE_CHECKING:
    from rclpy.impl.rcutils_logger import RcutilsLogger


class AlertChannel:
    """Publishes verdicts, and discards those that a later one has overtaken.

    The last alert on the topic is therefore the last verdict, whichever thread was faster.
    """

    def __init__(
        self, node: Node, log: RcutilsLogger, publisher: AlertPublisher, ordinary: Ordinary
    ) -> None:
        self._node, self._log, self._publisher, self._ordinary = node, log, publisher, ordinary
        self._lock = Lock()
        self._last = 0  # number of the last published verdict
        self._frame_id = ""
        self._open = True

    def publish(
        self, verdict: Verdict | None, header: Header | None = None, size: tuple[int, int] = (0, 0)
    ) -> None:
        """Publish a verdict, with the header of its frame if it has one; None is ignored.

        `size` is the height and width of the judged map.
        """
        if verdict is None:
            return
        with self._lock:
            if not self._open or verdict.number <= self._last:
                return
            self._last = verdict.number
            if header is not None:
                self._frame_id = header.frame_id
            if header is None or verdict.level in (Level.STARTING, Level.STALE):
                now = self._node.get_clock().now().to_msg()
                header, size = Header(stamp=now, frame_id=self._frame_id), (0, 0)
            message = alert_message(
                verdict, header, self._ordinary.bundle, size, self._ordinary.site
            )
            self._publisher.publish(message, time.monotonic())
        if verdict.level == Level.STALE:
            self._log.warning(f"STALE: {verdict.reason}", throttle_duration_sec=LOG_PERIOD)

    def close(self, verdict: Verdict | None) -> None:
        """Publish a last verdict; later ones are discarded."""
        self.publish(verdict)
        with self._lock:
            self._open = False
