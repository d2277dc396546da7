"""penumbra_msgs: every field explained, and an alert that crosses real DDS unharmed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.task import Future

from penumbra_msgs.msg import FrameStats, OodAlert, OodRegion

SOURCES = Path(__file__).resolve().parents[1] / "ros2_ws/src/penumbra_msgs/msg"
TYPES = {"FrameStats": FrameStats, "OodAlert": OodAlert, "OodRegion": OodRegion}
PATIENCE = 60.0  # seconds until an answer counts as lost; usually it takes milliseconds

# Latched, as the node publishes alerts: a subscriber that comes late still gets the last one.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)

# Answers every alert in a process of its own, as it came, until its standard input is closed.
ECHO = """
import sys, threading
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile
from penumbra_msgs.msg import OodAlert

latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
rclpy.init()
node = rclpy.create_node("alert_echo")
echo = node.create_publisher(OodAlert, "echo", latched)
node.create_subscription(OodAlert, "alert", echo.publish, latched)
threading.Thread(target=lambda: (sys.stdin.read(), rclpy.shutdown()), daemon=True).start()
try:
    rclpy.spin(node)
except rclpy.executors.ExternalShutdownException:
    pass
"""


def filled_alert() -> OodAlert:
    """An alert with a value of its own in every field; floats are exact in 32 bits."""
    alert = OodAlert(
        level=OodAlert.ALERT,
        unit="1",
        model="segnet-street@3f9a1c02",
        frame_score=0.3125,
        frame_threshold=0.21875,
        pixel_threshold=0.125,
        uncertain_fraction=0.0625,
        image_width=480,
        image_height=360,
        regions=[
            OodRegion(x=10, y=20, width=30, height=40, area=900, mean_uncertainty=0.25,
                      max_uncertainty=0.5),
            OodRegion(x=479, y=359, width=1, height=1, area=1, mean_uncertainty=0.1875,
                      max_uncertainty=0.1875),
        ],
        reason="score 0.31 over 0.22 in 4 of 5 frames — “unknown object”",
    )  # fmt: skip
    alert.header.stamp.sec, alert.header.stamp.nanosec = 1_700_000_000, 999_999_999
    alert.header.frame_id = "camera_front"
    return alert


def test_an_alert_crosses_dds_to_another_process_and_back(ros_domain):
    received = Future()
    echo = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE)
    context = rclpy.Context()
    rclpy.init(context=context)
    try:
        node = rclpy.create_node("alert_test", context=context)
        executor = rclpy.executors.SingleThreadedExecutor(context=context)
        executor.add_node(node)
        node.create_subscription(OodAlert, "echo", received.set_result, LATCHED)
        # Published before anybody listens: latched, so it has to arrive all the same.
        node.create_publisher(OodAlert, "alert", LATCHED).publish(filled_alert())
        executor.spin_until_future_complete(received, timeout_sec=PATIENCE)
    finally:
        rclpy.shutdown(context=context)
        echo.communicate(timeout=PATIENCE)
    assert received.done(), "the alert did not come back"
    assert received.result() == filled_alert()
    assert echo.returncode == 0


def test_an_empty_message_never_reads_as_fine():
    assert OodAlert().level == OodAlert.STARTING
    levels = [OodAlert.STARTING, OodAlert.OK, OodAlert.WARN, OodAlert.ALERT, OodAlert.STALE]
    assert levels == list(range(5))


@pytest.mark.parametrize("name", TYPES)
def test_every_field_says_what_it_means(name):
    """A comment on its line, or above it for the header; a number also has its unit or range."""
    lines = (SOURCES / f"{name}.msg").read_text().splitlines()
    fields = TYPES[name].get_fields_and_field_types()
    explained: dict[str, str] = {}
    for above, line in zip(["", *lines], lines, strict=False):
        if match := re.fullmatch(r"\w\S* +([a-z]\w*) *(#.*)?", line):
            explained[match[1]] = match[2] or (above if above.startswith("#") else "")
    assert list(explained) == list(fields)
    for field, comment in explained.items():
        assert len(comment) > 10, f"{name}.{field} has no comment"
        if re.match(r"u?int|float|double", fields[field]):
            assert re.search(r"\[\w+\]|\d \.\. |[<>]", comment) or field.endswith("_ms"), field
