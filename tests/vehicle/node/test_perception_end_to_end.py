"""Publisher process, node process, collector: every output equals that of Pipeline bit for bit."""

from __future__ import annotations

import subprocess
import sys

import cv2
import numpy as np
import pytest
import tiny_bundles
from perception import Peer, running, with_tests_on_the_path
from sensor_msgs.msg import Image

from penumbra.vehicle import colours
from penumbra.vehicle.monitor import Conditions, Monitor
from penumbra.vehicle.node.alerts import colour_top, monitor_settings, uncertainty_top
from penumbra.vehicle.node.parameters import defaults
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings
from penumbra_msgs.msg import FrameStats, OodAlert

FRAMES = 25
THRESHOLDS = {"pixel": 0.32, "frame": 0.4, "false_alarm_rate": 0.001, "frames": 100}
# Sends images of known noise at the rate of a camera; the seed is in the frame_id.
CAMERA = f"""
import sys
import rclpy, tiny_bundles
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

rclpy.init()
node = rclpy.create_node("camera")
publisher = node.create_publisher(Image, "/penumbra/image", QoSProfile(depth=1))
while not publisher.get_subscription_count():
    rclpy.spin_once(node, timeout_sec=0.05)
seeds = iter(range(1, {FRAMES} + 1))

def send():
    pixels = tiny_bundles.image(seed=(seed := next(seeds)))
    message = Image(height=36, width=48, step=144, encoding="bgr8", data=pixels.tobytes())
    message.header.frame_id = str(seed)
    message.header.stamp = node.get_clock().now().to_msg()
    publisher.publish(message)

node.create_timer(1 / 30, send)
for _ in range({FRAMES}):
    rclpy.spin_once(node)
print("sent", flush=True)
sys.stdin.read()
"""


def array(message: Image) -> np.ndarray:
    """The pixels of a message, read independently of Penumbra."""
    dtype, channels = {"mono8": ("u1", 1), "32FC1": ("<f4", 1), "rgb8": ("u1", 3)}[message.encoding]
    shape = (message.height, message.width, channels)[: 3 if channels > 1 else 2]
    assert message.step == message.width * channels * np.dtype(dtype).itemsize
    return np.frombuffer(message.data, dtype).reshape(shape)


def to_bytes(confidence: np.ndarray) -> np.ndarray:
    return np.rint(np.float32(255) * confidence).astype(np.uint8)


def processed(pipeline: Pipeline, pixels: np.ndarray):
    """The result, and the verdict of a new monitor on this frame."""
    bundle = pipeline.bundle
    monitor = Monitor(monitor_settings(defaults(bundle.task), bundle))
    result = pipeline.process(pixels, monitor=monitor, surroundings=Conditions.assumed)
    return result, result.verdict


def expected_images(bundle, pixels: np.ndarray, result, verdict) -> dict[str, np.ndarray]:
    """The expected content of each image topic."""
    rgb = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    top = colour_top(bundle, defaults(bundle.task))
    images = {
        "prediction": result.prediction,
        "uncertainty": result.uncertainty,
        "confidence": to_bytes(result.confidence),
        "uncertainty/color": colours.colour_uncertainty(
            result.uncertainty, uncertainty_top(bundle, top)
        ),
        "overlay": colours.overlay(rgb, result.judged, top, verdict.regions),
    }
    if bundle.depth is None:
        labels = colours.colour_labels(result.prediction, bundle.classes)
        return {**images, "prediction/color": labels}
    return {
        **images,
        "disparity": result.disparity,
        "disparity/std": result.disparity_std,
        "prediction/color": colours.colour_depth(result.prediction, bundle.depth.max_depth_m),
    }


@pytest.mark.parametrize(
    ("task", "more"),
    [
        ("segmentation", {}),
        ("segmentation", {"map": "entropy", "score_fraction": 0.05, "uncertainty_top": 0.3}),
        ("depth", {}),
    ],
    ids=["segmentation", "by entropy", "depth"],
)
def test_every_output_of_every_processed_frame(task, more, peer, tmp_path):
    bundle = getattr(tiny_bundles, task)(tmp_path / "tiny", thresholds={**THRESHOLDS, **more})
    pipeline = Pipeline(bundle, PipelineConfig("onnxruntime", settings=RunnerSettings(threads=1)))
    with running(bundle=bundle.path, runner="onnxruntime"), pipeline:
        pixels = tiny_bundles.image()
        names = expected_images(bundle, pixels, *processed(pipeline, pixels))
        topics = [f"/penumbra/{name}" for name in names]
        peer.collect(Image, *topics)
        peer.collect(OodAlert, "/penumbra/ood")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.matched()
        # Discovery is complete when every topic has delivered a message.
        peer.until_all(lambda: peer.publisher().publish(peer.image(pixels)))
        camera = subprocess.Popen(
            [sys.executable, "-c", CAMERA],
            env=with_tests_on_the_path(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert camera.stdout.readline() == "sent\n"
        peer.wait(lambda: seeds(peer, "/penumbra/stats")[-1:] == [FRAMES], "the last frame")
        peer.wait(
            lambda: all(seeds(peer, topic)[-1:] == [FRAMES] for topic in peer.received),
            "all of the last frame",
        )
        camera.communicate()
        done = seeds(peer, "/penumbra/stats")
        assert len(done) > FRAMES // 2  # a busy machine may drop some
        for topic in peer.received:
            assert seeds(peer, topic) == done, topic
        stamps = {}
        for topic in topics:
            name = topic.removeprefix("/penumbra/")
            for message in peer.received[topic]:
                if not (seed := seed_of(message)):
                    continue
                stamp = (message.header.stamp.sec, message.header.stamp.nanosec)
                assert stamps.setdefault(seed, stamp) == stamp
                pixels = tiny_bundles.image(seed=seed)
                wanted = expected_images(bundle, pixels, *processed(pipeline, pixels))[name]
                found = array(message)
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted, err_msg=topic)
        for message in peer.received["/penumbra/ood"]:
            if seed := seed_of(message):
                result, verdict = processed(pipeline, tiny_bundles.image(seed=seed))
                assert message.frame_score == np.float32(verdict.score)
                assert message.uncertain_fraction == np.float32(verdict.uncertain_fraction)
                assert message.pixel_threshold == np.float32(THRESHOLDS["pixel"])
                assert (message.image_height, message.image_width) == result.uncertainty.shape
                boxes = [(r.x, r.y, r.width, r.height, r.area) for r in message.regions]
                assert boxes == [(r.x, r.y, r.width, r.height, r.area) for r in verdict.regions]
                assert message.model == f"tiny@{bundle.sha256[:8]}"
        last = peer.stats()[-1]
        kinds = ("busy", "old", "rate", "invalid", "failed")
        assert last.received == last.processed + sum(getattr(last, f"dropped_{k}") for k in kinds)
        assert last.total_ms >= last.infer_ms > 0
        assert last.runner.startswith("onnxruntime") and last.engine_progress == 1


def seed_of(message) -> int:
    frame = message.header.frame_id
    return int(frame) if frame.isdigit() else 0


def seeds(peer: Peer, topic: str) -> list[int]:
    """The frames of a topic in their order, each once: heartbeats repeat an alert."""
    return list(dict.fromkeys(seed for seed in map(seed_of, peer.received[topic]) if seed))
