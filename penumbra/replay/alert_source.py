"""A stand-in for the perception node that publishes alerts, and fails on command.

    python -m penumbra.replay.alert_source    # then a behaviour per line on stdin

It publishes `/penumbra/ood` through the node's own `AlertPublisher`, so with its quality of service
and its heartbeat, but needs no model and no images. Used to measure and to test the guard.
"""

from __future__ import annotations

import sys
import threading
import time
from enum import Enum
from functools import partial

from builtin_interfaces.msg import Time
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from penumbra.vehicle.monitor import Level
from penumbra.vehicle.node.alert_publisher import AlertPublisher
from penumbra.vehicle.node.perception_node import TICK
from penumbra.vehicle.node.spin import run_node
from penumbra_msgs.msg import OodAlert

FRAME_PERIOD = 1 / 30
FLOOD = 20  # alerts in place of one
SECOND = 1_000_000_000


class Behaviour(Enum):
    """What the source does from now on."""

    OK = "ok"
    WARN = "warn"
    ALERT = "alert"
    STALE = "stale"
    STARTING = "starting"
    UNDEFINED = "undefined"  # a level that does not exist
    SILENT = "silent"  # runs, but publishes nothing
    ZOMBIE = "zombie"  # likewise, and goes on to assert that it is alive
    FROZEN = "frozen"  # repeats the last alert, about an old image
    FUTURE = "future"  # stamps 10 s ahead
    OLD = "old"  # stamps of 10 s ago
    BACKWARDS = "backwards"  # stamps that run backwards
    UNSTAMPED = "unstamped"
    FLOOD = "flood"


_LEVELS = {
    Behaviour.WARN: Level.WARN,
    Behaviour.ALERT: Level.ALERT,
    Behaviour.STALE: Level.STALE,
    Behaviour.STARTING: Level.STARTING,
    Behaviour.UNDEFINED: 9,
}
_SHIFTS = {Behaviour.FUTURE: 10 * SECOND, Behaviour.OLD: -10 * SECOND}
_WITHOUT_HEARTBEAT = {Behaviour.SILENT, Behaviour.ZOMBIE}


class AlertSourceNode(Node):
    """Publishes alerts as the chosen behaviour has it."""

    def __init__(self, heartbeat: float) -> None:
        super().__init__("penumbra")
        self._behaviour = Behaviour.OK
        self._alerts = AlertPublisher(self, "", heartbeat)
        self._publisher = next(p for p in self.publishers if p.topic_name.endswith("/ood"))
        self._last = self._now()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(FRAME_PERIOD, self._frame, clock=steady)
        self.create_timer(TICK, self._beat, clock=steady)
        threading.Thread(target=self._obey, daemon=True).start()

    def _obey(self) -> None:
        for line in sys.stdin:
            self._behaviour = Behaviour(line.strip())
            if self._behaviour in _LEVELS:
                self._frame()  # at once, so that the time of the command is that of the fault

    def _frame(self) -> None:
        behaviour = self._behaviour
        if behaviour is Behaviour.FROZEN or behaviour in _WITHOUT_HEARTBEAT:
            if behaviour is Behaviour.ZOMBIE:
                self._publisher.assert_liveliness()
            return
        for _ in range(FLOOD if behaviour is Behaviour.FLOOD else 1):
            alert = OodAlert(level=int(_LEVELS.get(behaviour, Level.OK)))
            stamp = self._stamp(behaviour)
            alert.header.stamp = Time(sec=stamp // SECOND, nanosec=stamp % SECOND)
            self._alerts.publish(alert, time.monotonic())

    def _beat(self) -> None:
        if self._behaviour not in _WITHOUT_HEARTBEAT:
            self._alerts.beat(time.monotonic())

    def _stamp(self, behaviour: Behaviour) -> int:
        now = self._now()
        if behaviour is Behaviour.UNSTAMPED:
            return 0
        if behaviour is Behaviour.BACKWARDS:
            self._last -= SECOND // 1000
            return self._last
        self._last = now
        return now + _SHIFTS.get(behaviour, 0)

    def _now(self) -> int:
        return int(self.get_clock().now().nanoseconds)


def _report(node: AlertSourceNode, error: Exception) -> None:
    node.get_logger().error(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(run_node(partial(AlertSourceNode, float(sys.argv[1])), _report))
