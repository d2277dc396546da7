"""Send images to the echo node in a process of its own, and see that each comes back unchanged."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image
from tqdm import tqdm

from penumbra.errors import PenumbraError
from penumbra.nodes.domain import private_domain
from penumbra.nodes.echo_node import NEWEST_IMAGE

WIDTH, HEIGHT = 480, 360
PATIENCE = 30.0  # seconds to wait for anything before calling it lost


@dataclass(frozen=True)
class RoundTrip:
    """What was measured."""

    frames: int
    width: int
    height: int
    domain: int
    median_ms: float
    slowest_ms: float

    def as_dict(self) -> dict[str, float]:
        """For machines."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"A ROS 2 node in another process received {self.frames} images of"
            f" {self.width}x{self.height} and sent each back unchanged (ROS domain {self.domain},"
            f" this machine only).\nRound trip: median {self.median_ms:.1f} ms,"
            f" slowest {self.slowest_ms:.1f} ms."
        )


def measure(frames: int) -> RoundTrip:
    """Start the node, send it `frames` images one after the other, stop it."""
    if frames < 1:
        raise PenumbraError(f"--frames is {frames}: at least one image has to be sent")
    with private_domain() as domain:
        command = [sys.executable, "-m", "penumbra.nodes.echo_node"]
        echo = subprocess.Popen([*command, "--ros-args", "--log-level", "warn"])
        rclpy.init()
        node = rclpy.create_node("round_trip")
        try:
            times = exchange(node, echo, frames)
        finally:
            node.destroy_node()
            rclpy.try_shutdown()
            echo.send_signal(signal.SIGINT)
            code = echo.wait(PATIENCE)
    if code:
        raise PenumbraError(f"the echo node ended with exit code {code}: see its output above")
    return RoundTrip(
        frames, WIDTH, HEIGHT, domain, statistics.median(times) * 1e3, max(times) * 1e3
    )


def exchange(node: Node, echo: subprocess.Popen, frames: int) -> list[float]:
    """Seconds that each image was on its way."""
    received: list[Image] = []
    images = node.create_publisher(Image, "/echo/image", NEWEST_IMAGE)
    node.create_subscription(Image, "/echo/echo", received.append, NEWEST_IMAGE)

    def wait(for_what: str, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            if echo.poll() is not None:
                raise PenumbraError(f"the echo node ended while waiting for {for_what}")
            if time.monotonic() > deadline:
                raise PenumbraError(
                    f"no sign of {for_what} for {PATIENCE:.0f} s: does a firewall block UDP"
                    " on this machine's loopback device?"
                )
            rclpy.spin_once(node, timeout_sec=0.1)

    def answers() -> bool:
        # Each side finds the other by itself: only an answer shows that both have.
        images.publish(Image())
        return bool(received)

    def is_back(image: Image) -> bool:
        return any(echoed.header.stamp == image.header.stamp for echoed in received)

    wait("the echo node", answers)
    random = np.random.default_rng(0)
    times = []
    for _ in tqdm(range(frames), desc="images", unit="image", disable=None, leave=False):
        pixels = random.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        image = Image(width=WIDTH, height=HEIGHT, encoding="rgb8", step=3 * WIDTH)
        image.header.stamp = node.get_clock().now().to_msg()
        image.data = pixels.tobytes()
        received.clear()
        started = time.perf_counter()
        images.publish(image)
        wait("an image that was sent", partial(is_back, image))
        times.append(time.perf_counter() - started)
        if received[-1] != image:
            raise PenumbraError(
                "an image came back changed: this must not happen, please report it"
            )
    return times
