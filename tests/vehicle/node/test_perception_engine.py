"""The engine: built in a child process, restarted if it fails, and given up."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_bundles
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from perception import STUB_NODE, Peer, running
from stub_node import FAIL, OUT_OF_MEMORY

from penumbra_msgs.msg import FrameStats, OodAlert


@pytest.fixture
def bundle(tmp_path):
    thresholds = {"pixel": 0.9, "frame": 0.9, "false_alarm_rate": 0.001, "frames": 100}
    return tiny_bundles.segmentation(tmp_path / "street", thresholds=thresholds)


def poisoned(pixel: tuple[int, int, int]) -> np.ndarray:
    image = np.zeros((36, 48, 3), np.uint8)
    image[0, 0] = pixel
    return image


def levels(peer: Peer) -> list[int]:
    """The published levels, without repetitions."""
    published = [alert.level for alert in peer.received["/penumbra/ood"]]
    return [level for n, level in enumerate(published) if n == 0 or level != published[n - 1]]


def test_a_missing_engine_is_built_while_the_level_is_starting(peer, bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_ENGINE", "1")
    # However long discovery takes, the level is not STALE before the first image.
    settings = {"engine_cache_dir": tmp_path / "engines", "ood.stale_after": 600.0}
    with running(str(STUB_NODE), bundle=bundle.path, runner="onnxruntime", **settings) as node:
        peer.alerts()
        peer.collect(FrameStats, "/penumbra/stats")
        peer.wait(lambda: levels(peer), "a latched alert")
        peer.until_processed(poisoned((0, 0, 0)))
        node.wait_for("building the tensorrt-rtx engine for street; this is done once")
        assert peer.state() == "active"
        peer.wait(lambda: OodAlert.OK in levels(peer), "OK")
        assert levels(peer)[0] == OodAlert.STARTING
        assert len(list((tmp_path / "engines").glob("street-*.engine"))) == 1
        assert peer.stats()[-1].engine_progress == 1


def test_a_failing_engine_is_restarted_three_times_then_the_node_enters_the_error_state(
    peer, bundle
):
    settings = {"runner": "onnxruntime", "restart_pause": 0.05, "max_age": 0.0}
    with running(str(STUB_NODE), bundle=bundle.path, **settings) as node:
        peer.alerts()
        peer.collect(FrameStats, "/penumbra/stats")
        peer.collect(DiagnosticArray, "/diagnostics")
        good = poisoned((0, 0, 0))
        peer.until_processed(good)

        # One image that cannot be processed: STALE immediately, but the engine is not to blame.
        peer.publisher().publish(peer.image(poisoned(OUT_OF_MEMORY)))
        alerts = peer.received["/penumbra/ood"]
        reason = "the runner failed: MemoryError: out of memory"
        peer.wait(
            lambda: reason in [a.reason for a in alerts if a.level == OodAlert.STALE], "STALE"
        )
        peer.received["/penumbra/stats"].clear()
        peer.until_processed(good)
        assert peer.stats()[-1].dropped_failed == 1
        assert not any("restart" in line for line in node.log)

        # Repeated failures: growing pauses, then the engine is given up.
        def given_up() -> bool:
            peer.publisher().publish(peer.image(poisoned(FAIL)))
            return any("entering the error state" in line for line in node.log)

        peer.wait(given_up, "giving up")
        for number, pause in enumerate(("0.05", "0.1", "0.2"), start=1):
            node.wait_for(f"breaks the engine; restart {number} of 3 in {pause} s")
        assert peer.state() == "unconfigured"  # via the error state
        peer.wait(lambda: engine_status(peer) == DiagnosticStatus.ERROR, "an error status")

        # The process is alive and can be configured again.
        assert peer.change("configure") and peer.change("activate")
        peer.received["/penumbra/stats"].clear()
        peer.until_processed(good)
        peer.wait(lambda: engine_status(peer) == DiagnosticStatus.OK, "a running engine")


def engine_status(peer: Peer) -> bytes | None:
    arrays = peer.received["/diagnostics"][-1:]
    levels = [s.level for a in arrays for s in a.status if s.name == "penumbra: engine"]
    return levels[0] if levels else None
