"""The resources of the active node: the engine, and the cameras that share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from penumbra.vehicle.monitor import Fact
from penumbra.vehicle.node.alert_publisher import AlertPublisher
from penumbra.vehicle.node.camera import CameraStream
from penumbra.vehicle.node.clock_watch import ClockWatch
from penumbra.vehicle.node.configuration import engine_limits, make_pipeline
from penumbra.vehicle.node.diagnostics import CameraDiagnostics
from penumbra.vehicle.node.engine_supervisor import EngineStatus, EngineSupervisor
from penumbra.vehicle.node.outputs import Outputs
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.ordinary import Ordinary

STOP_TIMEOUT = 1.0  # seconds to wait for threads to end


class ActiveResources:
    """Engine and cameras: `start` once, `stop` once, even if `start` failed.

    `ordinary`, `outputs` and `alerts` are by camera name; `live` returns the current parameter
    values, `parameters` whether they are as locked.
    """

    def __init__(
        self,
        node: Node,
        ordinary: Mapping[str, Ordinary],
        outputs: Mapping[str, Outputs],
        alerts: Mapping[str, AlertPublisher],
        clock: ClockWatch,
        live: Callable[[], Values],
        parameters: Callable[[], Fact],
    ) -> None:
        self._live = live
        self._supervisor = EngineSupervisor(
            lambda: make_pipeline(live(), ordinary), lambda: engine_limits(live())
        )
        self._cameras = [
            CameraStream(
                node,
                name,
                own,
                outputs[name],
                alerts[name],
                self._supervisor,
                clock,
                live,
                parameters,
            )
            for name, own in ordinary.items()
        ]
        self._reports = [CameraDiagnostics(camera) for camera in self._cameras]

    @property
    def engine(self) -> EngineStatus:
        """The status of the engine."""
        return self._supervisor.status

    def start(self) -> None:
        """Subscribe and start the engine; does not block."""
        for camera in self._cameras:
            camera.open()
        self._supervisor.start()

    def stop(self, reason: str) -> None:
        """Stop all threads, with one common timeout."""
        deadline = time.monotonic() + STOP_TIMEOUT
        self._supervisor.stop(0)
        for camera in self._cameras:
            camera.close(max(0.0, deadline - time.monotonic()), reason)
        self._supervisor.stop(max(0.0, deadline - time.monotonic()))

    def tick(self) -> None:
        """Check for missing images and results; called by a steady timer."""
        for camera in self._cameras:
            camera.tick()

    def report(self) -> list[DiagnosticStatus]:
        """The diagnostics of all cameras; called once a second."""
        now, values = time.monotonic(), self._live()
        return [status for report in self._reports for status in report.report(now, values)]

    def apply_settings(self) -> None:
        """Update the monitors to the current parameters, effective with the next frame."""
        for camera in self._cameras:
            camera.apply_settings()
