"""The smallest node that shows that images travel: what comes in on ~/image goes out on ~/echo."""

from __future__ import annotations

from collections.abc import Sequence

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

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
    """Spin until SIGINT or SIGTERM, which are the usual end and no failure."""
    rclpy.init(args=arguments)
    node = EchoNode()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    main()
