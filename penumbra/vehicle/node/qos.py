"""Quality of service of the node's topics."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy

from penumbra.vehicle.node.parameters import Values

# The last message is kept for late subscribers.
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)  # small messages

# Heartbeats without an alert after which a subscriber may call the node dead. One may be late.
MISSED_HEARTBEATS = 2


def alerts(heartbeat: float) -> QoSProfile:
    """The profile of the alerts, which are repeated every `heartbeat` seconds.

    A late subscriber receives the last one, unless it has expired. A subscriber may request the
    deadline and the liveliness that are offered here, and is told when the node falls silent.
    Liveliness by topic: only an alert proves that the node is alive, not its middleware's threads.
    """
    silence = Duration(seconds=MISSED_HEARTBEATS * heartbeat)
    return QoSProfile(
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
        deadline=silence,
        lifespan=silence,
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC,
        liveliness_lease_duration=silence,
    )


def watched_alerts(heartbeat: float) -> QoSProfile:
    """The profile of a subscriber that must not miss the end of the alerts.

    Requests what `alerts` offers. Volatile: what was published before is not asked for. The depth
    keeps an ALERT between two OKs that arrive at once.
    """
    silence = Duration(seconds=MISSED_HEARTBEATS * heartbeat)
    return QoSProfile(
        depth=100,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.VOLATILE,
        deadline=silence,
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC,
        liveliness_lease_duration=silence,
    )


def profile(values: Values, direction: str) -> QoSProfile:
    """The profile of the `input` or `output` images, from the parameters."""
    reliability = {
        "best_effort": ReliabilityPolicy.BEST_EFFORT,
        "reliable": ReliabilityPolicy.RELIABLE,
    }[values[f"qos.{direction}_reliability"]]
    return QoSProfile(depth=values[f"qos.{direction}_depth"], reliability=reliability)
