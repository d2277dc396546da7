"""One camera: its images come in, the latest is processed in a thread, the results go out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, RLock, Thread

import cv2
import numpy as np
from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.vehicle import conversions
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.monitor import Judgement, Level, Monitor
from penumbra.vehicle.node import alerts, qos
from penumbra.vehicle.node.engine_supervisor import EngineState, EngineSupervisor
from penumbra.vehicle.node.frame_counts import Counts, Timings
from penumbra.vehicle.node.mailbox import Mailbox
from penumbra.vehicle.node.outputs import Outputs, ProcessedFrame
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.runners import RunnerError
from penumbra_msgs.msg import FrameStats

OFTEN = 10.0  # seconds between two lines of one kind in the log
FOCAL_TOLERANCE = 0.05  # of the focal length per width that the model was trained with
UNCALIBRATED_FRAMES = 10  # after so many without a CameraInfo none is to be expected


@dataclass(frozen=True)
class Arrived:
    """An image as it came, with the time of the steady clock and its age by the node's clock."""

    message: Image | CompressedImage
    at: float
    age: float


class CameraStream:
    """From `open` to `close`. Callbacks only leave the image in a mailbox; a thread does the rest.

    An image that cannot be read never gets into the mailbox: it would push out a good one.

    `live` gives the values of the parameters as they are now.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        bundle: Bundle,
        outputs: Outputs,
        keeper: EngineSupervisor,
        live: Callable[[], Values],
    ) -> None:
        self.name = name
        self.monitor = Monitor(alerts.ood_settings(live(), bundle))
        self.counts = Counts(time.monotonic())
        self.lock = Lock()  # guards the counts, and the start of judging
        self._node, self._bundle, self._outputs, self._keeper = node, bundle, outputs, keeper
        self._live = live
        self._log = node.get_logger().get_child(name) if name else node.get_logger()
        self._mailbox: Mailbox[Arrived] = Mailbox()
        self._subscriptions: list[Subscription] = []
        self._info: CameraInfo | None = None
        self._focal_seen: float | None = None
        self._due = 0.0  # when the rate limit lets the next image pass
        self._started = False  # the engine has run since `open`
        self._last_header = Header()
        self._last_stats = 0.0
        # Held from a judgement until it is published, so that the last one told is the last one
        # made; with `_open`: nothing is published once `close` returns.
        self._publishing = RLock()
        self._open = True
        self._thread = Thread(target=self._work, name=f"camera {name}".strip(), daemon=True)

    def open(self) -> None:
        """Say STARTING, subscribe, begin to work."""
        values = self._live()
        self._tell(self.monitor.start(time.monotonic(), "the engine is starting"))
        topic = self._topic(values["image_topic"])
        kind: type = Image
        if values["compressed"]:
            topic, kind = f"{topic}/compressed", CompressedImage
        profile = qos.profile(values, "input")
        create = self._node.create_subscription
        self._subscriptions = [create(kind, topic, self._receive, profile)]
        if values["camera_info_topic"]:
            about = self._topic(values["camera_info_topic"])
            self._subscriptions.append(create(CameraInfo, about, self._receive_info, profile))
        self._log.info(f"waiting for images on {self._subscriptions[0].topic_name}")
        self._thread.start()

    def close(self, patience: float, reason: str) -> bool:
        """End it, and say STALE; True if the thread ended within `patience` seconds.

        If it did not, it is in the middle of an image, of which nothing will be published.
        """
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._mailbox.close()
        with self._publishing:
            self._tell(self.monitor.fail(reason))
            self._open = False
        if self._thread.ident is not None:  # it was opened to the end
            self._thread.join(patience)
        return not self._thread.is_alive()

    def tick(self) -> None:
        """Called by a steady timer: STALE, and a sign of life while nothing is processed."""
        with self._publishing:
            now, status = time.monotonic(), self._keeper.status
            late: Judgement | None = None
            if status.state in (EngineState.FAILED, EngineState.GIVEN_UP):
                late = self.monitor.fail(status.text)
            elif status.state is EngineState.RUNNING:
                late = self._begin(now)
                silent = not now - self.counts.last_arrival < self.monitor.settings.stale_after
                late = self.monitor.check(now, "image" if silent else "result") or late
            self._tell(late)
        if now - self._last_stats >= 1:
            self._publish_stats(now)

    @property
    def measures_depth(self) -> bool:
        return self._bundle.depth is not None

    def guesses_focal_length(self) -> str | None:
        """Of depth without a camera's calibration: what is missing; None if nothing is."""
        depth = self._bundle.depth
        if depth is None or (self._info is not None and conversions.camera_of(self._info)):
            return None
        topics = [about.topic_name for about in self._subscriptions[1:]]
        where = f"no CameraInfo with a focal length on {topics[0]}" if topics else "no CameraInfo"
        return (
            f"{where}: metres are right only for a camera like the one of the training, of focal "
            f"length {depth.focal_per_width:.3f} image widths; set camera_info_topic"
        )

    def _begin(self, now: float) -> Judgement | None:
        """Start judging, once; the timer does, or the first result if that is sooner."""
        with self.lock:
            if self._started:
                return None
            self._started = True
            return self.monitor.start(now, "the engine runs; waiting for the first image")

    def _topic(self, pattern: str) -> str:
        here = pattern if self.name else pattern.replace("{camera}/", "")
        return here.replace("{camera}", self.name)

    def _receive(self, message: Image | CompressedImage) -> None:
        now, values = time.monotonic(), self._live()
        try:
            _check(message)
        except ConversionError as error:
            with self.lock:
                self.counts.arrived(now)
                self.counts.lost("invalid", error, error.reason)
            self._complain(error)
            return
        arrived = Arrived(message, now, self._age(message))
        with self.lock:
            self.counts.arrived(now)
            if self._is_old(arrived.age, values):
                return
            if values["rate_limit"] > 0:
                period = 1 / values["rate_limit"]
                self._due = min(self._due, now + period)  # a new limit need not wait for the old
                if now < self._due:
                    self.counts.dropped["rate"] += 1
                    return
                # From when it was due, not from now: else the jitter of arrivals lowers the rate.
                self._due = (self._due if now - self._due < period else now) + period
            if self._mailbox.put(arrived) is not None:
                self.counts.dropped["busy"] += 1

    def _receive_info(self, info: CameraInfo) -> None:
        try:
            conversions.scaled_camera_info(info, 1, 1)
        except ConversionError as error:
            self._info = None
            with self.lock:
                self.counts.invalid[error.reason] += 1
            self._log.warning(f"ignored a CameraInfo: {error}", throttle_duration_sec=OFTEN)
            return
        self._info = info
        camera = conversions.camera_of(info)
        focal = camera and camera.focal_per_width
        if focal == self._focal_seen:
            return
        self._focal_seen = focal
        depth = self._bundle.depth
        if any(info.d) and "rect" not in self._subscriptions[0].topic_name:
            self._log.warning(
                "the camera's picture is not rectified (CameraInfo has distortion): straight lines "
                "are bent, which the network was not trained on; subscribe to image_rect"
            )
        if depth is not None and focal is not None:
            off = focal / depth.focal_per_width - 1
            if abs(off) > FOCAL_TOLERANCE:
                self._log.warning(
                    f"the camera's focal length is {focal:.3f} image widths, {abs(off):.0%} "
                    f"{'more' if off > 0 else 'less'} than the model was trained with "
                    f"({depth.focal_per_width:.3f}): depth may be off; crop the picture, or train "
                    "for this camera"
                )

    def _age(self, message: Image | CompressedImage) -> float:
        stamp = message.header.stamp  # which may be negative: rclpy's Time would raise
        now = self._node.get_clock().now().nanoseconds
        return (now - stamp.sec * 10**9 - stamp.nanosec) / 1e9

    def _is_old(self, age: float, values: Values) -> bool:
        """Count what is too old; the lock is held."""
        if not 0 < values["max_age"] < age:
            return False
        self.counts.dropped["old"] += 1
        self._log.warning(
            f"dropped an image that is {age:.3g} s old (max_age {values['max_age']:g} s): is the "
            "camera's clock right? For a recording set use_sim_time, or max_age 0",
            throttle_duration_sec=OFTEN,
        )
        return True

    def _work(self) -> None:
        """The thread: wait for an image and for the engine, then take the latest."""
        while self._mailbox.wait() and self._keeper.wait_until_ready():
            arrived = self._mailbox.take()
            if arrived is None:
                continue
            try:
                self._process(arrived)
            except ConversionError as error:
                self._drop("invalid", error, error.reason)
            except RunnerError as error:  # the keeper knows, and starts it again
                self._drop("failed", error)
                with self._publishing:
                    self._tell(self.monitor.fail(f"the runner failed: {error}"))
            except PenumbraError as error:
                self._drop("invalid", error, "other")
            except Exception:  # a defect, which must not end the thread: say it and go on
                self._drop("failed", RuntimeError(traceback.format_exc()))

    def _process(self, arrived: Arrived) -> None:
        start, message, values = time.monotonic(), arrived.message, self._live()
        with self.lock:
            if self._is_old(arrived.age + start - arrived.at, values):
                return
        order = self._bundle.input.channel_order
        compressed = isinstance(message, CompressedImage)
        convert = conversions.compressed_image_of if compressed else conversions.image_of
        source = convert(message, order)
        image = fitted(source, self._keeper.image_size)
        info = self._info
        camera = None if info is None else conversions.camera_of(info)
        converted = time.monotonic()
        result = self._keeper.process(image, camera)
        processed = time.monotonic()
        inferred = converted + result.timings["inference"]
        with self._publishing:
            if not self._open:
                return
            self._begin(processed)
            judgement = alerts.without_unknown_thresholds(
                self.monitor.judge(result.judged, processed)
            )
            judged = time.monotonic()
            self._last_header = message.header
            size = result.uncertainty.shape
            alert = alerts.alert(judgement, message.header, self._bundle, size)
            self._outputs.alerts.publish(alert)  # first: it is the most urgent
            seen = ProcessedFrame(
                bundle=self._bundle,
                header=message.header,
                image=image,
                source_size=source.shape[:2],
                result=result,
                regions=judgement.regions,
                camera=camera,
                info=info,
                colour_top=alerts.colour_top(self._bundle, self.monitor.settings.pixel_threshold),
                values=values,
            )
            self._outputs.publish(seen)
        done = time.monotonic()
        timings = Timings(
            age_ms=arrived.age * 1e3,
            wait_ms=(start - arrived.at) * 1e3,
            convert_ms=(converted - start) * 1e3,
            infer_ms=(inferred - converted) * 1e3,
            postprocess_ms=(judged - inferred) * 1e3,
            publish_ms=(done - judged) * 1e3,
            total_ms=(done - arrived.at) * 1e3,
        )
        with self.lock:
            self.counts.done(done, timings)
            settled = self.counts.processed == UNCALIBRATED_FRAMES
        if settled and (complaint := self.guesses_focal_length()):
            self._log.warning(complaint)
        self._publish_stats(done)

    def _drop(self, why: str, error: Exception, reason: str | None = None) -> None:
        with self.lock:
            self.counts.lost(why, error, reason)
        self._complain(error)

    def _complain(self, error: Exception) -> None:
        self._log.error(f"lost an image: {error}", throttle_duration_sec=OFTEN)

    def _tell(self, judgement: Judgement | None) -> None:
        """Publish a level that is about no image: STARTING or STALE; None is no news."""
        if judgement is None:
            return
        header = Header(
            stamp=self._node.get_clock().now().to_msg(), frame_id=self._last_header.frame_id
        )
        with self._publishing:
            if self._open:
                message = alerts.alert(
                    alerts.without_unknown_thresholds(judgement), header, self._bundle, (0, 0)
                )
                self._outputs.alerts.publish(message)
        if judgement.level == Level.STALE:
            self._log.warning(f"STALE: {judgement.reason}", throttle_duration_sec=OFTEN)

    def _publish_stats(self, now: float) -> None:
        status = self._keeper.status
        header = self._last_header
        if not self.counts.processed:
            header = Header(stamp=self._node.get_clock().now().to_msg())
        with self.lock:
            counts = self.counts
            message = FrameStats(
                header=header,
                model=alerts.model_name(self._bundle),
                runner=self._keeper.description,
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


def _check(message: Image | CompressedImage) -> None:
    """That it can be read, as far as that can be told at once; else ConversionError."""
    if isinstance(message, CompressedImage):
        conversions.check_compressed_image(message)
    else:
        conversions.check_image(message)


def fitted(image: np.ndarray, size: tuple[int | None, int | None]) -> np.ndarray:
    """The image scaled to the height and width that the engine takes; None takes any."""
    height, width = (wanted or found for wanted, found in zip(size, image.shape[:2], strict=True))
    if image.shape[:2] == (height, width):
        return image
    shrinks = height * width < image.shape[0] * image.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=method)
