"""Quality of service of the node's topics."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from penumbra.vehicle.node.parameters import Values

# The last message is kept for late subscribers: alerts, class names.
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)  # small messages


def profile(values: Values, direction: str) -> QoSProfile:
    """The profile of the `input` or `output` images, from the parameters."""
    reliability = {
        "best_effort": ReliabilityPolicy.BEST_EFFORT,
        "reliable": ReliabilityPolicy.RELIABLE,
    }[values[f"qos.{direction}_reliability"]]
    return QoSProfile(depth=values[f"qos.{direction}_depth"], reliability=reliability)
