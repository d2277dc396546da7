"""What the node adds to the bare model: everything between the image's arrival and the last output.

The node runs in a process of its own, images go to it over DDS one after the other, and somebody
subscribes to all of its raw outputs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from tqdm import tqdm

from penumbra.bundle import Bundle
from penumbra.conversions import fill_image
from penumbra.errors import PenumbraError
from penumbra.nodes.domain import private_domain
from penumbra.nodes.large_images import make_room_for_images
from penumbra.nodes.outputs import OUTPUTS
from penumbra.pipeline import Config, Pipeline
from penumbra.runners import Settings
from penumbra_msgs.msg import FrameStats, OodAlert

PATIENCE = 120.0  # seconds for anything, such as building an engine
WARM_UP = 10  # frames that are not counted
RAW = ("prediction", "uncertainty", "confidence", "disparity", "disparity/std")


@dataclass(frozen=True)
class Overhead:
    """Milliseconds; overhead is what is left of the node's time without inference."""

    bundle: str
    width: int
    height: int
    frames: int
    runner: str
    bare_p50: float  # the pipeline alone, in this process
    infer_p50: float  # the same inside the node
    overhead_p50: float
    overhead_p99: float
    round_trip_p50: float  # from publishing the image to receiving the last of its outputs
    wait_p50: float
    convert_p50: float
    postprocess_p50: float
    publish_p50: float

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


def measure(
    bundle: Bundle, frames: int, width: int, height: int, runner: str = "auto", threads: int = 0
) -> Overhead:
    """Send `frames` pictures of noise, each after the results of the one before."""
    if frames < 10:
        raise PenumbraError(f"--repetitions is {frames}: at least 10 images have to be sent")
    noise = np.random.default_rng(0)
    pictures = [noise.integers(0, 256, (height, width, 3), dtype=np.uint8) for _ in range(4)]
    bare = _bare(bundle, pictures, frames, Config(runner, settings=Settings(threads=threads)))
    make_room_for_images()
    with private_domain():
        # Reliable: one after the other, a lost image would be waited for in vain.
        reliable = {"qos.input_reliability": "reliable", "max_age": 0.0}
        parameters = {"bundle": bundle.path, "runner": runner, "threads": threads, **reliable}
        given = [text for n, v in parameters.items() for text in ("-p", f"{n}:={v}")]
        command = [sys.executable, "-m", "penumbra.nodes.perception_node", "--ros-args", *given]
        node = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.DEVNULL)
        try:
            stats, trips = _exchange(bundle, pictures, frames, node)
        finally:
            node.send_signal(signal.SIGINT)
            code = node.wait(PATIENCE)
    if code:
        raise PenumbraError(f"the node ended with exit code {code}: see its output above")
    overhead = [s.total_ms - s.infer_ms for s in stats]
    return Overhead(
        bundle=bundle.name,
        width=width,
        height=height,
        frames=frames,
        runner=stats[-1].runner,
        bare_p50=_percentile(bare, 50),
        infer_p50=_percentile([s.infer_ms for s in stats], 50),
        overhead_p50=_percentile(overhead, 50),
        overhead_p99=_percentile(overhead, 99),
        round_trip_p50=_percentile(trips, 50),
        **{
            f"{part}_p50": _percentile([getattr(s, f"{part}_ms") for s in stats], 50)
            for part in ("wait", "convert", "postprocess", "publish")
        },
    )


def _bare(bundle: Bundle, pictures: list[np.ndarray], frames: int, config: Config) -> list[float]:
    times = []
    with Pipeline(bundle, config) as pipeline:
        for number in range(WARM_UP + frames):
            start = time.perf_counter()
            pipeline.process(pictures[number % len(pictures)])
            times.append((time.perf_counter() - start) * 1e3)
    return times[WARM_UP:]


def _exchange(
    bundle: Bundle, pictures: list[np.ndarray], frames: int, process: subprocess.Popen
) -> tuple[list[FrameStats], list[float]]:
    """What the node says of each frame, and the milliseconds that each was on its way."""
    context = rclpy.Context()
    rclpy.init(context=context)
    peer = rclpy.create_node("benchmark", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(peer)
    last: dict[str, int] = {}  # frame number of the last message of each topic
    stats: list[FrameStats] = []

    def keep(topic: str) -> Callable[[Any], None]:
        def callback(message: Any) -> None:
            if message.header.frame_id:
                last[topic] = int(message.header.frame_id)
                if isinstance(message, FrameStats):
                    stats.append(message)

        return callback

    reliable = QoSProfile(depth=10)
    topics = [o.topic for o in OUTPUTS if o.topic in RAW and bundle.task in o.tasks]
    for topic in topics:
        peer.create_subscription(Image, f"/penumbra/{topic}", keep(topic), reliable)
    peer.create_subscription(FrameStats, "/penumbra/stats", keep("stats"), reliable)
    peer.create_subscription(OodAlert, "/penumbra/ood", keep("ood"), reliable)
    everything = {*topics, "stats", "ood"}
    images = peer.create_publisher(Image, "/penumbra/image", QoSProfile(depth=1))

    def send(number: int) -> float:
        """Publish, and wait for all that belongs to it; False after a while without."""
        message = Image()
        message.header.frame_id = str(number)
        message.header.stamp = peer.get_clock().now().to_msg()
        fill_image(message, pictures[number % len(pictures)], "bgr8")
        start = time.perf_counter()
        images.publish(message)
        patient = start + (2.0 if number == 0 else PATIENCE)
        while any(last.get(topic, -1) < number for topic in everything):
            executor.spin_once(timeout_sec=0.1)
            if process.poll() is not None:
                raise PenumbraError("the node ended before its time: see its output above")
            if time.perf_counter() > patient:
                return 0.0
        return (time.perf_counter() - start) * 1e3

    try:
        deadline = time.monotonic() + PATIENCE
        while not send(0):  # until both sides have found each other and the engine runs
            if time.monotonic() > deadline:
                raise PenumbraError(f"no result of the node for {PATIENCE:.0f} s: see its output")
        trips = []
        for number in tqdm(range(1, WARM_UP + frames + 1), unit="frame", disable=None, leave=False):
            trips.append(send(number))
            if not trips[-1]:
                raise PenumbraError(f"frame {number} was lost: is the machine overloaded?")
        return stats[-frames:], trips[-frames:]
    finally:
        executor.shutdown()
        peer.destroy_node()
        rclpy.shutdown(context=context)


def _percentile(values: list[float], percent: int) -> float:
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 3)
