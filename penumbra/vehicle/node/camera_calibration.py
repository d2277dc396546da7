"""The camera calibration of one camera, whose focal length sets the scale of depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo

from penumbra.bundle import DepthSpec
from penumbra.vehicle.camera_info import camera_of, scaled_camera_info
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.geometry import PinholeCamera
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.frame_counts import Counts
from penumbra.vehicle.node.logs import LOG_PERIOD
from penumbra.vehicle.node.parameters import Values

if TYPE_CHECKING:
    from rclpy.impl.rcutils_logger import RcutilsLogger

FOCAL_TOLERANCE = 0.05  # relative to the focal length of the training data


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
    def info(self) -> CameraInfo | None:
        """The last valid CameraInfo."""
        return self._info

    @property
    def camera(self) -> PinholeCamera | None:
        """The focal length of `info`; None if unknown."""
        return None if self._info is None else camera_of(self._info)

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
            self._info = None
            with self._counts.lock:
                self._counts.invalid[error.reason] += 1
            self._log.warning(f"ignored a CameraInfo: {error}", throttle_duration_sec=LOG_PERIOD)
            return
        self._info = info
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
