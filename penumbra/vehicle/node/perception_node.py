"""The perception node: camera in; prediction, uncertainty and alerts out.

A lifecycle node around `Pipeline`. Configure verifies the bundle and creates the publishers;
activate starts the engine and subscribes. Both are released in reverse order. The resources of the
active node are in active_resources.py, each camera in camera.py, the publishers in outputs.py.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import NameValidationException
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher

from penumbra.errors import PenumbraError
from penumbra.vehicle.node import alerts, parameters
from penumbra.vehicle.node.active_resources import ActiveResources
from penumbra.vehicle.node.allocator import keep_memory
from penumbra.vehicle.node.configuration import camera_names, make_pipeline, verified_bundle
from penumbra.vehicle.node.diagnostics import diagnostic_array, engine_status
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineStatus
from penumbra.vehicle.node.labels import PARAMETER as LABEL_NAMES
from penumbra.vehicle.node.labels import LabelNames
from penumbra.vehicle.node.lifecycle import refuse_unknown_transitions
from penumbra.vehicle.node.logs import RosHandler
from penumbra.vehicle.node.outputs import Outputs
from penumbra.vehicle.node.spin import exit_despite_threads, run_node
from penumbra.vehicle.pipeline import Pipeline

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
UNCONFIGURED = EngineStatus(EngineState.STOPPED, "not configured", math.nan)
INACTIVE = EngineStatus(EngineState.STOPPED, "not active", math.nan)
TICK = 0.1  # seconds between checks for late images and results


class PerceptionNode(LifecycleNode):
    """The lifecycle node; see the module's docstring."""

    def __init__(self, **options: Any) -> None:
        super().__init__("penumbra", **options)
        RosHandler(self.get_logger()).install()
        refuse_unknown_transitions(self)
        self._task = parameters.declare(self)
        self._values = parameters.values(self)
        self._pipeline: Pipeline | None = None
        self._outputs: dict[str, Outputs] = {}  # by camera name
        self._labels: LabelNames | None = None
        self._active: ActiveResources | None = None
        self._engine_status = UNCONFIGURED
        self._diagnostics: Publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.add_on_set_parameters_callback(self._check_parameters)
        self.add_post_set_parameters_callback(self._apply_parameters)
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # simulated time stops with its bag
        self.create_timer(TICK, self._tick, clock=steady)
        self.create_timer(1.0, self._report, clock=steady)
        if self._values["autostart"] and self.trigger_configure() == SUCCESS:
            self.trigger_activate()
        else:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()} configure"
            self.get_logger().info(f"waiting to be configured: {command}")

    # Transitions. rclpy discards their exceptions: `_attempt` logs them and returns a result.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Verify the bundle and create the publishers."""
        result = self._attempt("configure", self._configure)
        if result != SUCCESS:
            self._release()
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the engine and subscribe to the cameras."""
        result = self._attempt("activate", self._activate)
        if result != SUCCESS:
            self._deactivate("the node could not be activated")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop engine and cameras; an engine that was given up leads to the error state."""
        given_up = self._active is not None and self._active.engine.state is EngineState.GIVEN_UP
        self._deactivate("the node was deactivated")
        return ERROR if given_up else SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node can be configured again."""
        return self._attempt("clean up", self._release)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; final."""
        return self._attempt("shut down", self._release)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything after an error; the node can be configured again."""
        return self._attempt("release", self._release)

    def destroy_node(self) -> None:
        """Release everything, then destroy the node."""
        self._release()
        super().destroy_node()  # type: ignore[no-untyped-call] # rclpy is typed in part

    def _configure(self) -> None:
        values = self._values
        bundle = verified_bundle(values, self._task)
        names = camera_names(values)
        settings = alerts.monitor_settings(values, bundle)
        self._pipeline = make_pipeline(values, bundle)
        self._outputs = {name: Outputs(self, name, bundle.task, values) for name in names}
        self._labels = LabelNames(self, bundle)
        self._engine_status = INACTIVE
        self.get_logger().info(f"configured: {alerts.model_name(bundle)} from {bundle.path}")
        if not settings.has_thresholds:
            self.get_logger().warning(
                f"{bundle.name} has no thresholds, so no frame can be OK: run "
                f"`penumbra fit-alerts {bundle.path} --images DIR`"
            )
        self._warn_if_never_alerts()

    def _warn_if_never_alerts(self) -> None:
        if reason := alerts.never_alerts(self._values):
            self.get_logger().warning(reason)

    def _activate(self) -> None:
        assert self._pipeline is not None  # configured
        # A new pipeline each time: an earlier one may still be loading its model.
        self._pipeline = make_pipeline(self._values, self._pipeline.bundle)
        self._active = ActiveResources(self, self._pipeline, self._outputs, lambda: self._values)
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
        self._pipeline, self._outputs, self._labels = None, {}, None

    def _attempt(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            action()
        except (PenumbraError, NameValidationException) as error:
            self.get_logger().error(f"cannot {what}: {' '.join(str(error).split())}")
            return FAILURE
        except Exception:
            self.get_logger().fatal(f"cannot {what} because of a defect: {traceback.format_exc()}")
            return ERROR
        return SUCCESS

    # Timers and parameter changes.

    def _tick(self) -> None:
        if self._active is None:
            return
        before, self._engine_status = self._engine_status, self._active.engine
        if before.state is not self._engine_status.state:
            self.get_logger().info(
                f"engine: {self._engine_status.state.value}: {self._engine_status.text}"
            )
        self._active.tick()
        if self._engine_status.state is EngineState.GIVEN_UP:
            self.get_logger().error("entering the error state: fix the cause, then configure again")
            self.trigger_deactivate()  # `on_deactivate` returns ERROR

    def _report(self) -> None:
        statuses = [engine_status(self._engine_status)]
        if self._active is not None:
            statuses += self._active.report()
        self._diagnostics.publish(diagnostic_array(self, statuses, self._values["bundle"]))

    def _check_parameters(self, changed: list[Parameter]) -> SetParametersResult:
        state = self._state_machine.current_state[1]
        reason = parameters.refusal(changed, state)
        if self._labels is not None and LABEL_NAMES in [parameter.name for parameter in changed]:
            reason = f"{LABEL_NAMES} is defined by the bundle"
        if reason is None and self._pipeline is not None:
            new = {**self._values, **{parameter.name: parameter.value for parameter in changed}}
            try:
                alerts.monitor_settings(new, self._pipeline.bundle)
            except PenumbraError as error:
                reason = str(error)
        return SetParametersResult(successful=reason is None, reason=reason or "")

    def _apply_parameters(self, changed: list[Parameter]) -> None:
        self._values = parameters.values(self)
        if {"rate_limit", "ood.stale_after"} & {parameter.name for parameter in changed}:
            self._warn_if_never_alerts()
        if self._active is not None and self._pipeline is not None:
            settings = alerts.monitor_settings(self._values, self._pipeline.bundle)
            self._active.apply_settings(settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; exit code 2 and one line if a parameter is invalid."""
    keep_memory()
    try:
        code = run_node(PerceptionNode, arguments)
    except PenumbraError as error:
        print(f"perception_node: {error}", file=sys.stderr)
        return 2
    exit_despite_threads(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
