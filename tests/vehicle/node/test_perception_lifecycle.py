"""Every transition from outside, many times; bad bundles; signals at any moment."""

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


def test_every_transition_and_back_many_times(peer, bundle):
    """And impossible ones in between, over which rclpy by itself ends the process."""
    picture = tiny_bundles.image()
    settings = {"bundle": bundle.path, "runner": "onnxruntime", "autostart": False}
    with running(str(STUB_NODE), **settings) as node:
        node.wait_for("waiting to be configured")
        peer.collect(FrameStats, "/penumbra/stats")
        for number in range(ROUNDS):
            assert not peer.change("activate")
            assert peer.change("configure")
            assert not peer.change("configure")
            assert peer.change("activate")
            if number % 10 == 0:  # it does its work each time
                peer.received["/penumbra/stats"].clear()
                peer.until_processed(picture)
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


def test_a_bad_bundle_is_one_clear_line_and_the_node_can_be_configured_again(peer, bundle):
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
        "depth": "is for depth and this node was started for segmentation",
    }
    settings = {"bundle": folder.with_name("missing"), "runner": "onnxruntime"}
    with running(str(STUB_NODE), **settings) as node:
        for name, complaint in wrong.items():
            assert peer.set(bundle=str(folder.with_name(name))) == [""]
            logged = len(node.log)
            assert not peer.change("configure")
            assert peer.state() == "unconfigured"
            line = node.wait_for(f"ERROR.*cannot configure: .*{complaint}")
            assert sum("ERROR" in line for line in node.log[logged:]) == 1, line
        # A topic that cannot be: configured, but not activated.
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
def test_ends_well_at_any_moment(ros_domain, bundle, moment):
    autostart, sign, number = MOMENTS[moment]
    node = NodeProcess(bundle=bundle.path, autostart=autostart)
    node.wait_for(sign)
    assert node.end(number) == 0, "\n".join(node.log)
    node.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ends_well_while_the_engine_is_built(ros_domain, bundle, tmp_path, number, monkeypatch):
    """In a child process, which goes too and leaves no engine behind."""
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
        os.kill(child, 0)  # asks whether it is there
    assert list(engines.glob("*.engine")) == []
