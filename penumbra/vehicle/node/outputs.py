"""The outputs of one camera: computed and published only while subscribed.

Every output has the stamp and frame_id of its image. Outputs disabled by a parameter are not
computed either.
"""

from __future__ import annotations

from collections.abc import Callable
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
from penumbra.vehicle.camera_info import scaled_camera_info
from penumbra.vehicle.conversions import fill_image
from penumbra.vehicle.geometry import PinholeCamera
from penumbra.vehicle.node import qos
from penumbra.vehicle.node.alerts import colour_top, uncertainty_top
from penumbra.vehicle.node.parameters import Values
from penumbra.vehicle.node.points import Intrinsics, fill_cloud, point_array
from penumbra.vehicle.pipeline import FrameResult
from penumbra_msgs.msg import FrameStats


@dataclass(frozen=True)
class ProcessedFrame:
    """One processed image, with everything its outputs need."""

    bundle: Bundle
    header: Header
    result: FrameResult
    camera: PinholeCamera | None
    info: CameraInfo | None
    values: Values

    @cached_property
    def rgb(self) -> np.ndarray:
        """The input image of the network."""
        if self.bundle.input.channel_order == "rgb":
            return self.result.image
        return cv2.cvtColor(self.result.image, cv2.COLOR_BGR2RGB)

    @cached_property
    def colour_top(self) -> float:
        """The value of the judged map at the upper end of the colour map."""
        return colour_top(self.bundle, self.values)

    @cached_property
    def scaled_info(self) -> CameraInfo | None:
        """CameraInfo of the outputs, which have the size of the network's input."""
        if self.info is None:
            return None
        height, width = self.result.prediction.shape
        info = scaled_camera_info(self.info, width, height)
        info.header = self.header
        return info

    @cached_property
    def intrinsics(self) -> Intrinsics:
        """Intrinsics of the camera, or of the training data if CameraInfo has none."""
        if self.scaled_info is not None:
            known = Intrinsics.of_camera_info(self.scaled_info)
            if known is not None:
                return known
        height, width = self.result.prediction.shape
        source_height, source_width = self.result.source_size
        scale = self.camera or self.bundle.depth
        assert scale is not None  # only depth has points
        focal = scale.focal_per_width
        return Intrinsics.of_focal_length(focal, width, height, source_width, source_height)

    def optional_map(self, array: np.ndarray | None) -> Image | None:
        """The message of a 32FC1 map; None if the frame does not have it."""
        return None if array is None else self.message(array, "32FC1")

    def message(self, array: np.ndarray, encoding: str) -> Image:
        """The array as a message with the header of the image."""
        return fill_image(Image(header=self.header), array, encoding)


@dataclass(frozen=True)
class OutputTopic:
    """An output: its topic, the parameter that enables it, and its message."""

    topic: str
    switch: str | None
    make: Callable[[ProcessedFrame], Any]  # None: this frame has no such output
    kind: type = Image
    tasks: tuple[str, ...] = ("segmentation", "depth")


def _prediction(frame: ProcessedFrame) -> Image:
    encoding = "mono8" if frame.bundle.depth is None else "32FC1"
    return frame.message(frame.result.prediction, encoding)


def _confidence(frame: ProcessedFrame) -> Image | None:
    """Confidence as Nav2's semantic layer expects it: 0 to 255, rounded."""
    confidence = frame.result.confidence
    if confidence is None:
        return None
    return frame.message(cv2.convertScaleAbs(confidence, alpha=255), "mono8")


def _prediction_colour(frame: ProcessedFrame) -> Image:
    if frame.bundle.depth is None:
        coloured = colours.colour_labels(frame.result.prediction, frame.bundle.classes)
    else:
        coloured = colours.colour_depth(frame.result.prediction, frame.bundle.depth.max_depth_m)
    return frame.message(coloured, "rgb8")


def _uncertainty_colour(frame: ProcessedFrame) -> Image:
    top = uncertainty_top(frame.bundle, frame.colour_top)
    return frame.message(colours.colour_uncertainty(frame.result.uncertainty, top), "rgb8")


def _overlay(frame: ProcessedFrame) -> Image:
    verdict = frame.result.verdict
    regions = () if verdict is None else verdict.regions
    blended = colours.overlay(frame.rgb, frame.result.judged, frame.colour_top, regions)
    return frame.message(blended, "rgb8")


def _points(frame: ProcessedFrame) -> PointCloud2:
    points = point_array(
        frame.result.prediction,
        frame.result.uncertainty,
        frame.rgb,
        frame.intrinsics,
        frame.values["outputs.points_stride"],
    )
    return fill_cloud(PointCloud2(header=frame.header), points)


DEPTH = ("depth",)
OUTPUTS = (
    OutputTopic("prediction", "prediction", _prediction),
    OutputTopic("uncertainty", "uncertainty", lambda s: s.message(s.result.uncertainty, "32FC1")),
    OutputTopic("confidence", "confidence", _confidence),
    OutputTopic(
        "disparity", "disparity", lambda s: s.optional_map(s.result.disparity), tasks=DEPTH
    ),
    OutputTopic(
        "disparity/std",
        "disparity",
        lambda s: s.optional_map(s.result.disparity_std),
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
        self.stats = node.create_publisher(FrameStats, f"{prefix}stats", qos.RELIABLE)

    def prepare(self, frame: ProcessedFrame) -> list[tuple[Publisher, Any]]:
        """The messages of every output that is enabled and subscribed, with their publishers."""
        prepared = []
        for output, publisher in self._images:
            enabled = output.switch is None or frame.values[f"outputs.{output.switch}"]
            if enabled and publisher.get_subscription_count():
                message = output.make(frame)
                if message is not None:
                    prepared.append((publisher, message))
        return prepared

    def destroy(self) -> None:
        """Destroy all publishers."""
        for publisher in [*(p for _, p in self._images), self.stats]:
            self._node.destroy_publisher(publisher)
