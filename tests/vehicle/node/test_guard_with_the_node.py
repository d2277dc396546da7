"""The guard beside the real perception node: what stops the node stops the vehicle, in time."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import tiny_bundles
from guarded import GuardProbe, assert_stops
from perception import NodeProcess, Peer

pytestmark = pytest.mark.slow
# Noise scores about 0.3; every frame is under this.
THRESHOLDS = {"pixel": 0.9, "frame": 0.9, "false_alarm_rate": 0.001, "frames": 100}
FRAME_PERIOD = 0.05


@contextlib.contextmanager
def camera(peer: Peer) -> Iterator[None]:
    """New images at the rate of a camera, while the block runs."""
    publisher, unplugged = peer.publisher(), threading.Event()

    def send() -> None:
        seed = 0
        while not unplugged.wait(FRAME_PERIOD):
            publisher.publish(peer.image(tiny_bundles.image(seed=(seed := seed + 1))))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        unplugged.set()
        thread.join()


@pytest.fixture
def node(peer, tmp_path) -> Iterator[NodeProcess]:
    bundle = tiny_bundles.segmentation(tmp_path / "tiny", thresholds=THRESHOLDS)
    node = NodeProcess(bundle=bundle.path, runner="onnxruntime")
    yield node
    node.process.kill()
    node.process.wait()


@pytest.fixture
def guard(ros_domain) -> Iterator[GuardProbe]:
    with GuardProbe() as probe:
        yield probe


def test_faults_of_the_real_node_are_not_safe_in_time(node, guard, peer):
    with camera(peer):
        guard.wait(safe=True)
        fault = time.monotonic()
    assert_stops(guard, fault)  # no camera any more: the node says STALE

    with camera(peer):
        guard.wait(safe=True)
        fault = time.monotonic()
        assert peer.change("deactivate")
        assert_stops(guard, fault)
        assert peer.change("activate")

        guard.wait(safe=True)
        fault = time.monotonic()
        node.process.send_signal(signal.SIGSTOP)
        assert_stops(guard, fault)
        node.process.send_signal(signal.SIGCONT)

        guard.wait(safe=True)
        fault = time.monotonic()
        node.process.kill()
        assert_stops(guard, fault)
