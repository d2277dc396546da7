"""The perception node: camera in; prediction, uncertainty and alerts out.

A lifecycle node over `Pipeline`: the bundle is verified and the publishers are made on configure,
the engine and the subscriptions on activate, and each goes the way it came. What runs while it is
active is in active.py, what a camera does in camera.py, what is published in outputs.py.
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
from penumbra.vehicle.node.spin import leave_threads_behind, run_node
from penumbra.vehicle.pipeline import Pipeline

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
UNCONFIGURED = EngineStatus(EngineState.STOPPED, "not configured", math.nan)
INACTIVE = EngineStatus(EngineState.STOPPED, "not active", math.nan)
TICK = 0.1  # seconds between two looks at whether something is late


class PerceptionNode(LifecycleNode):
    """See the module."""

    def __init__(self, **options: Any) -> None:
        super().__init__("penumbra", **options)
        RosHandler(self.get_logger()).install()
        refuse_unknown_transitions(self)
        self._task = parameters.declare(self)
        self._values = parameters.values(self)
        self._pipeline: Pipeline | None = None
        self._outputs: dict[str, Outputs] = {}  # by the name of the camera
        self._labels: LabelNames | None = None
        self._active: ActiveResources | None = None
        self._engine_status = UNCONFIGURED
        self._diagnostics: Publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.add_on_set_parameters_callback(self._check_parameters)
        self.add_post_set_parameters_callback(self._take_parameters)
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # simulated time stops with its bag
        self.create_timer(TICK, self._tick, clock=steady)
        self.create_timer(1.0, self._report, clock=steady)
        if self._values["autostart"] and self.trigger_configure() == SUCCESS:
            self.trigger_activate()
        else:
            command = f"ros2 lifecycle set {self.get_fully_qualified_name()} configure"
            self.get_logger().info(f"waiting to be configured: {command}")

    # Transitions. rclpy swallows what they raise: `_told` says it and makes it a result.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Verify the bundle and create the publishers."""
        result = self._told("configure", self._configure)
        if result != SUCCESS:
            self._release()
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the engine and subscribe to the cameras."""
        result = self._told("activate", self._activate)
        if result != SUCCESS:
            self._deactivate("the node could not be activated")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop both; an engine that was given up leads to the error state."""
        given_up = self._active is not None and self._active.engine.state is EngineState.GIVEN_UP
        self._deactivate("the node was deactivated")
        return ERROR if given_up else SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node can be configured again."""
        return self._told("clean up", self._release)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything, for good."""
        return self._told("shut down", self._release)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Everything is released, and the node can be configured again."""
        return self._told("release", self._release)

    def destroy_node(self) -> None:
        """Release everything first."""
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
                f"{bundle.name} has no thresholds, so no frame can be called OK: run "
                f"`penumbra fit-alerts {bundle.path} --images DIR`"
            )

        self._warn_of_lost_alerts()

    def _warn_of_lost_alerts(self) -> None:
        if complaint := alerts.never_alerts(self._values):
            self.get_logger().warning(complaint)

    def _activate(self) -> None:
        assert self._pipeline is not None  # configured
        # A pipeline of its own each time: an earlier one may still be loading its model.
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

    def _told(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            action()
        except (PenumbraError, NameValidationException) as error:
            self.get_logger().error(f"cannot {what}: {' '.join(str(error).split())}")
            return FAILURE
        except Exception:
            self.get_logger().fatal(f"cannot {what}, which is a defect: {traceback.format_exc()}")
            return ERROR
        return SUCCESS

    # Timers, and parameters that change.

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
            self.get_logger().error("to the error state: configure the node again when mended")
            self.trigger_deactivate()  # `on_deactivate` makes it an error

    def _report(self) -> None:
        statuses = [engine_status(self._engine_status)]
        if self._active is not None:
            statuses += self._active.report()
        self._diagnostics.publish(diagnostic_array(self, statuses, self._values["bundle"]))

    def _check_parameters(self, changed: list[Parameter]) -> SetParametersResult:
        state = self._state_machine.current_state[1]
        reason = parameters.refusal(changed, state)
        if self._labels is not None and LABEL_NAMES in [parameter.name for parameter in changed]:
            reason = f"{LABEL_NAMES} is what the bundle says"
        if reason is None and self._pipeline is not None:
            new = {**self._values, **{parameter.name: parameter.value for parameter in changed}}
            try:
                alerts.monitor_settings(new, self._pipeline.bundle)
            except PenumbraError as error:
                reason = str(error)
        return SetParametersResult(successful=reason is None, reason=reason or "")

    def _take_parameters(self, changed: list[Parameter]) -> None:
        self._values = parameters.values(self)
        if {"rate_limit", "ood.stale_after"} & {parameter.name for parameter in changed}:
            self._warn_of_lost_alerts()
        if self._active is not None and self._pipeline is not None:
            self._active.judge_by(alerts.monitor_settings(self._values, self._pipeline.bundle))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; 2 and one line if a parameter is wrong at the start."""
    keep_memory()
    try:
        code = run_node(PerceptionNode, arguments)
    except PenumbraError as error:
        print(f"perception_node: {error}", file=sys.stderr)
        return 2
    leave_threads_behind(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
