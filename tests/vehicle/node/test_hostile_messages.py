"""No message ends the node, whatever is in it; what cannot be read is counted.

PENUMBRA_FLOOD sets the number of messages of each flood, e.g. 100000; -s shows the figures.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import cv2
import hostile
import pytest
import tiny_bundles
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from fail_safe import LEVELS, THRESHOLDS, Drive, ordinary
from perception import STUB_NODE, NodeProcess, Peer, resident, running
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy._rclpy_pybind11 import RCLError
from rclpy.publisher import Publisher
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

FLOOD = int(os.environ.get("PENUMBRA_FLOOD", "2000"))
BATCH = 500  # messages, sent without a pause
ALLOWED = 100 * 2**20  # bytes of growth: 10,000 kept images of this flood would be that much
# Written by libraries in C, without text from outside.
FOREIGN = ("[", "sequence size exceeds", "Corrupt JPEG", "Premature end of JPEG", "libpng")
TYPES = {"/penumbra/image": Image, "/penumbra/image/camera_info": CameraInfo, "/clock": Clock}


@pytest.fixture
def street(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street", thresholds=THRESHOLDS)
    return {"bundle": bundle.path, "runner": "onnxruntime", "qos.input_reliability": "reliable"}


@pytest.mark.parametrize("kind", [SetParameters, SetParametersAtomically])
def test_a_parameter_of_an_undefined_type_is_answered_and_counted(peer, street, kind):
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        drive.reach_ok()
        odd = Parameter(name="rate_limit", value=ParameterValue(type=77))
        name = "set_parameters" + "_atomically" * (kind is SetParametersAtomically)
        answer = peer.call(kind, f"/penumbra/{name}", kind.Request(parameters=[odd]))
        results = answer.results if kind is SetParameters else [answer.result]
        assert not any(result.successful for result in results)
        drive.diagnosed("callbacks", DiagnosticStatus.ERROR, name, drive.message)
        assert counted(peer) == 1
        answered(drive)


def test_a_clock_before_zero_is_counted(peer, street):
    with running(str(STUB_NODE), use_sim_time=True, **street):
        drive = Drive(peer)
        ticks = peer.publisher("/clock", Clock)
        times = itertools.count(100 * 10**9, 5 * 10**7)

        def send() -> Image:
            image, now = drive.message(), next(times)
            image.header.stamp = Time(sec=now // 10**9, nanosec=now % 10**9)
            ticks.publish(Clock(clock=image.header.stamp))
            return image

        drive.run(lambda: drive.level == "OK", "OK", send)

        def before_zero() -> None:  # again and again: only the last tick is kept for the node
            ticks.publish(Clock(clock=Time(sec=-1, nanosec=0)))

        drive.diagnosed("callbacks", DiagnosticStatus.ERROR, "ValueError", before_zero)
        drive.run(lambda: drive.level == "OK", "OK again", send)


@pytest.mark.parametrize("topic", TYPES)
def test_bytes_that_are_no_message_are_counted(peer, street, topic):
    """A message that lacks more than the padding is never readable, so each must be counted."""
    simulated = topic == "/clock"
    with running(str(STUB_NODE), use_sim_time=simulated, **street) as node:
        drive = Drive(peer)
        publisher = peer.publisher(topic, TYPES[topic])
        whole = serialize_message(drive.message() if TYPES[topic] is Image else TYPES[topic]())
        for data in (whole[: len(whole) * part // 32 * 4] for part in range(3, 8)):
            seen = counted(peer)

            def was_counted(data: bytes = data, seen: int = seen) -> bool:
                publisher.publish(data)  # again and again: discovery may not be complete
                return counted(peer) > seen

            peer.wait(was_counted, "a count")
        status = find(peer, "callbacks")
        assert {entry.key for entry in status.values} == {"UnreadableMessageError"}
        assert topic in node.wait_for("cannot be read")
        if not simulated:
            answered(drive)
        assert_clean_log(node)


def test_an_empty_payload_silences_only_its_sender(peer, street):
    """Fast DDS delivers nothing more of a reliable publisher after an empty payload."""
    with running(str(STUB_NODE), **street) as node:
        drive = Drive(peer)
        drive.reach_ok()
        other = peer.node.create_publisher(Image, "/penumbra/image", 10)
        peer.wait(other.get_subscription_count, "a subscriber")
        for _ in range(20):
            other.publish(b"")
        answered(drive)
        assert_clean_log(node)


@pytest.mark.parametrize("kind", [Image, CompressedImage], ids=lambda kind: kind.__name__)
def test_a_flood_of_anything_leaves_the_node_answering(peer, tmp_path, kind):
    """Images of the future and past, CameraInfo, files, bytes: after each batch a good frame."""
    settings: dict[str, Any] = {
        "qos.input_reliability": "reliable",
        "qos.input_depth": 100,  # the largest
        "ood.stale_after": 0.5,  # for which stamps that went back are STALE
        "runner": "onnxruntime",
        "compressed": kind is CompressedImage,
    }
    thresholds = {**THRESHOLDS, "pixel": 1e6, "frame": 1e6}
    bundle = tiny_bundles.depth(tmp_path / "depth", thresholds=thresholds)
    topic = "/penumbra/image" + "/compressed" * (kind is CompressedImage)
    with running(bundle=bundle.path, **settings) as node:
        node.wait_for("engine: running")
        drive = Drive(peer, topic, kind)
        images = peer.publisher(topic, kind)
        infos = peer.publisher("/penumbra/image/camera_info", CameraInfo)
        send = sender(drive, kind, infos)
        drive.run(lambda: drive.level == "OK", "OK", send)
        start, before, slowest = time.monotonic(), 0, 0.0
        for number in range(0, FLOOD, BATCH):
            for target, message in flood(peer, kind, number):
                with contextlib.suppress(RCLError):  # what not even the sender can send
                    (infos if target is CameraInfo else images).publish(message)
            sent = time.monotonic()
            answered(drive, send)
            slowest = max(slowest, time.monotonic() - sent)
            before = before or resident(node.process.pid)
            for received in peer.received.values():
                del received[:-1]  # bounds the memory of the test
            del drive.alerts[:-1]
        after = resident(node.process.pid)
        drive.diagnosed("OOD", DiagnosticStatus.OK, "", send)
        print(
            f"\n{FLOOD} messages ({kind.__name__}) in {time.monotonic() - start:.0f} s; "
            f"a good frame answered after each {BATCH}, at the latest after {slowest:.1f} s; "
            f"{counted(peer)} unreadable, conversion errors "
            f"{ {e.key: e.value for e in find(peer, 'conversion errors').values} }; resident "
            f"{before / 1e6:.0f} -> {after / 1e6:.0f} MB; {len(node.log)} lines in the log"
        )
        assert after - before < ALLOWED
        assert counted(peer) > FLOOD // 100  # bytes were among them
        assert_clean_log(node)


def flood(peer: Peer, kind: type, seed: int) -> Iterator[tuple[type, Any]]:
    """A batch of hostile messages in random order, half of the stamps current."""
    choose = random.Random(seed)
    whole = serialize_message(good_image(peer, kind, ordinary(seed)))
    some = BATCH // 4
    images = hostile.compressed if kind is CompressedImage else hostile.images
    info = serialize_message(CameraInfo(width=48, height=36))
    messages = [
        *((kind, message) for message in images(seed, BATCH - 3 * some)),
        *((CameraInfo, message) for message in hostile.camera_infos(seed, some)),
        *((kind, data) for data in hostile.payloads(seed, some, whole)),
        *((CameraInfo, data) for data in hostile.payloads(seed, some, info)),
    ]
    choose.shuffle(messages)
    for target, message in messages:
        if not isinstance(message, bytes) and choose.random() < 0.5:
            message.header.stamp = peer.node.get_clock().now().to_msg()
        yield target, message


def good_image(peer: Peer, kind: type, pixels) -> Image | CompressedImage:
    image = peer.image(pixels)
    if kind is Image:
        return image
    data = cv2.imencode(".png", pixels)[1].tobytes()
    return CompressedImage(header=image.header, format="png", data=data)


def sender(drive: Drive, kind: type, infos: Publisher):
    """Sends a good CameraInfo, and returns a good image with a number as its frame."""
    good = CameraInfo(width=48, height=36)
    good.k = [38.4, 0.0, 23.5, 0.0, 38.4, 17.5, 0.0, 0.0, 1.0]
    numbers = itertools.count(1)

    def send() -> Image | CompressedImage:
        infos.publish(good)
        number = next(numbers)
        image = good_image(drive.peer, kind, ordinary(number))
        image.header.frame_id = str(number)
        return image

    return send


def answered(drive: Drive, send=None) -> None:
    """Drive until an image that was sent after this call is OK."""
    start = drive.peer.node.get_clock().now().nanoseconds

    def found() -> bool:
        return any(
            LEVELS[alert.level] == "OK"
            and alert.header.frame_id.isdigit()
            and alert.header.stamp.sec * 10**9 + alert.header.stamp.nanosec > start
            for _, alert in drive.alerts
        )

    drive.run(found, "a good frame that is OK", send)


def find(peer: Peer, name: str) -> DiagnosticStatus:
    statuses = [s for array in peer.received["/diagnostics"][-1:] for s in array.status]
    return next((s for s in statuses if s.name == f"penumbra: {name}"), DiagnosticStatus())


def counted(peer: Peer) -> int:
    """The errors of callbacks, by the latest diagnostics."""
    return sum(int(entry.value) for entry in find(peer, "callbacks").values)


def assert_clean_log(node: NodeProcess) -> None:
    """Every line is the node's or a known one of a library, without control characters."""
    for line in list(node.log):
        assert line.isprintable(), repr(line)
        assert not line or line.startswith(FOREIGN), repr(line)
