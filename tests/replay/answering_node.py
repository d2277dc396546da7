"""A process that answers images: it stands in for any perception node at the other end of DDS.

/answering/image: answered at once on /answering/prediction (the image inverted) and, as real
nodes have several outputs, on /answering/ood; a little later on /answering/late, unless the next
image is quicker. /forgetful/image: every frame is only heard when it
comes a second time. /silent/image: never answered. /mistaken/image: another type is expected.
"""

from __future__ import annotations

import sys
import traceback

import numpy as np
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from penumbra.vehicle.node.spin import run_node
from penumbra_msgs.msg import OodAlert

NEWEST = QoSProfile(depth=1)


class AnsweringNode(Node):
    def __init__(self) -> None:
        super().__init__("answering")
        self._answers = {
            name: self.create_publisher(Image, f"/{name}/prediction", NEWEST)
            for name in ("answering", "forgetful", "silent")
        }
        self._alerts = self.create_publisher(OodAlert, "/answering/ood", NEWEST)
        self._late = self.create_publisher(Image, "/answering/late", NEWEST)
        self._waiting: Image | None = None
        self.create_timer(0.01, self._publish_late)
        self._heard: set[tuple[int, int]] = set()
        for name, take in (
            ("answering", self._answer),
            ("forgetful", self._forget),
            ("silent", lambda image: None),
        ):
            self.create_subscription(Image, f"/{name}/image", take, NEWEST)
        self.create_subscription(CompressedImage, "/mistaken/image", lambda image: None, NEWEST)

    def _answer(self, image: Image) -> None:
        self._alerts.publish(OodAlert(header=image.header, frame_score=0.25, unit="1"))
        self._answers["answering"].publish(inverted(image))
        self._waiting = image

    def _publish_late(self) -> None:
        if self._waiting is not None:
            self._late.publish(self._waiting)
            self._waiting = None

    def _forget(self, image: Image) -> None:
        stamp = image.header.stamp.sec, image.header.stamp.nanosec
        if stamp in self._heard:
            self._answers["forgetful"].publish(inverted(image))
        self._heard.add(stamp)


def inverted(image: Image) -> Image:
    image.data = (255 - np.frombuffer(image.data, np.uint8)).tobytes()
    return image


if __name__ == "__main__":
    sys.exit(run_node(AnsweringNode, lambda node, error: traceback.print_exception(error)))
