"""The camera calibration of one camera, whose focal length sets the scale of depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo

from penumbra.bundle import DepthSpec
from penumbra.vehicle.camera_info import camera_of, mismatch, scaled_camera_info
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.geometry import PinholeCamera
from penumbra.vehicle.monitor import HOLDS, Fact, Level
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.frame_counts import Counts
from penumbra.vehicle.node.logs import LOG_PERIOD
from penumbra.vehicle.node.parameters import Values

if TYPE_CHECKING:
    from rclpy.impl.rcutils_logger import RcutilsLogger

FOCAL_TOLERANCE = 0.05  # relative to the focal length of the training data


@dataclass(frozen=True)
class FrameCalibration:
    """The camera calibration of one image, and whether it can be used."""

    fact: Fact
    camera: PinholeCamera | None = None
    info: CameraInfo | None = None


class CameraCalibration:
    """The latest CameraInfo, with warnings if it does not match the model.

    `depth` is the scale of a depth bundle; None for segmentation.
    """

    def __init__(
        self, node: Node, log: RcutilsLogger, counts: Counts, depth: DepthSpec | None
    ) -> None:
        self._node, self._log, self._counts, self._depth = node, log, counts, depth
        self._subscription: Subscription | None = None
        self._is_rectified = False  # according to the name of the image topic
        self._info: CameraInfo | None = None
        self._last_focal: float | None = None
        self._fact: Fact | None = None  # of the last image
        self._invalid: str | None = None  # why the last CameraInfo was refused

    def open(self, topic: str, image_topic: str, values: Values) -> None:
        """Subscribe; the name `image_topic` shows whether images are rectified."""
        self._is_rectified = "rect" in image_topic
        self._subscription = self._node.create_subscription(
            CameraInfo, topic, self._receive, qos.profile(values, "input")
        )

    def close(self) -> None:
        """End the subscription; the last CameraInfo is kept."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)

    @property
    def is_needed(self) -> bool:
        """Whether outputs depend on the calibration, as depth does."""
        return self._depth is not None

    @property
    def camera(self) -> PinholeCamera | None:
        """The focal length of the last CameraInfo; None if unknown."""
        return None if self._info is None else camera_of(self._info)

    @property
    def fact(self) -> Fact:
        """Whether the calibration of the last image could be used."""
        return self._fact or Fact(Level.STARTING, "no image yet")

    def of_image(self, height: int, width: int) -> FrameCalibration:
        """The calibration of an image of this size.

        Depth without a focal length assumes that of the training data, which is a WARN unless
        camera_info_topic is empty on purpose. A calibration of another camera or size is refused.
        """
        info = self._info
        focal = None if self._depth is None else self._depth.focal_per_width
        problem = self._invalid
        if problem is None and info is not None:
            problem = mismatch(info, (height, width), focal)
        if problem is not None:
            self._log.warning(f"refused: {problem}", throttle_duration_sec=LOG_PERIOD)
            found = FrameCalibration(Fact.stale(problem) if self.is_needed else HOLDS)
        elif self._subscription is not None and (missing := self.missing_focal_length()):
            found = FrameCalibration(Fact(Level.WARN, missing))
        else:
            found = FrameCalibration(HOLDS, self.camera, info)
        self._fact = Fact(Level.WARN, problem) if problem and not self.is_needed else found.fact
        return found

    def missing_focal_length(self) -> str | None:
        """A warning if depth lacks the focal length; None if it is known or not needed."""
        if self._depth is None or self.camera is not None:
            return None
        where = "no CameraInfo"
        if self._subscription is not None:
            where = f"no CameraInfo with a focal length on {self._subscription.topic_name}"
        return (
            f"{where}: depth assumes the focal length of the training data, "
            f"{self._depth.focal_per_width:.3f} image widths; set camera_info_topic"
        )

    def _receive(self, info: CameraInfo) -> None:
        try:
            scaled_camera_info(info, 1, 1)
        except ConversionError as error:
            self._info, self._invalid = None, str(error)
            with self._counts.lock:
                self._counts.invalid[error.reason] += 1
            self._log.warning(f"ignored a CameraInfo: {error}", throttle_duration_sec=LOG_PERIOD)
            return
        self._info, self._invalid = info, None
        camera = self.camera
        focal = None if camera is None else camera.focal_per_width
        if focal == self._last_focal:
            return
        self._last_focal = focal
        if any(info.d) and not self._is_rectified:
            self._log.warning(
                "the image is not rectified (CameraInfo has distortion), but the network was "
                "trained on rectified images: subscribe to image_rect"
            )
        if self._depth is not None and focal is not None:
            deviation = focal / self._depth.focal_per_width - 1
            if abs(deviation) > FOCAL_TOLERANCE:
                self._log.warning(
                    f"the focal length is {focal:.3f} image widths, {abs(deviation):.0%} "
                    f"{'more' if deviation > 0 else 'less'} than in training "
                    f"({self._depth.focal_per_width:.3f}): depth may be inaccurate; crop the "
                    "image, or train for this camera"
                )
