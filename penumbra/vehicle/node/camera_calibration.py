"""The CameraInfo of one camera: the focal length that gives depth its scale."""

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
from penumbra.vehicle.node.parameters import Values

if TYPE_CHECKING:
    from rclpy.impl.rcutils_logger import RcutilsLogger

OFTEN = 10.0  # seconds between two log lines of one kind
FOCAL_TOLERANCE = 0.05  # of the focal length per width that the model was trained with


class CameraCalibration:
    """The latest CameraInfo, and warnings about what does not fit the model.

    `depth` is the scale of a depth bundle, None for segmentation.
    """

    def __init__(
        self, node: Node, log: RcutilsLogger, counts: Counts, depth: DepthSpec | None
    ) -> None:
        self._node, self._log, self._counts, self._depth = node, log, counts, depth
        self._subscription: Subscription | None = None
        self._is_rectified = False  # by the name of the image topic
        self._info: CameraInfo | None = None
        self._focal_seen: float | None = None

    def open(self, topic: str, image_topic: str, values: Values) -> None:
        """Subscribe; `image_topic` tells whether images are rectified."""
        self._is_rectified = "rect" in image_topic
        self._subscription = self._node.create_subscription(
            CameraInfo, topic, self._receive, qos.profile(values, "input")
        )

    def close(self) -> None:
        """End the subscription; what was received is kept."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)

    @property
    def is_needed(self) -> bool:
        """Whether outputs depend on it: depth does."""
        return self._depth is not None

    @property
    def info(self) -> CameraInfo | None:
        """The last valid CameraInfo."""
        return self._info

    @property
    def camera(self) -> PinholeCamera | None:
        """The focal length of `info`; None if there is none."""
        return None if self._info is None else camera_of(self._info)

    def guesses_focal_length(self) -> str | None:
        """What is missing for depth in metres; None if nothing is, or for segmentation."""
        if self._depth is None or self.camera is not None:
            return None
        where = "no CameraInfo"
        if self._subscription is not None:
            where = f"no CameraInfo with a focal length on {self._subscription.topic_name}"
        return (
            f"{where}: metres are right only for a camera like the one of the training, of focal "
            f"length {self._depth.focal_per_width:.3f} image widths; set camera_info_topic"
        )

    def _receive(self, info: CameraInfo) -> None:
        try:
            scaled_camera_info(info, 1, 1)
        except ConversionError as error:
            self._info = None
            with self._counts.lock:
                self._counts.invalid[error.reason] += 1
            self._log.warning(f"ignored a CameraInfo: {error}", throttle_duration_sec=OFTEN)
            return
        self._info = info
        camera = self.camera
        focal = None if camera is None else camera.focal_per_width
        if focal == self._focal_seen:
            return
        self._focal_seen = focal
        if any(info.d) and not self._is_rectified:
            self._log.warning(
                "the image is not rectified (CameraInfo has distortion), and the network was "
                "trained on rectified images: subscribe to image_rect"
            )
        if self._depth is not None and focal is not None:
            off = focal / self._depth.focal_per_width - 1
            if abs(off) > FOCAL_TOLERANCE:
                self._log.warning(
                    f"the camera's focal length is {focal:.3f} image widths, {abs(off):.0%} "
                    f"{'more' if off > 0 else 'less'} than the model was trained with "
                    f"({self._depth.focal_per_width:.3f}): depth may be off; crop the image, or "
                    "train for this camera"
                )
