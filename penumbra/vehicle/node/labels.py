"""The class names of ~/prediction, as a latched topic and as a parameter."""

from __future__ import annotations

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node

from penumbra.bundle import Bundle
from penumbra.vehicle.node import qos

PARAMETER = "label_names"


class LabelNames:
    """The topic `~/label_info` (if vision_msgs is installed) and the parameter `label_names`."""

    def __init__(self, node: Node, bundle: Bundle) -> None:
        self._node = node
        self._publisher = None
        if not bundle.classes:
            return
        names = [c.name for c in bundle.classes]
        # A read-only parameter could not be undeclared; instead the node rejects changes.
        about = ParameterDescriptor(description="Class names by label, from the bundle")
        node.declare_parameter(PARAMETER, names, about, ignore_override=True)
        try:
            from vision_msgs.msg import LabelInfo, VisionClass
        except ImportError:
            node.get_logger().info(
                f"vision_msgs is not installed: class names are only in parameter {PARAMETER}"
            )
            return
        message = LabelInfo(
            class_map=[VisionClass(class_id=n, class_name=name) for n, name in enumerate(names)]
        )
        message.header.stamp = node.get_clock().now().to_msg()
        self._publisher = node.create_publisher(LabelInfo, "~/label_info", qos.LATCHED)
        self._publisher.publish(message)

    def destroy(self) -> None:
        """Remove both, together with the bundle."""
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
        if self._node.has_parameter(PARAMETER):
            self._node.undeclare_parameter(PARAMETER)
