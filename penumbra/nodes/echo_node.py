"""The smallest node that shows that images travel: what comes in on ~/image goes out on ~/echo."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from penumbra.nodes.spin import run_node

# Reliable, because best effort loses large images; the newest only, as an old one is of no use.
NEWEST_IMAGE = QoSProfile(depth=1)


class EchoNode(Node):
    """Publishes every image as it came, stamp and frame included."""

    def __init__(self) -> None:
        super().__init__("echo")
        self._echo = self.create_publisher(Image, "~/echo", NEWEST_IMAGE)
        self._images = self.create_subscription(Image, "~/image", self._echo.publish, NEWEST_IMAGE)
        self.get_logger().info(f"waiting for images on {self._images.topic_name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Echo until SIGINT or SIGTERM."""
    return run_node(EchoNode, arguments)


if __name__ == "__main__":
    sys.exit(main())
