"""The guard: alerts in; whether it is safe to drive on the perception, and how fast, out.

    guard_node --ros-args -p topics:=/penumbra/ood -p speed_limit_ok:=13.9

A consumer of `~/ood` as a vehicle needs it, in a process of its own, so that no fault of the
perception node can stop it. Publishes ~/safe (std_msgs/Bool) and ~/speed_limit (std_msgs/Float32,
m/s) every `period`, and the reasons in /diagnostics. Starts at safe = false, and returns there at
once when anything is unusual; the rules are in guard_decision.py, which has no ROS in it.

Copy it: a consumer needs the quality of service requested here, a time-out of its own, and a count
of new OKs before it trusts again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import qos_policy_name_from_kind
from std_msgs.msg import Bool, Float32

from penumbra.errors import PenumbraError
from penumbra.text import LONGEST_LINE, printable
from penumbra.vehicle.guard_decision import (
    SECOND,
    AlertFault,
    AlertWatch,
    GuardDecision,
    Restriction,
)
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.guard_parameters import (
    declare_guard,
    guard_help,
    guard_settings,
    speed_limits,
)
from penumbra.vehicle.node.logs import LOG_PERIOD
from penumbra.vehicle.node.spin import run_node
from penumbra_msgs.msg import OodAlert

REPORT_PERIOD = 1.0  # seconds between diagnostics, unless the decision changes
_OF_RESTRICTION = {
    Restriction.NONE: DiagnosticStatus.OK,
    Restriction.SLOW: DiagnosticStatus.WARN,
    Restriction.STOP: DiagnosticStatus.ERROR,
}
# No service at all: nothing on the network can change the guard.
_NO_SERVICE = Parameter("start_type_description_service", value=False)
Event = TypeVar("Event")


class GuardNode(Node):
    """The ROS 2 shell of `GuardDecision`; see the module's docstring."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            "penumbra_guard",
            start_parameter_services=False,
            parameter_overrides=[_NO_SERVICE],
            **options,
        )
        values = declare_guard(self)
        self._limits = speed_limits(values)
        names = [self.resolve_topic_name(name) for name in values["topics"].split(",")]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise PenumbraError(f"topics names {printable(min(repeated))} twice: remove one")
        self._decision = GuardDecision(names, guard_settings(values), time.monotonic())
        self._published = Restriction.STOP
        self._reported = -REPORT_PERIOD
        self._dead: dict[str, int] = {}  # publishers that lost their liveliness, by topic
        self._safe = self.create_publisher(Bool, "~/safe", qos.alerts(values["period"]))
        self._speed = self.create_publisher(Float32, "~/speed_limit", qos.alerts(values["period"]))
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        for watch in self._decision.watches:
            self._subscribe(watch, values["heartbeat"])
        # Simulated time stops with its bag; the guard does not.
        self.create_timer(
            values["period"], self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        self.get_logger().info(f"guarding {', '.join(names)}; not safe until OKs arrive")

    def destroy_node(self) -> None:
        """Publish safe = false as the last word, then destroy the node."""
        self._decision.fault(AlertFault.STALL, "the guard was shut down", time.monotonic())
        self._publish()
        super().destroy_node()  # type: ignore[no-untyped-call] # rclpy is typed in part

    def after_error(self, error: Exception) -> None:
        """Not safe, whatever a callback raised."""
        reason = printable(f"{type(error).__name__}: {error}")
        self._decision.fault(AlertFault.ERROR, reason, time.monotonic())
        try:
            self.get_logger().error(f"not safe: {reason}", throttle_duration_sec=LOG_PERIOD)
            self._publish()
        except Exception:  # consumers are told by the deadline of ~/safe
            print(f"guard_node: cannot publish: {reason}", file=sys.stderr)

    # Inputs.

    def _subscribe(self, watch: AlertWatch, heartbeat: float) -> None:
        def at_once(action: Callable[[Event, float], None]) -> Callable[[Event], None]:
            """Decide and publish right after an event, not at the next tick."""

            def decide(event: Event) -> None:
                action(event, time.monotonic())
                self._decide()

            return decide

        def fault(kind: AlertFault, reason: str) -> Callable[[Any], None]:
            return at_once(lambda _, now: watch.fault(kind, reason, now))

        def take(alert: OodAlert, now: float) -> None:
            stamp = alert.header.stamp
            valid = stamp.nanosec < SECOND
            nanoseconds = stamp.sec * SECOND + stamp.nanosec if valid else None
            watch.alert(alert.level, nanoseconds, self._ros_time(), now)

        def liveliness(event: Any, now: float) -> None:
            self._dead[watch.name] = event.not_alive_count
            if event.alive_count == 0:
                watch.fault(AlertFault.LIVELINESS, "the publisher lost its liveliness", now)

        def incompatible(event: Any, now: float) -> None:
            policy = qos_policy_name_from_kind(event.last_policy_kind)
            text = f"a publisher offers an incompatible {policy}: compare heartbeat, ood.heartbeat"
            watch.incompatible(text, now)

        def other_type(event: Any, now: float) -> None:
            watch.incompatible("a publisher of another type", now)

        self.create_subscription(
            OodAlert,
            watch.name,
            at_once(take),
            qos.watched_alerts(heartbeat),
            event_callbacks=SubscriptionEventCallbacks(
                deadline=fault(AlertFault.DEADLINE, "the deadline of alerts was missed"),
                liveliness=at_once(liveliness),
                message_lost=fault(AlertFault.LOST, "an alert was lost on the way"),
                incompatible_qos=at_once(incompatible),
                incompatible_type=at_once(other_type),
                matched=at_once(lambda _, now: None),  # publishers are counted in `_decide`
            ),
        )

    def _ros_time(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    # Outputs.

    def _tick(self) -> None:
        self._decide(repeat=True)
        if time.monotonic() - self._reported >= REPORT_PERIOD:
            self._report()

    def _decide(self, repeat: bool = False) -> None:
        """Check, and publish a decision that has changed; `repeat`: any."""
        for watch in self._decision.watches:
            # One that is dead remains in the graph for 20 s, and cannot speak unless it revives.
            watch.publishers = self.count_publishers(watch.name) - self._dead.get(watch.name, 0)
        self._decision.check(self._ros_time(), time.monotonic())
        if self._decision.restriction is not self._published:
            self._publish()
            self._report()
            self._log()
        elif repeat:
            self._publish()

    def _publish(self) -> None:
        restriction = self._decision.restriction
        self._published = restriction
        self._safe.publish(Bool(data=restriction is not Restriction.STOP))
        self._speed.publish(Float32(data=self._limits[restriction]))

    def _log(self) -> None:
        text = printable(self._decision.reason, LONGEST_LINE)
        if self._published is Restriction.STOP:
            self.get_logger().warning(f"not safe: {text}")
        else:
            self.get_logger().info(f"safe, at most {self._limits[self._published]:g} m/s: {text}")

    def _report(self) -> None:
        self._reported = time.monotonic()
        name = self.get_fully_qualified_name().lstrip("/")
        message = DiagnosticArray(
            status=[_status(f"{name}: {watch.name}", watch) for watch in self._decision.watches]
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _status(name: str, watch: AlertWatch) -> DiagnosticStatus:
    facts = {
        "restriction": watch.restriction.name,
        "level": "" if watch.level is None else watch.level.name,
        "new_oks": watch.fresh_oks,
        "publishers": watch.publishers,
        **{f"interrupted_by_{kind.name.lower()}": count for kind, count in watch.faults.items()},
    }
    return DiagnosticStatus(
        name=name,
        level=_OF_RESTRICTION[watch.restriction],
        message=printable(watch.reason, LONGEST_LINE),
        values=[KeyValue(key=key, value=str(value)) for key, value in facts.items()],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; exit code 2 and one line if a parameter is invalid."""
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        print(f"{__doc__.strip()}\n\nparameters (--ros-args -p NAME:=VALUE):\n{guard_help()}")
        return 0
    try:
        return run_node(GuardNode, GuardNode.after_error, arguments)
    except PenumbraError as error:
        print(f"guard_node: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
