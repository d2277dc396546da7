"""One camera: a thread processes its latest image and publishes the results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from threading import Lock, Thread

from rclpy.node import Node
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Header

from penumbra.errors import PenumbraError
from penumbra.vehicle import conversions
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.monitor import Conditions, Fact, FirstFrames, Level, Monitor, Verdict
from penumbra.vehicle.node.alert_channel import AlertChannel
from penumbra.vehicle.node.alert_publisher import AlertPublisher
from penumbra.vehicle.node.alerts import model_name, monitor_settings, unfamiliar
from penumbra.vehicle.node.camera_calibration import CameraCalibration, FrameCalibration
from penumbra.vehicle.node.clock_watch import ClockWatch
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineSupervisor
from penumbra.vehicle.node.frame_counts import Counts, Timings
from penumbra.vehicle.node.intake import Arrived, Intake
from penumbra.vehicle.node.logs import LOG_PERIOD
from penumbra.vehicle.node.outputs import Outputs, ProcessedFrame
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.ordinary import Ordinary
from penumbra.vehicle.pipeline import FrameResult
from penumbra.vehicle.runners import RunnerError
from penumbra_msgs.msg import FrameStats

UNCALIBRATED_FRAMES = 10  # frames without a CameraInfo after which to warn


class CameraStream:
    """From `open` to `close`, a worker thread takes the latest image and publishes its results.

    `live` returns the current parameter values, `parameters` whether they are as locked.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        ordinary: Ordinary,
        outputs: Outputs,
        alerts: AlertPublisher,
        engine: EngineSupervisor,
        clock: ClockWatch,
        live: Callable[[], Values],
        parameters: Callable[[], Fact],
    ) -> None:
        self.name = name
        bundle = ordinary.bundle  # with the thresholds of this camera
        self.monitor = Monitor(monitor_settings(live(), bundle), ordinary.models)
        self.counts = Counts(time.monotonic())
        self._node, self._bundle, self._outputs, self._engine = node, bundle, outputs, engine
        self._clock, self._live, self._parameters = clock, live, parameters
        self._log = node.get_logger().get_child(name) if name else node.get_logger()
        self._intake = Intake(node, self._log, self.counts, live)
        self.calibration = CameraCalibration(node, self._log, self.counts, bundle.depth)
        self._alerts = AlertChannel(node, self._log, alerts, ordinary)
        self._first_frames = FirstFrames()
        self._judging = False  # whether the engine has run since `open`
        self._starting = Lock()  # guards `_judging`
        self._last_header = Header()
        self._last_stats = 0.0
        self._publishing = Lock()  # with `_open`: nothing is published once `close` returns
        self._open = True
        self._thread = Thread(target=self._work, name=f"camera {name}".strip(), daemon=True)

    def open(self) -> None:
        """Publish STARTING, subscribe, start the worker."""
        values = self._live()
        self._alerts.publish(self.monitor.start(time.monotonic(), "the engine is starting"))
        self._intake.open(self._topic(values["image_topic"]))
        if values["camera_info_topic"]:
            topic = self._topic(values["camera_info_topic"])
            self.calibration.open(topic, self._intake.topic, values)
        self._thread.start()

    def close(self, timeout: float, reason: str) -> bool:
        """Stop, and publish STALE; True if the thread ended within `timeout` seconds.

        If not, it is still processing an image, whose results will not be published.
        """
        self.calibration.close()
        self._intake.close()
        self._alerts.close(self.monitor.fail(reason))
        with self._publishing:
            self._open = False
        if self._thread.ident is not None:  # `open` did not fail
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def tick(self) -> None:
        """Publish STALE if due, and stats while idle; called by a steady timer."""
        now, status = time.monotonic(), self._engine.status
        limit = self.monitor.settings.stale_after
        if status.state is EngineState.RUNNING:
            self._alerts.publish(self._start_judging(now))
        silent = not now - self.counts.last_arrival < limit
        missing = "image" if silent else "result"
        if refusal := self._intake.refusal(now, limit):
            missing = f"valid image ({refusal})"
        conditions = self._conditions(now, self._intake.fact(now, limit), self.calibration.fact)
        self._alerts.publish(self.monitor.check(now, conditions, missing))
        if now - self._last_stats >= 1:
            self._publish_stats(now)

    def apply_settings(self) -> None:
        """Use the current parameters, effective with the next frame."""
        self.monitor.settings = monitor_settings(self._live(), self._bundle)

    def _conditions(self, now: float, image: Fact, calibration: Fact) -> Conditions:
        return Conditions(
            engine=self._engine.status.fact,
            clock=self._clock.fact(now, self.monitor.settings.stale_after),
            image=image,
            calibration=calibration,
            parameters=self._parameters(),
        )

    def _start_judging(self, now: float) -> Verdict | None:
        """Restart the monitor once the engine runs; called by the timer and by the first image."""
        with self._starting:
            if self._judging:
                return None
            self._judging = True
            return self.monitor.start(now, "the engine runs; waiting for the first image")

    def _topic(self, pattern: str) -> str:
        topic = pattern if self.name else pattern.replace("{camera}/", "")
        return topic.replace("{camera}", self.name)

    def _work(self) -> None:
        """The worker: wait for an image and the engine, then process the latest image."""
        while self._intake.wait() and self._engine.wait_until_ready():
            arrived = self._intake.take()
            if arrived is None:
                continue
            try:
                self._process(arrived)
            except ConversionError as error:
                self._drop("invalid", error, error.reason)
            except RunnerError as error:  # the supervisor restarts the engine if it is broken
                if self._engine.status.state is EngineState.STOPPED:
                    return  # the node is being deactivated
                self._drop("failed", error)
                self._alerts.publish(self.monitor.fail(f"the runner failed: {error}"))
            except PenumbraError as error:
                self._drop("invalid", error, "other")
            except Exception as error:  # a defect, which must not end the thread
                self._drop("failed", RuntimeError(traceback.format_exc()))
                self._alerts.publish(self.monitor.fail(f"a defect: {type(error).__name__}"))

    def _process(self, arrived: Arrived) -> None:
        start, message, values = time.monotonic(), arrived.message, self._live()
        compressed = isinstance(message, CompressedImage)
        convert = conversions.compressed_image_of if compressed else conversions.image_of
        image = convert(message, self._bundle.input.channel_order)
        calibration = self.calibration.of_image(*image.shape[:2])
        self._start_judging(time.monotonic())  # no alert: that of this frame follows
        converted = time.monotonic()
        result = self._engine.process(
            image,
            calibration.camera,
            self.monitor,
            lambda: self._conditions_of(arrived, calibration),
        )
        processed = time.monotonic()
        with self._publishing:
            if not self._open:
                return
            self._last_header = message.header
            if not self._publish(arrived, result, calibration, values):
                return
        done = time.monotonic()
        times = result.times
        timings = Timings(
            age_ms=arrived.age * 1e3,
            wait_ms=(start - arrived.at) * 1e3,
            convert_ms=(converted - start + times.fit) * 1e3,
            infer_ms=times.inference * 1e3,
            postprocess_ms=times.postprocessing * 1e3,
            publish_ms=(done - processed) * 1e3,
            total_ms=(done - arrived.at) * 1e3,
        )
        with self.counts.lock:
            self.counts.add_result(done, timings)
            settled = self.counts.processed == UNCALIBRATED_FRAMES
        if settled and (warning := self.calibration.missing_focal_length()):
            self._log.warning(warning)
        self._publish_stats(done)

    def _conditions_of(self, arrived: Arrived, calibration: FrameCalibration) -> Conditions:
        """The conditions of an image after inference."""
        now = time.monotonic()
        fresh = self._intake.freshness(arrived, now)
        return self._conditions(now, fresh, calibration.fact)

    def _publish(
        self, arrived: Arrived, result: FrameResult, calibration: FrameCalibration, values: Values
    ) -> bool:
        """Publish the alert, then the outputs that it vouches for; False if the frame is STALE.

        The messages of the outputs are made first: an alert must not vouch for outputs that cannot
        be made.
        """
        verdict, header = result.verdict, arrived.message.header
        if verdict is None or verdict.level is Level.STALE:
            is_old = self._intake.freshness(arrived, time.monotonic()).level is Level.STALE
            with self.counts.lock:
                self.counts.dropped["old" if is_old else "invalid"] += 1
            self._alerts.publish(verdict)
            return False
        frame = ProcessedFrame(
            self._bundle, header, result, calibration.camera, calibration.info, values
        )
        prepared = self._outputs.prepare(frame)
        self._alerts.publish(verdict, header, result.judged.shape)
        if self._first_frames.are_strange(verdict.causes):
            self._log.warning(unfamiliar(self._bundle, self.name))
        for publisher, output in prepared:
            publisher.publish(output)
        return True

    def _drop(self, why: str, error: Exception, reason: str | None = None) -> None:
        with self.counts.lock:
            self.counts.add_drop(why, error, reason)
        self._intake.note_refusal(time.monotonic(), str(error))
        self._log.error(f"dropped an image: {error}", throttle_duration_sec=LOG_PERIOD)

    def _publish_stats(self, now: float) -> None:
        status, counts = self._engine.status, self.counts
        header = self._last_header
        if not counts.processed:
            header = Header(stamp=self._node.get_clock().now().to_msg())
        with counts.lock:
            message = FrameStats(
                header=header,
                model=model_name(self._bundle),
                runner=self._engine.description,
                received=counts.received,
                processed=counts.processed,
                **{
                    f"dropped_{why}": counts.dropped[why]
                    for why in ("busy", "old", "rate", "invalid", "failed")
                },
                input_rate=counts.input_rate.at(now),
                output_rate=counts.output_rate.at(now),
                engine_progress=status.progress,
                engine_status=status.text,
                **vars(counts.timings),
            )
        with self._publishing:
            if self._open:
                self._last_stats = now
                self._outputs.stats.publish(message)
