"""What lives from activate to deactivate: the engine, and the cameras that share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from penumbra.vehicle.monitor import MonitorSettings
from penumbra.vehicle.node.camera import CameraStream
from penumbra.vehicle.node.diagnostics import CameraDiagnostics
from penumbra.vehicle.node.engine_supervisor import EngineStatus, EngineSupervisor
from penumbra.vehicle.node.outputs import Outputs
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.pipeline import Pipeline

PATIENCE = 1.0  # seconds to wait for threads that have to end


class ActiveResources:
    """`start` it once, `stop` it once, also if `start` failed halfway.

    `outputs` are by the name of the camera; `live` gives the values of the parameters as they are
    now.
    """

    def __init__(
        self,
        node: Node,
        pipeline: Pipeline,
        outputs: Mapping[str, Outputs],
        live: Callable[[], Values],
    ) -> None:
        self._live = live
        self._keeper = EngineSupervisor(pipeline, lambda: live()["restart_pause"])
        self._cameras = [
            CameraStream(node, name, pipeline.bundle, theirs, self._keeper, live)
            for name, theirs in outputs.items()
        ]
        self._reports = [CameraDiagnostics(camera) for camera in self._cameras]

    @property
    def engine(self) -> EngineStatus:
        """How it is with the engine."""
        return self._keeper.status

    def start(self) -> None:
        """Subscribe, and begin to get the engine ready; returns at once."""
        for camera in self._cameras:
            camera.open()
        self._keeper.start()

    def stop(self, reason: str) -> None:
        """End the threads together, so that their patience does not add up."""
        deadline = time.monotonic() + PATIENCE
        self._keeper.stop(0)
        for camera in self._cameras:
            camera.close(max(0.0, deadline - time.monotonic()), reason)
        self._keeper.stop(max(0.0, deadline - time.monotonic()))

    def tick(self) -> None:
        """Called by a steady timer: is anything late?"""
        for camera in self._cameras:
            camera.tick()

    def report(self) -> list[DiagnosticStatus]:
        """Of every camera; called once a second."""
        now, values = time.monotonic(), self._live()
        return [status for report in self._reports for status in report.report(now, values)]

    def judge_by(self, settings: MonitorSettings) -> None:
        """From the next frame on."""
        for camera in self._cameras:
            camera.monitor.settings = settings
