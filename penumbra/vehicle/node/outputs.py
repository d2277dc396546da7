"""What is published of one camera's images: publishers, and pictures made only for who looks.

Every output has the stamp and the frame of its image. What nobody subscribes to, or a parameter
switches off, is not even computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import CameraInfo, Image, PointCloud2
from std_msgs.msg import Header

from penumbra.bundle import Bundle
from penumbra.vehicle import colours
from penumbra.vehicle.conversions import fill_image, scaled_camera_info
from penumbra.vehicle.monitor import Region
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.alerts import uncertainty_top
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.node.points import Intrinsics, fill_cloud, point_array
from penumbra.vehicle.pipeline import FrameResult, PinholeCamera
from penumbra_msgs.msg import FrameStats, OodAlert


@dataclass(frozen=True)
class ProcessedFrame:
    """One processed image, and what its outputs are made of."""

    bundle: Bundle
    header: Header
    image: np.ndarray  # as the network saw it, in the bundle's channel order
    source_size: tuple[int, int]  # height, width of the image as it came
    result: FrameResult
    regions: Sequence[Region]
    camera: PinholeCamera | None
    info: CameraInfo | None
    colour_top: float  # what is judged, at the upper end of the colours
    values: Values

    @cached_property
    def rgb(self) -> np.ndarray:
        if self.bundle.input.channel_order == "rgb":
            return self.image
        return cv2.cvtColor(self.image, cv2.COLOR_BGR2RGB)

    @cached_property
    def scaled_info(self) -> CameraInfo | None:
        """CameraInfo for the outputs, which are as large as what the network saw."""
        if self.info is None:
            return None
        height, width = self.result.prediction.shape
        info = scaled_camera_info(self.info, width, height)
        info.header = self.header
        return info

    @cached_property
    def intrinsics(self) -> Intrinsics:
        if self.scaled_info is not None:
            known = Intrinsics.of_camera_info(self.scaled_info)
            if known is not None:
                return known
        height, width = self.result.prediction.shape
        source_height, source_width = self.source_size
        focal = (self.camera or self.bundle.depth).focal_per_width
        return Intrinsics.of_focal_length(focal, width, height, source_width, source_height)

    def picture(self, array: np.ndarray, encoding: str) -> Image:
        return fill_image(Image(header=self.header), array, encoding)


@dataclass(frozen=True)
class OutputTopic:
    """A topic under the camera's name, the parameter that switches it, and what is sent."""

    topic: str
    switch: str | None
    make: Callable[[ProcessedFrame], Any]  # None: there is nothing to send of this image
    kind: type = Image
    tasks: tuple[str, ...] = ("segmentation", "depth")


def _prediction(seen: ProcessedFrame) -> Image:
    encoding = "mono8" if seen.bundle.depth is None else "32FC1"
    return seen.picture(seen.result.prediction, encoding)


def _confidence(seen: ProcessedFrame) -> Image | None:
    """As Nav2's semantic layer takes it: 0 to 255, to the nearest."""
    confidence = seen.result.confidence
    if confidence is None:
        return None
    return seen.picture(cv2.convertScaleAbs(confidence, alpha=255), "mono8")


def _prediction_colour(seen: ProcessedFrame) -> Image:
    if seen.bundle.depth is None:
        colours = colours.colour_labels(seen.result.prediction, seen.bundle.classes)
    else:
        colours = colours.colour_depth(seen.result.prediction, seen.bundle.depth.max_depth_m)
    return seen.picture(colours, "rgb8")


def _uncertainty_colour(seen: ProcessedFrame) -> Image:
    top = uncertainty_top(seen.bundle, seen.colour_top)
    return seen.picture(colours.colour_uncertainty(seen.result.uncertainty, top), "rgb8")


def _overlay(seen: ProcessedFrame) -> Image:
    blended = colours.overlay(seen.rgb, seen.result.judged, seen.colour_top, seen.regions)
    return seen.picture(blended, "rgb8")


def _points(seen: ProcessedFrame) -> PointCloud2:
    points = point_array(
        seen.result.prediction,
        seen.result.uncertainty,
        seen.rgb,
        seen.intrinsics,
        seen.values["outputs.points_stride"],
    )
    return fill_cloud(PointCloud2(header=seen.header), points)


DEPTH = ("depth",)
OUTPUTS = (
    OutputTopic("prediction", "prediction", _prediction),
    OutputTopic("uncertainty", "uncertainty", lambda s: s.picture(s.result.uncertainty, "32FC1")),
    OutputTopic("confidence", "confidence", _confidence),
    OutputTopic(
        "disparity", "disparity", lambda s: s.picture(s.result.disparity, "32FC1"), tasks=DEPTH
    ),
    OutputTopic(
        "disparity/std",
        "disparity",
        lambda s: s.picture(s.result.disparity_std, "32FC1"),
        tasks=DEPTH,
    ),
    OutputTopic("points", "points", _points, PointCloud2, DEPTH),
    OutputTopic("camera_info", None, lambda s: s.scaled_info, CameraInfo),
    OutputTopic("prediction/color", "color", _prediction_colour),
    OutputTopic("uncertainty/color", "color", _uncertainty_colour),
    OutputTopic("overlay", "overlay", _overlay),
)


class Outputs:
    """The publishers of one camera, from configure to cleanup."""

    def __init__(self, node: Node, camera: str, task: str, values: Values) -> None:
        self._node = node
        prefix = f"~/{camera}/" if camera else "~/"
        images = qos.profile(values, "output")
        self._images: list[tuple[OutputTopic, Publisher]] = [
            (output, node.create_publisher(output.kind, prefix + output.topic, images))
            for output in OUTPUTS
            if task in output.tasks
        ]
        self.alerts = node.create_publisher(OodAlert, f"{prefix}ood", qos.LATCHED)
        self.stats = node.create_publisher(FrameStats, f"{prefix}stats", qos.EVERY_ONE)

    def publish(self, seen: ProcessedFrame) -> None:
        """Everything of one image that somebody wants."""
        for output, publisher in self._images:
            wanted = output.switch is None or seen.values[f"outputs.{output.switch}"]
            if wanted and publisher.get_subscription_count():
                message = output.make(seen)
                if message is not None:
                    publisher.publish(message)

    def destroy(self) -> None:
        """After this nothing can be published."""
        for publisher in [*(p for _, p in self._images), self.alerts, self.stats]:
            self._node.destroy_publisher(publisher)
