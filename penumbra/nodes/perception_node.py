"""The perception node: camera in; prediction, uncertainty and alerts out.

A lifecycle node over `Pipeline`: the bundle is verified and the publishers are made on configure,
the engine and the subscriptions on activate, and each goes the way it came. What a camera does is
in camera.py, what is published in outputs.py, how the engine is kept alive in engine_keeper.py.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher

from penumbra.bundle import load_bundle
from penumbra.errors import PenumbraError
from penumbra.nodes import judging, parameters
from penumbra.nodes.camera import CameraStream
from penumbra.nodes.diagnostics import CameraDiagnostics, engine_status
from penumbra.nodes.engine_keeper import EngineKeeper, State, Status
from penumbra.nodes.labels import PARAMETER as LABEL_NAMES
from penumbra.nodes.labels import LabelNames
from penumbra.nodes.lifecycle import refuse_unknown_transitions
from penumbra.nodes.logs import RosHandler
from penumbra.nodes.memory import keep_memory
from penumbra.nodes.outputs import Outputs
from penumbra.nodes.spin import run_node
from penumbra.pipeline import Config, Pipeline
from penumbra.runners import Settings
from penumbra.share import bundle_folder

SUCCESS, FAILURE, ERROR = (
    TransitionCallbackReturn.SUCCESS,
    TransitionCallbackReturn.FAILURE,
    TransitionCallbackReturn.ERROR,
)
TICK = 0.1  # seconds between two looks at whether something is late
PATIENCE = 1.0  # seconds to wait for a thread that has to end


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
        self._keeper: EngineKeeper | None = None
        self._cameras: list[CameraStream] = []
        self._reports: list[CameraDiagnostics] = []
        self._engine_status = Status(State.STOPPED, "not configured", float("nan"))
        self._diagnostics: Publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.add_on_set_parameters_callback(self._check_parameters)
        self.add_post_set_parameters_callback(self._take_parameters)
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # simulated time stops with its bag
        self.create_timer(TICK, self._tick, clock=steady)
        self.create_timer(1.0, self._report, clock=steady)
        if not self._values["autostart"]:
            self.get_logger().info("waiting to be configured (autostart is false)")
        elif self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    # Transitions. rclpy swallows what they raise: `_told` says it and makes it a result.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told("configure", self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told("activate", self._activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        given_up = self._keeper is not None and self._keeper.status.state is State.GIVEN_UP
        self._deactivate("the node was deactivated")
        return ERROR if given_up else SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told("clean up", self._release)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told("shut down", self._release)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Everything is released, and the node can be configured again."""
        return self._told("release", self._release)

    def destroy_node(self) -> None:
        self._release()
        super().destroy_node()

    def _configure(self) -> None:
        values = self._values
        bundle = load_bundle(bundle_folder(values["bundle"]))
        if bundle.task != self._task:
            raise PenumbraError(
                f"{bundle.name} is for {bundle.task} and this node was started for {self._task}: "
                f"start it with the bundle (-p bundle:={values['bundle']})"
            )
        names = values["cameras"].split(",")
        if len(set(names)) < len(names):
            raise PenumbraError(f"cameras is {values['cameras']}: give each another name")
        if len(names) > 1 and "{camera}" not in values["image_topic"]:
            raise PenumbraError(
                f"image_topic is {values['image_topic']} for {len(names)} cameras: put {{camera}} "
                "where their names differ"
            )
        if judging.without_thresholds(judging.ood_settings(values, bundle)):
            self.get_logger().warning(
                f"{bundle.name} has no thresholds, so no frame can be called OK: run "
                f"`penumbra calibrate-ood {bundle.path} --images DIR`"
            )
        self._pipeline = Pipeline(bundle, pipeline_config(values, bundle.input))
        self._outputs = {name: Outputs(self, name, bundle.task, values) for name in names}
        self._labels = LabelNames(self, bundle)
        self._engine_status = Status(State.STOPPED, "not active", float("nan"))
        self.get_logger().info(f"configured: {judging.model_name(bundle)} from {bundle.path}")

    def _activate(self) -> None:
        # A pipeline of its own each time: an earlier one may still be loading its model.
        self._pipeline = Pipeline(self._pipeline.bundle, self._pipeline.config)
        keeper = EngineKeeper(self._pipeline, lambda: self._values["restart_pause"])
        bundle = self._pipeline.bundle
        self._keeper, self._engine_status = keeper, keeper.status
        for name, outputs in self._outputs.items():
            camera = CameraStream(self, name, bundle, outputs, keeper, lambda: self._values)
            self._cameras.append(camera)
            self._reports.append(CameraDiagnostics(camera))
            camera.open()
        keeper.start()

    def _deactivate(self, reason: str) -> None:
        """End the threads together, so that their patience does not add up."""
        deadline = time.monotonic() + PATIENCE
        if self._keeper is not None:
            self._keeper.stop(0)
        for camera in self._cameras:
            camera.close(max(0.0, deadline - time.monotonic()), reason)
        if self._keeper is not None:
            self._keeper.stop(max(0.0, deadline - time.monotonic()))
        self._keeper, self._cameras, self._reports = None, [], []
        if self._engine_status.state is not State.GIVEN_UP:
            self._engine_status = Status(State.STOPPED, "not active", float("nan"))

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
        except PenumbraError as error:
            self.get_logger().error(f"cannot {what}: {error}")
            return FAILURE
        except Exception:
            self.get_logger().fatal(f"cannot {what}, which is a defect: {traceback.format_exc()}")
            return ERROR
        return SUCCESS

    # Timers, and parameters that change.

    def _tick(self) -> None:
        if self._keeper is None:
            return
        before, self._engine_status = self._engine_status, self._keeper.status
        if before.state is not self._engine_status.state:
            self.get_logger().info(
                f"engine: {self._engine_status.state.value}: {self._engine_status.text}"
            )
        for camera in self._cameras:
            camera.tick()
        if self._engine_status.state is State.GIVEN_UP:
            self.get_logger().error("to the error state: configure the node again when mended")
            self.trigger_deactivate()  # `on_deactivate` makes it an error

    def _report(self) -> None:
        statuses = [engine_status(self._engine_status)]
        for report in self._reports:
            statuses += report.report(time.monotonic(), self._values)
        name = self.get_fully_qualified_name().lstrip("/")
        for status in statuses:
            status.name = f"{name}: {status.name}"
            status.hardware_id = self._values["bundle"]
        message = DiagnosticArray(status=statuses)
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _check_parameters(self, changed: list[Parameter]) -> SetParametersResult:
        state = self._state_machine.current_state[1]
        reason = parameters.refusal(changed, state)
        if self._labels is not None and LABEL_NAMES in [parameter.name for parameter in changed]:
            reason = f"{LABEL_NAMES} is what the bundle says"
        if reason is None and self._pipeline is not None:
            new = {**self._values, **{parameter.name: parameter.value for parameter in changed}}
            try:
                judging.ood_settings(new, self._pipeline.bundle)
            except PenumbraError as error:
                reason = str(error)
        return SetParametersResult(successful=reason is None, reason=reason or "")

    def _take_parameters(self, changed: list[Parameter]) -> None:
        self._values = parameters.values(self)
        for camera in self._cameras:
            camera.monitor.settings = judging.ood_settings(self._values, self._pipeline.bundle)


def pipeline_config(values: parameters.Values, takes: Any) -> Config:
    """How to run the bundle whose input is `takes`, by the parameters."""
    size = None
    if values["image_size"]:
        width, height = map(int, values["image_size"].split("x"))
        size = (height, width)
        if takes.height not in (None, height) or takes.width not in (None, width):
            raise PenumbraError(
                f"image_size is {values['image_size']} and the bundle takes "
                f"{takes.width}x{takes.height}: leave image_size empty"
            )
    cache = values["engine_cache_dir"]
    settings = Settings(
        threads=values["threads"],
        image_size=size,
        device=values["device"],
        engine_cache_dir=Path(cache).expanduser() if cache else None,
        workspace_mb=values["workspace_mb"] or None,
    )
    return Config(runner=values["runner"], settings=settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; 2 and one line if a parameter is wrong at the start."""
    keep_memory()
    try:
        code = run_node(PerceptionNode, arguments)
    except PenumbraError as error:
        print(f"perception_node: {error}", file=sys.stderr)
        return 2
    if threading.active_count() > 1:
        # A model that is being loaded cannot be interrupted, and Python must not be taken down
        # under it; everything of ours has been released.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
