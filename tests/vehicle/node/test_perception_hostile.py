"""Hostile messages: the node survives, counts each by reason, and processes valid frames.

PENUMBRA_HOSTILE sets the number of messages, e.g. 20000; -s shows the counts.
"""

from __future__ import annotations

import os
from collections import Counter

import cv2
import hostile
import pytest
import tiny_bundles
from diagnostic_msgs.msg import DiagnosticArray
from perception import STUB_NODE, Peer, running
from rclpy.publisher import Publisher
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2

from penumbra.vehicle import conversions
from penumbra.vehicle.camera_info import scaled_camera_info
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.image_fit import check_plausible_size, fit_to_size
from penumbra_msgs.msg import FrameStats

COUNT = int(os.environ.get("PENUMBRA_HOSTILE", "300"))
KINDS = pytest.mark.parametrize("kind", [Image, CompressedImage], ids=lambda kind: kind.__name__)
DROPPED = ("busy", "old", "rate", "invalid", "failed")


@KINDS
def test_each_hostile_image_is_counted_by_reason(kind, peer, tmp_path):
    """The expected reason of each message is that of the conversion, which has its own tests.

    Stamps are the subject of test_fail_safe.py; here all are current.
    """
    compressed = kind is CompressedImage
    messages = (hostile.compressed if compressed else hostile.images)(1, COUNT // 2)
    settings = {
        "bundle": tiny_bundles.depth(tmp_path / "depth").path,
        "runner": "onnxruntime",
        "compressed": compressed,
        "camera_info_topic": "",
        "qos.input_reliability": "reliable",  # every message must reach the node
        "qos.input_depth": 10,
    }
    expected: Counter[str] = Counter()  # by reason
    processed = failed = 0
    with running(**settings) as node:
        node.wait_for("engine: running")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.collect(DiagnosticArray, "/diagnostics")
        peer.collect(Image, "/penumbra/prediction", "/penumbra/overlay")
        peer.collect(PointCloud2, "/penumbra/points")
        peer.collect(CameraInfo, "/penumbra/camera_info")
        images = peer.publisher(topic_of(kind), kind)
        for number, message in enumerate(messages):
            message.header.stamp = peer.node.get_clock().now().to_msg()
            images.publish(message)
            if reason := refused(converted, kind, message):
                expected[reason] += 1
                if not refused(check(kind), message):
                    # Found only by decoding: the worker must reach it before the next arrives.
                    peer.wait(lambda: reasons_of(peer) == +expected, "a count")
            elif not converted(kind, message).any():  # black: no disparity and no uncertainty
                failed += 1
                peer.wait(lambda f=failed: peer.stats()[-1].dropped_failed == f, "a failure")
            else:  # a valid image
                processed += 1
                peer.wait(lambda p=processed: processed_by(peer) == p, "a result")
            good = good_frame(peer, kind, f"good {number}")
            images.publish(good)
            processed += 1
            peer.wait(lambda good=good: last_frame(peer) == good.header.frame_id, "the good frame")
            for received in peer.received.values():
                del received[:-1]  # bounds the memory of the test
        peer.wait(lambda: reasons_of(peer) == expected, f"diagnostics with {dict(expected)}")
        stats = peer.stats()[-1]
        dropped = {why: getattr(stats, f"dropped_{why}") for why in DROPPED}
        sent = 2 * (number + 1)
        print(f"\n{sent} {kind.__name__}: {stats.processed} processed, dropped {dropped}")
        print(f"refused by reason: {dict(reasons_of(peer))}")
        invalid = expected.total()
        assert dropped == {**dict.fromkeys(DROPPED, 0), "invalid": invalid, "failed": failed}
        assert stats.processed == processed
        assert stats.received == sent == processed + invalid + failed


def test_a_hostile_camera_info_is_counted_and_a_good_one_helps(peer, tmp_path):
    """Depth depends on it: whatever it says, the node survives, and the next good frame is used."""
    bundle = tiny_bundles.depth(tmp_path / "depth")
    settings = {"qos.input_reliability": "reliable", "qos.input_depth": 10}
    good = CameraInfo(width=48, height=36)
    good.k = [38.4, 0.0, 23.5, 0.0, 38.4, 17.5, 0.0, 0.0, 1.0]
    with running(bundle=bundle.path, runner="onnxruntime", **settings) as node:
        node.wait_for("engine: running")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.collect(DiagnosticArray, "/diagnostics")
        peer.collect(PointCloud2, "/penumbra/points")
        infos = peer.publisher("/penumbra/image/camera_info", CameraInfo)
        counted = counted_first(peer, infos)
        images = peer.publisher()
        for number, info in enumerate(hostile.camera_infos(2, COUNT // 2)):
            infos.publish(info)
            counted += refused(scaled_camera_info, info, 1, 1) != ""
            images.publish(good_frame(peer, Image, "whatever becomes of it"))
            infos.publish(good)

            def done(frame: str = f"good {number}") -> bool:
                # Again and again: the two topics have no common order.
                images.publish(good_frame(peer, Image, frame))
                return last_frame(peer) == frame

            peer.wait(done, "the good frame")
            for received in peer.received.values():
                del received[:-1]  # bounds the memory of the test
        peer.wait(lambda: reasons_of(peer)["camera_info"] == counted, f"{counted} counted")


@KINDS
def test_a_bad_image_neither_replaces_nor_delays_a_good_one(kind, peer, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv("STUB_GATE", str(gate))
    settings = {
        "bundle": tiny_bundles.segmentation(tmp_path / "street").path,
        "runner": "onnxruntime",
        "compressed": kind is CompressedImage,
        "qos.input_reliability": "reliable",
        "qos.input_depth": 10,
        "max_age": 0.0,
    }
    with running(str(STUB_NODE), **settings):
        peer.collect(FrameStats, "/penumbra/stats")
        peer.collect(DiagnosticArray, "/diagnostics")
        images = peer.publisher(topic_of(kind), kind)
        for frame_id in ("replaced", "the latest"):
            images.publish(good_frame(peer, kind, frame_id))
        for _ in range(5):
            images.publish(bad_frame(peer, kind))
        peer.wait(lambda: peer.stats() and peer.stats()[-1].received == 7, "all to arrive")
        stats = peer.stats()[-1]
        assert (stats.processed, stats.dropped_busy, stats.dropped_invalid) == (0, 1, 5)
        gate.write_bytes(b"")  # the engine starts
        peer.wait(lambda: processed_by(peer) == 1, "a result")
        assert last_frame(peer) == "the latest"

        assert peer.set(rate_limit=0.001) == [""]
        images.publish(bad_frame(peer, kind))
        images.publish(good_frame(peer, kind, "in turn"))
        peer.wait(lambda: processed_by(peer) == 2, "a result")
        stats = peer.stats()[-1]
        assert stats.header.frame_id == "in turn"
        assert (stats.dropped_rate, stats.dropped_invalid) == (0, 6)
        reason = "decode" if kind is CompressedImage else "step"
        peer.wait(lambda: reasons_of(peer) == {reason: 6}, "diagnostics")


def topic_of(kind: type) -> str:
    return "/penumbra/image/compressed" if kind is CompressedImage else "/penumbra/image"


def check(kind: type):
    compressed = kind is CompressedImage
    return conversions.check_compressed_image if compressed else conversions.check_image


def convert(kind: type):
    return conversions.compressed_image_of if kind is CompressedImage else conversions.image_of


def converted(kind: type, message):
    """The image as the network sees it."""
    image = convert(kind)(message, "bgr")
    check_plausible_size(image, (36, 48))
    return fit_to_size(image, (36, 48))


def refused(convert, *arguments) -> str:
    """The reason of rejection; empty if the message is valid."""
    try:
        convert(*arguments)
    except ConversionError as error:
        return error.reason
    return ""


def good_frame(peer: Peer, kind: type, frame_id: str) -> Image | CompressedImage:
    pixels = tiny_bundles.image()
    good = peer.image(pixels)
    if kind is CompressedImage:
        data = cv2.imencode(".png", pixels)[1].tobytes()
        good = CompressedImage(header=good.header, format="png", data=data)
    good.header.frame_id = frame_id
    return good


def bad_frame(peer: Peer, kind: type) -> Image | CompressedImage:
    bad = good_frame(peer, kind, "bad")
    if kind is CompressedImage:
        bad.data = bad.data[:-20]  # truncated
    else:
        bad.step -= 1
    return bad


def last_frame(peer: Peer) -> str:
    return peer.stats()[-1].header.frame_id if peer.stats() else ""


def processed_by(peer: Peer) -> int:
    return peer.stats()[-1].processed if peer.stats() else 0


def counted_first(peer: Peer, infos: Publisher) -> int:
    """Send an invalid CameraInfo until one is counted; from then on none is lost.

    A publisher discovers its subscriber slightly earlier than the reverse.
    """
    bad = next(
        info for info in hostile.camera_infos(2, COUNT) if refused(scaled_camera_info, info, 1, 1)
    )
    diagnostics = peer.received["/diagnostics"]
    while not reasons_of(peer)["camera_info"]:
        infos.publish(bad)
        later = len(diagnostics) + 2  # the next one may be in flight already
        peer.wait(lambda later=later: len(diagnostics) >= later, "diagnostics")
    return reasons_of(peer)["camera_info"]


def reasons_of(peer: Peer) -> Counter[str]:
    """The counts in the latest diagnostics."""
    statuses = [s for array in peer.received["/diagnostics"][-1:] for s in array.status]
    found = [s.values for s in statuses if s.name == "penumbra: conversion errors"]
    return Counter({entry.key: int(entry.value) for values in found for entry in values})
