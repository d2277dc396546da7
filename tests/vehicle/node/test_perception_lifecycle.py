"""All transitions, repeatedly; invalid bundles; signals at any time."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import tiny_bundles
from perception import STUB_NODE, NodeProcess, running

from penumbra.bundle import SCHEMA_VERSION
from penumbra_msgs.msg import FrameStats

ROUNDS = 50


@pytest.fixture
def bundle(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street")


def test_every_transition_many_times(peer, bundle):
    """Including invalid ones, on which plain rclpy ends the process."""
    pixels = tiny_bundles.image()
    settings = {"bundle": bundle.path, "runner": "onnxruntime", "autostart": False}
    with running(str(STUB_NODE), **settings) as node:
        node.wait_for("waiting to be configured")
        peer.collect(FrameStats, "/penumbra/stats")
        for number in range(ROUNDS):
            assert not peer.change("activate")
            assert peer.change("configure")
            assert not peer.change("configure")
            assert peer.change("activate")
            if number % 10 == 0:  # it processes images
                peer.received["/penumbra/stats"].clear()
                peer.until_processed(pixels)
            assert not peer.change("cleanup")
            assert peer.change("deactivate")
            if number % 2:
                assert peer.change("activate")
                assert peer.change("deactivate")
            assert peer.change("cleanup")
        assert not peer.change("no_such_transition")
        assert peer.state() == "unconfigured"
        assert peer.change("configure")
        assert peer.change("shutdown")
        assert peer.state() == "finalized"


def test_an_invalid_bundle_is_a_one_line_error_and_the_node_can_be_configured_again(peer, bundle):
    folder = bundle.path
    corrupt = shutil.copytree(folder, folder.with_name("corrupt"))
    (corrupt / "model.onnx").write_bytes(b"something else")
    newer = shutil.copytree(folder, folder.with_name("newer"))
    manifest = newer / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace(f"schema: {SCHEMA_VERSION}", "schema: 99"))
    tiny_bundles.depth(folder.with_name("depth"))
    wrong = {
        "missing": "no bundle at .*missing",
        "corrupt": "is not the file that was exported",
        "newer": "schema version 99",
        "depth": "is for depth, but this node was started for segmentation",
    }
    settings = {"bundle": folder.with_name("missing"), "runner": "onnxruntime"}
    with running(str(STUB_NODE), **settings) as node:
        for name, message in wrong.items():
            assert peer.set(bundle=str(folder.with_name(name))) == [""]
            logged = len(node.log)
            assert not peer.change("configure")
            assert peer.state() == "unconfigured"
            line = node.wait_for(f"ERROR.*cannot configure: .*{message}")
            assert sum("ERROR" in line for line in node.log[logged:]) == 1, line
        # An invalid topic: configuring succeeds, activating fails.
        assert peer.set(bundle=str(folder), image_topic="no topic") == ["", ""]
        assert peer.change("configure") and not peer.change("activate")
        node.wait_for("ERROR.*cannot activate: .*no topic")
        assert peer.change("cleanup")
        assert peer.set(image_topic="~/{camera}/image") == [""]
        assert peer.change("configure") and peer.change("activate")
        peer.collect(FrameStats, "/penumbra/stats")
        peer.until_processed(tiny_bundles.image())


MOMENTS = {
    "unconfigured": (False, "waiting to be configured", signal.SIGINT),
    "loading": (True, "waiting for images", signal.SIGTERM),
    "running": (True, "engine: running", signal.SIGINT),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_the_node_cleanly_at_any_time(ros_domain, bundle, moment):
    autostart, line, number = MOMENTS[moment]
    node = NodeProcess(bundle=bundle.path, autostart=autostart)
    node.wait_for(line)
    assert node.end(number) == 0, "\n".join(node.log)
    node.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_during_a_build_ends_node_and_child(
    ros_domain, bundle, tmp_path, number, monkeypatch
):
    """The child process leaves no engine."""
    monkeypatch.setenv("STUB_ENGINE", "1")
    engines = tmp_path / "engines"
    node = NodeProcess(
        str(STUB_NODE), bundle=bundle.path, runner="onnxruntime", engine_cache_dir=engines
    )
    node.wait_for("building the tensorrt-rtx engine")
    tasks = Path(f"/proc/{node.process.pid}/task").iterdir()
    (child,) = (int(pid) for task in tasks for pid in (task / "children").read_text().split())
    assert node.end(number) == 0, "\n".join(node.log)
    node.assert_clean()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)  # checks whether it exists
    assert list(engines.glob("*.engine")) == []
