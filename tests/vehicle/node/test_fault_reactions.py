"""The guard beside the real node: from each kind of fault to safe = false, and back.

PENUMBRA_FAULTS sets the number of faults of each kind (default 1, of four kinds), e.g. 30; -s shows
the reaction times. They are asserted only there: a loaded machine may be late.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import tiny_bundles
from fail_safe import THRESHOLDS, Drive, ordinary, with_first_pixel
from guarded import GuardProbe
from perception import STUB_NODE, NodeProcess, Peer
from sensor_msgs.msg import CameraInfo, Image
from stub_node import fault_pixel

COUNT = int(os.environ.get("PENUMBRA_FAULTS", "0"))
CHANCE = random.Random(0)
Send = Callable[[], Image | None]


@dataclass
class Rig:
    """A node with a camera, watched by a guard."""

    bundle: object
    peer: Peer
    drive: Drive
    guard: GuardProbe
    settings: dict[str, object] = field(default_factory=dict)
    node: NodeProcess | None = None

    def start(self) -> None:
        """Start the node, or start it again."""
        stub = [str(STUB_NODE)] if self.bundle.task == "segmentation" else []
        self.node = NodeProcess(
            *stub, bundle=self.bundle.path, runner="onnxruntime", **self.settings
        )

    def end(self) -> None:
        """Kill the node, if it runs."""
        if self.node is not None:
            self.node.process.kill()
            self.node.process.wait()


@contextmanager
def images(send: Send) -> Iterator[Send]:
    """A fault that consists of other images."""
    yield send


def stamped(drive: Drive, seconds: float) -> Send:
    """Images whose stamps are wrong by so much."""

    def send() -> Image:
        image = drive.message()
        image.header.stamp.sec += round(seconds)
        return image

    return send


def gaps(drive: Drive) -> Send:
    """Two frames over the threshold, then a pause of 1.05 s."""
    state = {"resume": 0.0, "frame": 0}

    def send() -> Image | None:
        now = time.monotonic()
        if now < state["resume"]:
            return None
        state["frame"] += 1
        if not state["frame"] % 2:
            state["resume"] = now + 1.05
        pixels = ordinary(state["frame"])
        pixels[..., 1] = 255
        return drive.message(pixels)

    return send


@contextmanager
def request(rig: Rig, bad: str, good: tuple[str, ...]) -> Iterator[Send]:
    assert rig.peer.change(bad)
    yield rig.drive.message
    for transition in good:
        assert rig.peer.change(transition)


@contextmanager
def sent(rig: Rig, number: int) -> Iterator[Send]:
    """A signal to the node."""
    rig.node.process.send_signal(number)
    # Sending to a stopped process may block the sender for a second, which is this observer, too.
    yield lambda: None
    if number == signal.SIGSTOP:
        rig.node.process.send_signal(signal.SIGCONT)
    else:
        rig.end()
        rig.start()


@contextmanager
def finalized(rig: Rig) -> Iterator[Send]:
    assert rig.peer.change("shutdown")
    yield rig.drive.message
    rig.end()
    rig.start()


@contextmanager
def subscribed(rig: Rig) -> Iterator[Send]:
    """An output that cannot be made, and is made only while subscribed."""
    subscription = rig.peer.node.create_subscription(
        Image, "/penumbra/uncertainty", lambda image: None, 10
    )
    publishers = rig.peer.node.get_publishers_info_by_topic
    while not publishers("/penumbra/uncertainty"):
        rig.peer.spin(0.01)
    yield rig.drive.message
    rig.peer.node.destroy_subscription(subscription)


def misread(drive: Drive, fault: str) -> Send:
    """Images that the runner treats wrongly."""
    numbers = iter(range(10**6))
    return lambda: drive.message(with_first_pixel(fault_pixel(fault), next(numbers)))


def once(drive: Drive, fault: str) -> Send:
    """One such image, then ordinary ones."""
    left = [with_first_pixel(fault_pixel(fault))]
    return lambda: drive.message(left.pop() if left else None)


KINDS: dict[str, Callable[[Rig], object]] = {
    "A.1 finalized": finalized,
    "A.2 CameraInfo of another size": lambda rig: images(calibrated(rig, 1280, 720)),
    "A.3 stamps 5 s in the future": lambda rig: images(stamped(rig.drive, 5)),
    "A.3 stamps 5 s back": lambda rig: images(stamped(rig.drive, -5)),
    "A.4 inference of 1.5 s, max_age 1 s": lambda rig: images(misread(rig.drive, "slow")),
    "A.5 uncertainty NaN": lambda rig: images(misread(rig.drive, "uncertainty nan")),
    "A.5 outputs of the last image": lambda rig: images(
        misread(rig.drive, "outputs of the last image")
    ),
    "A.6 an output cannot be made": subscribed,
    "A.7 SIGKILL": lambda rig: sent(rig, signal.SIGKILL),
    "A.7 SIGSTOP": lambda rig: sent(rig, signal.SIGSTOP),
    "A.8 a runner that hangs": lambda rig: images(once(rig.drive, "hangs")),
    "A.9 a peer deactivates the node": lambda rig: request(rig, "deactivate", ("activate",)),
    "A.10 gaps between frames over the threshold": lambda rig: images(gaps(rig.drive)),
    "A.11 unplugged": lambda rig: images(lambda: None),
    "A.11 frozen": lambda rig: images(lambda: rig.drive.message(ordinary(10**6))),
    "A.11 1x1 pixels": lambda rig: images(lambda: rig.drive.message(np.zeros((1, 1, 3), np.uint8))),
}
IN_SUITE = ("A.5 uncertainty NaN", "A.6 an output cannot be made", "A.7 SIGKILL", "A.11 frozen")


def calibrated(rig: Rig, width: int, height: int) -> Send:
    """Images with a CameraInfo of this size before each."""
    info = CameraInfo(width=width, height=height)
    focal = 0.8 * width
    info.k = [focal, 0.0, width / 2, 0.0, focal, height / 2, 0.0, 0.0, 1.0]

    def send() -> Image:
        rig.peer.publisher("/penumbra/image/camera_info", CameraInfo).publish(info)
        return rig.drive.message()

    return send


@pytest.mark.parametrize("kind", KINDS if COUNT else IN_SUITE)
def test_every_fault_ends_in_not_safe_and_only_new_oks_lead_out(kind, peer, tmp_path, monkeypatch):
    depth = kind.startswith("A.2")
    make = tiny_bundles.depth if depth else tiny_bundles.segmentation
    thresholds = {**THRESHOLDS, "frame": 1e6, "pixel": 1e6} if depth else THRESHOLDS
    bundle = make(tmp_path / "bundle", thresholds=thresholds)
    if kind.startswith("A.6"):
        monkeypatch.setenv("STUB_BREAK_OUTPUT", "1")
    settings = {"frozen_after": 1.0, "restart_pause": 0.05, "watchdog.inference": 2.0}
    reactions = []
    with GuardProbe(topics="/penumbra/ood") as guard:
        rig = Rig(bundle, peer, Drive(peer), guard, settings)
        rig.start()
        good = calibrated(rig, 48, 36) if depth else rig.drive.message
        try:
            for _ in range(COUNT or 1):
                rig.drive.run(lambda: guard.safe, "safe", good)
                moment = time.monotonic() + CHANCE.uniform(0, 0.3)
                rig.drive.run(lambda m=moment: time.monotonic() > m, "a random moment", good)
                begin = time.monotonic()
                with KINDS[kind](rig) as send:
                    rig.drive.run(lambda: guard.safe is False, "not safe", send)
                    reactions.append(guard.reaction(begin, 1.0))
                    later = time.monotonic() + 0.3
                    rig.drive.run(lambda t=later: time.monotonic() > t, "0.3 s", send)
                    assert guard.safe is False
        finally:
            rig.end()
        median, largest = statistics.median(reactions), max(reactions)
        print(f"\n| {kind} | {len(reactions)} | {median:.2f} | {largest:.2f} | {guard.limit:.2f} |")
        assert not COUNT or largest <= guard.limit
