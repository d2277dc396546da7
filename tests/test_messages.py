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
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from penumbra.bags import open_bag
from penumbra_msgs.msg import FrameStats, OodAlert, OodCause, OodRegion

SOURCES = Path(__file__).resolve().parents[1] / "ros2_ws/src/penumbra_msgs/msg"
TYPES = {kind.__name__: kind for kind in (FrameStats, OodAlert, OodCause, OodRegion)}
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
        causes=[
            OodCause(cause=OodCause.UNCERTAINTY, level=OodAlert.ALERT, score=0.3125,
                     threshold=0.21875, direction=OodCause.ABOVE, unit="1", reason="over"),
            OodCause(cause=OodCause.CAMERA, level=OodAlert.OK, score=0.75, threshold=0.5,
                     direction=OodCause.BELOW, unit="1", reason="sharp enough"),
        ],
        site="depot-north@9c1f0a2b",
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


# OodAlert and OodRegion as 0.1 recorded them.
ALERT_0_1 = """
std_msgs/Header header
uint8 level
string unit
string model
float32 frame_score
float32 frame_threshold
float32 pixel_threshold
float32 uncertain_fraction
uint32 image_width
uint32 image_height
OodRegion[] regions
string reason
"""
REGION_0_1 = """
uint32 x
uint32 y
uint32 width
uint32 height
uint32 area
float32 mean_uncertainty
float32 max_uncertainty
"""


def test_a_recording_of_0_1_is_read(tmp_path):
    """Its alerts have neither causes nor a site; everything else is as it was recorded."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg(REGION_0_1, "penumbra_msgs/msg/OodRegion"))
    store.register(get_types_from_msg(ALERT_0_1, "penumbra_msgs/msg/OodAlert"))
    kinds = store.types
    header = kinds["std_msgs/msg/Header"](
        stamp=kinds["builtin_interfaces/msg/Time"](sec=7, nanosec=8), frame_id="camera"
    )
    region = kinds["penumbra_msgs/msg/OodRegion"](1, 2, 3, 4, 5, 0.5, 0.75)
    alert = kinds["penumbra_msgs/msg/OodAlert"](
        header, 3, "1", "street@00000000", 0.25, 0.125, 0.0625, 0.5, 48, 36, [region], "over"
    )
    with Writer(tmp_path / "old", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/penumbra/ood", alert.__msgtype__, typestore=store)
        writer.write(topic, 9, store.serialize_cdr(alert, alert.__msgtype__))
    with open_bag(tmp_path / "old") as bag:
        [(name, _, read)] = list(bag)
    assert name == "/penumbra/ood"
    assert (read.level, read.frame_score, read.reason) == (3, 0.25, "over")
    assert (read.regions[0].x, read.header.frame_id) == (1, "camera")
    assert not hasattr(read, "causes")
