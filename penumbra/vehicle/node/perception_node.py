"""The perception node: camera in; prediction, uncertainty and alerts out.

A lifecycle node around `Pipeline`. Configure verifies the bundle and creates the publishers;
activate starts the engine and subscribes. Both are released in reverse order. The resources of the
active node are in active_resources.py, each camera in camera.py, the publishers in outputs.py. Only
the alerts are published in every state, from the start of the process to its end.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType, ROSClock
from rclpy.exceptions import NameValidationException
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.text import LONGEST_LINE, printable
from penumbra.vehicle.monitor import Fact, Level, Monitor
from penumbra.vehicle.node import alerts, parameters
from penumbra.vehicle.node.active_resources import ActiveResources
from penumbra.vehicle.node.alert_publisher import AlertPublisher
from penumbra.vehicle.node.allocator import keep_memory
from penumbra.vehicle.node.clock_watch import ClockWatch
from penumbra.vehicle.node.configuration import (
    camera_names,
    make_pipeline,
    ordinary_by_camera,
    verified_bundle,
)
from penumbra.vehicle.node.diagnostics import NodeDiagnostics
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineStatus
from penumbra.vehicle.node.labels import PARAMETER as LABEL_NAMES
from penumbra.vehicle.node.labels import LabelNames
from penumbra.vehicle.node.logs import RosHandler
from penumbra.vehicle.node.outputs import Outputs
from penumbra.vehicle.node.safety_lock import SafetyLock
from penumbra.vehicle.node.services import CallbackErrors
from penumbra.vehicle.node.spin import exit_despite_threads, run_node
from penumbra.vehicle.ordinary import Ordinary

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
UNCONFIGURED, INACTIVE, FINALIZED = (
    EngineStatus(EngineState.STOPPED, f"the node is {state}", math.nan)
    for state in ("not configured", "not active", "finalized")
)
TICK = 0.1  # seconds between checks for late images and results


class PerceptionNode(LifecycleNode):
    """The lifecycle node; see the module's docstring."""

    def __init__(self, **options: Any) -> None:
        super().__init__("penumbra", **options)
        RosHandler(self.get_logger()).install()
        self.callback_errors = CallbackErrors(self)
        self._task = parameters.declare(self)
        self._values = parameters.values(self)
        self._lock = SafetyLock(self._values, self._task)
        clock = self.get_clock()
        assert isinstance(clock, ROSClock)  # a node has no other
        self._clock_watch = ClockWatch(clock)
        self._clock_watch.update(time.monotonic())
        self._bundle: Bundle | None = None
        self._ordinary: dict[str, Ordinary] = {}  # by camera name, while configured
        self._outputs: dict[str, Outputs] = {}  # by camera name
        self._alerts: dict[str, AlertPublisher] = {}  # likewise, in every state
        self._labels: LabelNames | None = None
        self._active: ActiveResources | None = None
        self._engine_status = self._problem = UNCONFIGURED
        self._diagnostics: Publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._report_of_node = NodeDiagnostics(self._lock, self.callback_errors)
        self.add_on_set_parameters_callback(self._check_parameters)
        self.add_post_set_parameters_callback(self._apply_parameters)
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # simulated time stops with its bag
        self.create_timer(TICK, self._tick, clock=steady)
        self.create_timer(1.0, self._report, clock=steady)
        self._open_alerts()
        if self._values["autostart"] and self.trigger_configure() == SUCCESS:
            self.trigger_activate()
        elif not self._values["autostart"]:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()} configure"
            self.get_logger().info(f"waiting to be configured: {command}")

    # Transitions. rclpy discards their exceptions: `_attempt` logs them and returns a result.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Verify the bundle and create the publishers."""
        result = self._attempt("configure", self._configure)
        if result != SUCCESS:
            self._release()
            self._engine_status = self._problem
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the engine and subscribe to the cameras."""
        result = self._attempt("activate", self._activate)
        if result != SUCCESS:
            self._deactivate("the node could not be activated")
            self._engine_status = self._problem
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop engine and cameras; an engine that was given up leads to the error state."""
        given_up = self._active is not None and self._active.engine.state is EngineState.GIVEN_UP
        self._deactivate("the node was deactivated")
        return ERROR if given_up else SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node can be configured again."""
        result = self._attempt("clean up", self._release)
        self._engine_status = UNCONFIGURED
        return result

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; final. The process goes on to publish STALE until it is ended."""
        result = self._attempt("shut down", self._release)
        self._engine_status = FINALIZED
        return result

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything after an error; the node can be configured again."""
        return self._attempt("release", self._release)

    def destroy_node(self) -> None:
        """Release everything, then destroy the node."""
        self._release()
        self._close_alerts()
        super().destroy_node()  # type: ignore[no-untyped-call] # rclpy is typed in part

    def _configure(self) -> None:
        values = self._values
        bundle = verified_bundle(values, self._task)
        ordinary = ordinary_by_camera(values, bundle)
        judging = [
            Monitor(alerts.monitor_settings(values, own.bundle), own.models)
            for own in ordinary.values()
        ]
        make_pipeline(values, ordinary)  # refuses what it cannot run
        self._bundle, self._ordinary = bundle, ordinary
        self._outputs = {name: Outputs(self, name, bundle.task, values) for name in ordinary}
        self._open_alerts()
        self._labels = LabelNames(self, bundle)
        self._engine_status = INACTIVE
        self.get_logger().info(f"configured: {alerts.model_name(bundle)} from {bundle.path}")
        for site in sorted({own.site for own in ordinary.values() if own.site}):
            self.get_logger().info(f"thresholds of the site {site}")
        if not all(monitor.has_thresholds for monitor in judging):
            self.get_logger().warning(
                f"{bundle.name} has no thresholds, so no frame can be OK: run "
                f"`penumbra fit-alerts {bundle.path} --images DIR`"
            )
        self._warn_if_never_alerts()

    def _open_alerts(self) -> None:
        """The alert topics of the cameras as named now; one unnamed if the names are invalid."""
        try:
            names = camera_names(self._values)
        except PenumbraError:
            names = [""]
        if list(self._alerts) != names:
            self._close_alerts()
            heartbeat = self._values["ood.heartbeat"]
            self._alerts = {name: AlertPublisher(self, name, heartbeat) for name in names}

    def _close_alerts(self) -> None:
        for publisher in self._alerts.values():
            publisher.destroy()
        self._alerts = {}

    def _warn_if_never_alerts(self) -> None:
        if reason := alerts.never_alerts(self._values):
            self.get_logger().warning(reason)

    def _activate(self) -> None:
        assert self._bundle is not None  # configured
        self._active = ActiveResources(
            self,
            self._ordinary,
            self._outputs,
            self._alerts,
            self._clock_watch,
            live=lambda: self._values,
            parameters=self._parameters_fact,
        )
        self._engine_status = self._active.engine
        self._active.start()

    def _deactivate(self, reason: str) -> None:
        if self._active is not None:
            self._active.stop(reason)
        self._active = None
        if self._engine_status.state is not EngineState.GIVEN_UP:
            self._engine_status = INACTIVE

    def _release(self) -> None:
        self._deactivate("the node was shut down")
        for outputs in self._outputs.values():
            outputs.destroy()
        if self._labels is not None:
            self._labels.destroy()
        self._bundle, self._ordinary = None, {}
        self._outputs, self._labels = {}, None

    def _attempt(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        """Run one step of a transition; a failure is logged and told in alerts and diagnostics."""
        try:
            action()
            return SUCCESS
        except (PenumbraError, NameValidationException) as error:
            problem, result = printable(" ".join(str(error).split()), LONGEST_LINE), FAILURE
            self.get_logger().error(f"cannot {what}: {problem}")
        except Exception as error:
            problem, result = f"a defect: {type(error).__name__}", ERROR
            self.get_logger().fatal(f"cannot {what} because of a defect: {traceback.format_exc()}")
        self._problem = EngineStatus(EngineState.FAILED, f"cannot {what}: {problem}", math.nan)
        return result

    # Timers and parameter changes.

    def _tick(self) -> None:
        now = time.monotonic()
        self._clock_watch.update(now)
        if self._active is None:
            for publisher in self._alerts.values():
                publisher.publish_without_model(Level.STALE, self._engine_status.text, now)
        else:
            self._tick_active(self._active)
        for publisher in self._alerts.values():
            publisher.beat(now)

    def _tick_active(self, active: ActiveResources) -> None:
        before, self._engine_status = self._engine_status, active.engine
        if before.state is not self._engine_status.state:
            self.get_logger().info(
                f"engine: {self._engine_status.state.value}: {self._engine_status.text}"
            )
        active.tick()
        if self._engine_status.state is EngineState.GIVEN_UP:
            self.get_logger().error("entering the error state: fix the cause, then configure again")
            self.trigger_deactivate()  # `on_deactivate` returns ERROR

    def _parameters_fact(self) -> Fact:
        facts = [self._lock.fact(self._values, bundle) for bundle in self._bundles()]
        return max(facts, key=lambda fact: fact.level.urgency)

    def _bundles(self) -> list[Bundle | None]:
        """The bundle with the thresholds of each camera; None before it is read."""
        return [own.bundle for own in self._ordinary.values()] or [None]

    def _report(self) -> None:
        now = time.monotonic()
        clock = self._clock_watch.fact(now, self._values["ood.stale_after"])
        statuses = self._report_of_node.report(self._engine_status, clock, self._values)
        if self._active is not None:
            statuses += self._active.report()
        name = self.get_fully_qualified_name().lstrip("/")
        for status in statuses:
            status.name = f"{name}: {status.name}"
            status.hardware_id = printable(self._values["bundle"])
        message = DiagnosticArray(status=statuses)
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _check_parameters(self, changed: list[Parameter]) -> SetParametersResult:
        state = self._state_machine.current_state[1]
        reason = parameters.refusal(changed, state)
        if self._labels is not None and LABEL_NAMES in [parameter.name for parameter in changed]:
            reason = f"{LABEL_NAMES} is defined by the bundle"
        new = {parameter.name: parameter.value for parameter in changed}
        if reason is None:
            refusals = (self._lock.refusal(new, bundle) for bundle in self._bundles())
            reason = next((refusal for refusal in refusals if refusal), None)
        if reason is None:
            try:
                for own in self._ordinary.values():
                    alerts.monitor_settings({**self._values, **new}, own.bundle)
            except PenumbraError as error:
                reason = str(error)
        if reason is not None:
            self.get_logger().warning(f"parameter refused: {printable(reason, LONGEST_LINE)}")
        return SetParametersResult(successful=reason is None, reason=reason or "")

    def _apply_parameters(self, changed: list[Parameter]) -> None:
        self._values = parameters.values(self)
        if {"rate_limit", "ood.stale_after"} & {parameter.name for parameter in changed}:
            self._warn_if_never_alerts()
        if self._active is not None:
            self._active.apply_settings()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; exit code 2 and one line if a parameter is invalid."""
    keep_memory()
    try:
        code = run_node(
            PerceptionNode,
            lambda node, error: node.callback_errors.report("callback", error),
            arguments,
        )
    except PenumbraError as error:
        print(f"perception_node: {error}", file=sys.stderr)
        return 2
    exit_despite_threads(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
