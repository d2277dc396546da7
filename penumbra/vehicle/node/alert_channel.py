"""The alerts of one camera, in the order of their verdicts."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from rclpy.node import Node
from rclpy.publisher import Publisher
from std_msgs.msg import Header

from penumbra.bundle import Bundle
from penumbra.vehicle.monitor import Level, Verdict
from penumbra.vehicle.node.alerts import alert_message

if TYPE_CHECKING:
    from rclpy.impl.rcutils_logger import RcutilsLogger

OFTEN = 10.0  # seconds between two log lines of one kind


class AlertChannel:
    """Publishes verdicts. One that a later verdict has overtaken is never published.

    So the last alert on the topic is the last verdict of the monitor, whichever thread was faster.
    """

    def __init__(
        self, node: Node, log: RcutilsLogger, publisher: Publisher, bundle: Bundle
    ) -> None:
        self._node, self._log, self._publisher, self._bundle = node, log, publisher, bundle
        self._lock = Lock()
        self._last = 0  # number of the last verdict that was published
        self._frame_id = ""
        self._open = True

    def publish(
        self, verdict: Verdict | None, header: Header | None = None, size: tuple[int, int] = (0, 0)
    ) -> None:
        """The alert of a frame with its header, or of no frame (STARTING, STALE); None is none.

        `size` is the height and width of the map that was judged.
        """
        if verdict is None:
            return
        with self._lock:
            if not self._open or verdict.number <= self._last:
                return
            self._last = verdict.number
            if header is None:
                now = self._node.get_clock().now().to_msg()
                header = Header(stamp=now, frame_id=self._frame_id)
            self._frame_id = header.frame_id
            self._publisher.publish(alert_message(verdict, header, self._bundle, size))
        if verdict.level == Level.STALE:
            self._log.warning(f"STALE: {verdict.reason}", throttle_duration_sec=OFTEN)

    def close(self, verdict: Verdict | None) -> None:
        """Publish the last verdict; nothing is published after it."""
        self.publish(verdict)
        with self._lock:
            self._open = False
