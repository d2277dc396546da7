"""How the node's topics travel, from its parameters."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from penumbra.vehicle.node.parameters import Values

# The last message is kept for whoever comes later: alerts, names of the classes.
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
EVERY_ONE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)  # small messages


def profile(values: Values, direction: str) -> QoSProfile:
    """Of the `input` or the `output` images."""
    reliability = {
        "best_effort": ReliabilityPolicy.BEST_EFFORT,
        "reliable": ReliabilityPolicy.RELIABLE,
    }[values[f"qos.{direction}_reliability"]]
    return QoSProfile(depth=values[f"qos.{direction}_depth"], reliability=reliability)
