"""Situations in which the level must not be OK: engine, outputs, peers (docs/fail-safe.md)."""

from __future__ import annotations

import os
import signal
import time

import fail_safe
import numpy as np
import pytest
import tiny_bundles
from fail_safe import ERROR, THRESHOLDS, WARN, Drive, with_first_pixel
from perception import STUB_NODE, NodeProcess, running
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import LivelinessPolicy, QoSProfile
from sensor_msgs.msg import Image
from stub_node import FAULTS, fault_pixel

from penumbra_msgs.msg import OodAlert

WORDS = {
    "uncertainty nan": "non-finite",
    "uncertainty zero": "0 in every pixel",
    "uncertainty negative": "a standard deviation is not",
    "uncertainty infinite": "non-finite",
    "confidence nan": "output confidence has",
    "labels out of range": "there are 4 classes",
    "labels of another type": "output labels is float32",
    "map of another size": "output uncertainty is float32 (35, 48)",
    "output missing": "no output confidence",
    "outputs of the last image": "those of an earlier image",
}


@pytest.fixture(scope="module", autouse=True)
def reactions():
    """Print the measured reactions at the end; shown with -s."""
    fail_safe.REACTIONS.clear()
    yield
    print(f"\n{fail_safe.table()}")


@pytest.fixture
def street(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street", thresholds=THRESHOLDS)
    return {"bundle": bundle.path, "runner": "onnxruntime"}


def test_5_every_fault_of_the_stub_has_a_row():
    assert set(WORDS) == set(FAULTS) - {"hangs", "slow"}


@pytest.mark.parametrize("fault", WORDS)
def test_5_outputs_that_contradict_the_manifest(peer, street, fault):
    """Nothing of such a frame is published."""
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        topics = [f"/penumbra/{name}" for name in ("prediction", "uncertainty", "confidence")]
        peer.collect(Image, *topics)
        drive.run(lambda: drive.level == "OK" and all(peer.received.values()), "OK")
        sent: set[str] = set()

        def send() -> Image:
            image = drive.message(with_first_pixel(fault_pixel(fault), len(sent)))
            sent.add(image.header.frame_id)
            return image

        drive.leaves_ok("A.5", fault, WORDS[fault], send)
        for topic in topics:
            published = {message.header.frame_id for message in peer.received[topic]}
            # The outputs of an image that came first are new to the runner.
            assert len(published & sent) <= (fault == "outputs of the last image"), topic
        drive.reach_ok()  # the engine is not given up for it


def test_5_a_runner_that_stays_broken_is_restarted(peer, street, monkeypatch):
    monkeypatch.setenv("STUB_PERSISTENT", "1")
    with running(str(STUB_NODE), restart_pause=0.3, **street) as node:
        drive = Drive(peer)
        drive.reach_ok()
        broken = [with_first_pixel(fault_pixel("uncertainty nan"))]
        drive.leaves_ok(
            "A.5",
            "a runner that stays broken",
            "non-finite",
            lambda: drive.message(broken.pop()) if broken else None,
        )
        node.wait_for("restart 1 of 3")
        drive.reach_ok()


def test_6_outputs_that_cannot_be_made(peer, street, monkeypatch):
    """The alert does not vouch for an output that fails."""
    monkeypatch.setenv("STUB_BREAK_OUTPUT", "1")
    node = NodeProcess(str(STUB_NODE), **street)
    try:
        drive = Drive(peer)
        drive.reach_ok()
        peer.collect(Image, "/penumbra/uncertainty")  # made only while subscribed
        drive.leaves_ok("A.6", "an output cannot be made", "a defect: ValueError", drive.message)
        assert node.end() == 0
    finally:
        node.process.kill()


class Subscriber:
    """Requests the deadline and the liveliness that the node offers."""

    def __init__(self, drive: Drive, heartbeat: float = 0.25) -> None:
        self.silent: list[str] = []
        silence = Duration(seconds=2 * heartbeat)
        callbacks = SubscriptionEventCallbacks(
            deadline=lambda event: self.silent.append("deadline"),
            liveliness=lambda event: (
                self.silent.append("liveliness") if event.alive_count == 0 else None
            ),
        )
        profile = QoSProfile(
            depth=1,
            deadline=silence,
            liveliness=LivelinessPolicy.MANUAL_BY_TOPIC,
            liveliness_lease_duration=silence,
        )
        drive.peer.node.create_subscription(
            OodAlert, "/penumbra/ood", lambda alert: None, profile, event_callbacks=callbacks
        )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda n: n.name)
def test_7_a_node_that_is_killed_or_stopped(peer, street, number):
    node = NodeProcess(str(STUB_NODE), **street)
    try:
        drive = Drive(peer)
        subscriber = Subscriber(drive)
        drive.reach_ok()
        deadline = time.monotonic() + 1.0
        subscriber.silent.clear()
        drive.run(lambda: time.monotonic() > deadline, "a second")  # alerts come in time
        node.process.send_signal(number)
        start = time.monotonic()
        events = {"deadline", "liveliness"}
        drive.run(lambda: events <= set(subscriber.silent), "both events", lambda: None)
        name = f"node ended by {number.name}"
        fail_safe.REACTIONS.append(
            fail_safe.Reaction("A.7", name, "deadline, liveliness", time.monotonic() - start)
        )
    finally:
        node.process.kill()
        node.process.wait()


def test_7_a_node_that_is_ended_says_so(peer, street):
    node = NodeProcess(str(STUB_NODE), **street)
    drive = Drive(peer)
    drive.reach_ok()
    node.process.send_signal(signal.SIGINT)
    drive.run(lambda: drive.level == "STALE", "STALE", lambda: None)
    assert "the node was shut down" in drive.alerts[-1][1].reason
    assert node.process.wait(60) == 0


def test_8_a_model_that_loads_for_ever(peer, street, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv("STUB_GATE", str(gate))
    limits = {"watchdog.load": 0.5, "restart_pause": 0.05}
    with running(str(STUB_NODE), **street, **limits) as node:
        drive = Drive(peer)
        words = "does not load within 0.5 s"
        drive.leaves_ok("A.8", "a model that loads for ever", words, lambda: None)
        node.wait_for("gave up after 3 restarts")
        drive.diagnosed("engine", ERROR, "gave up")


def test_8_a_runner_that_hangs(peer, street):
    with running(str(STUB_NODE), **street, **{"watchdog.inference": 0.5}) as node:
        drive = Drive(peer)
        drive.reach_ok()
        hanging = with_first_pixel(fault_pixel("hangs"))
        once = [hanging]
        drive.leaves_ok(
            "A.8",
            "a runner that hangs",
            "no result within 0.5 s",
            lambda: drive.message(once.pop()) if once else None,
        )
        node.wait_for("restart 1 of 3")
        drive.reach_ok()  # with a new engine; the old one is abandoned


def test_8_an_endless_loop_in_a_graph(peer, tmp_path):
    """On ONNX Runtime itself: 2**62 rounds."""
    bundle = tiny_bundles.endless(tmp_path / "endless", thresholds=THRESHOLDS)
    limits = {"watchdog.load": 1.0, "restart_pause": 0.05}
    with running(bundle=bundle.path, runner="onnxruntime", **limits) as node:
        drive = Drive(peer)
        words = "does not load within 1 s"
        drive.leaves_ok("A.8", "an endless loop in the graph", words, lambda: None)
        node.wait_for("gave up after 3 restarts")


LOOSER = {
    "ood.frame_threshold": 1e6,
    "ood.pixel_threshold": 1e6,
    "ood.stale_after": 3600.0,
    "diagnostics.min_input_rate": 0.0,
    "max_age": 0.0,
    "max_lead": 60.0,
    "frozen_after": 0.0,
    "watchdog.inference": 600.0,
    "ood.raise_frames": 5,
    "ood.clear_frames": 1,
    "use_sim_time": True,
}


def test_9_a_peer_cannot_loosen_safety_parameters(peer, street):
    """In any state: active, inactive, unconfigured."""
    settings = {
        "safety.lock": True,
        "frozen_after": 1.0,
        "diagnostics.min_input_rate": 1.0,
        "max_lead": 0.4,
    }
    with running(str(STUB_NODE), **street, **settings) as node:
        drive = Drive(peer)
        drive.reach_ok()

        def attack() -> None:
            for name, value in LOOSER.items():
                (reason,) = peer.set(**{name.replace(".", "__"): value})
                assert "safety.lock is on" in reason, (name, reason)

        attack()
        assert peer.set(ood__frame_threshold=0.5) == [""]  # tighter, and back
        assert peer.set(ood__frame_threshold=0.0) == [""]
        assert peer.change("deactivate")
        attack()
        drive.diagnosed("lifecycle", WARN, "requested from outside: deactivate")
        assert peer.change("cleanup")
        attack()
        assert peer.change("configure") and peer.change("activate")
        # What the start itself set is told.
        drive.diagnosed("parameters", fail_safe.OK, "1 safety parameters differ")
        node.wait_for("parameter refused: ood.frame_threshold cannot be loosened")
        node.wait_for("transition requested from outside: cleanup")
        high = with_first_pixel((0, 0, 0))
        high[..., 1] = 255
        drive.reach_ok()
        drive.leaves_ok(
            "A.9", "a peer loosens parameters", "over 0.9", lambda: drive.message(high), "ALERT"
        )


def test_12_only_ok_is_diagnosed_as_ok(peer, street):
    """STARTING, ALERT and STALE have one status each."""
    with running(str(STUB_NODE), **street):
        drive = Drive(peer)
        drive.reach_ok()
        drive.diagnosed("OOD", fail_safe.OK, "OK", drive.message)
        high = with_first_pixel((0, 0, 0))
        high[..., 1] = 255
        drive.diagnosed("OOD", ERROR, "ALERT", lambda: drive.message(high))
        drive.diagnosed("OOD", fail_safe.STALE, "STALE")
        for array in peer.received["/diagnostics"]:
            for status in array.status:
                if status.name.endswith("OOD"):
                    assert (status.level == fail_safe.OK) == (status.message == "OK"), status


def test_the_images_of_these_tests_differ():
    assert len({with_first_pixel((0, 0, 0), n).tobytes() for n in range(50)}) == 50
    assert np.array_equal(with_first_pixel((1, 3, 2))[0, 0], [1, 3, 2])
