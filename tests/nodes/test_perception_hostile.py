"""Hostile messages: the node never dies, counts each, and a good frame right after is processed.

PENUMBRA_HOSTILE=20000 sends so many instead of a few hundred.
"""

from __future__ import annotations

import os

import cv2
import hostile
import pytest
import tiny_bundles
from diagnostic_msgs.msg import DiagnosticArray
from perception import Peer, running
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2

from penumbra.conversions import REASONS
from penumbra_msgs.msg import FrameStats

COUNT = int(os.environ.get("PENUMBRA_HOSTILE", "300"))


@pytest.mark.parametrize("kind", [Image, CompressedImage], ids=lambda kind: kind.__name__)
def test_hostile_messages_are_counted_and_survived(kind, peer, tmp_path):
    """On a depth bundle, whose results depend on CameraInfo too."""
    compressed = kind is CompressedImage
    messages = (hostile.compressed if compressed else hostile.images)(1, COUNT // 2)
    settings = {
        "bundle": tiny_bundles.depth(tmp_path / "depth").path,
        "runner": "onnxruntime",
        "compressed": compressed,
        "qos.input_reliability": "reliable",  # each is to reach the node
        "qos.input_depth": 10,
        "max_age": 0.0,  # and to be looked at, whatever its stamp
    }
    with running(**settings) as node:
        node.wait_for("engine: running")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.collect(DiagnosticArray, "/diagnostics")
        peer.collect(Image, "/penumbra/prediction", "/penumbra/overlay")
        peer.collect(PointCloud2, "/penumbra/points")
        peer.collect(CameraInfo, "/penumbra/camera_info")
        images = peer.publisher(
            "/penumbra/image/compressed" if compressed else "/penumbra/image", kind
        )
        infos = peer.publisher("/penumbra/image/camera_info", CameraInfo)
        for number, (message, info) in enumerate(
            zip(messages, hostile.camera_infos(2, COUNT), strict=False)
        ):
            infos.publish(info)
            images.publish(message)
            peer.state()  # an answer takes long enough for the worker to take the image up
            good = good_frame(peer, compressed)
            good.header.frame_id = f"good {number}"
            images.publish(good)
            peer.wait(lambda good=good: last_frame(peer) == good.header.frame_id, "the good frame")
            for received in peer.received.values():
                del received[:-1]  # so that this may go on for ever
        peer.wait(lambda: peer.received["/diagnostics"], "diagnostics")
        seen = number + 1
        stats = peer.stats()[-1]
        kinds = ("busy", "old", "rate", "invalid", "failed")
        dropped = {kind: getattr(stats, f"dropped_{kind}") for kind in kinds}
        assert stats.received == 2 * seen == stats.processed + sum(dropped.values())
        assert stats.processed >= seen
        assert dropped["failed"] == dropped["old"] == dropped["rate"] == 0
        # What the worker had not taken up before the good frame came was not looked at; how many
        # that are is up to the machine's scheduler.
        assert dropped["invalid"] > seen // 10
        peer.received["/diagnostics"].clear()
        peer.wait(lambda: peer.received["/diagnostics"], "diagnostics of all")
        reasons = reasons_of(peer.received["/diagnostics"][-1])
        assert set(reasons) <= set(REASONS)
        reasons.pop("camera_info", None)  # of CameraInfo, which is no image
        assert sum(reasons.values()) == dropped["invalid"]
        print(dropped, reasons)


def good_frame(peer: Peer, compressed: bool) -> Image | CompressedImage:
    picture = tiny_bundles.image()
    if not compressed:
        return peer.image(picture)
    return CompressedImage(format="png", data=cv2.imencode(".png", picture)[1].tobytes())


def last_frame(peer: Peer) -> str:
    return peer.stats()[-1].header.frame_id if peer.stats() else ""


def reasons_of(array: DiagnosticArray) -> dict[str, int]:
    (status,) = (s for s in array.status if s.name == "penumbra: conversion errors")
    return {entry.key: int(entry.value) for entry in status.values}
