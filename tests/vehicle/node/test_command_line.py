"""An invalid command line of the node: one line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import tiny_bundles
from fail_safe import Drive, with_first_pixel
from perception import STUB_NODE, TIMEOUT, running
from stub_node import fault_pixel

NODES = ("perception_node", "guard_node")
BROKEN = {
    "no YAML": "/**: [",
    "wrong type": "/**:\n  ros__parameters:\n    rate_limit: fast\n",
    "binary": "\x00\x01",
    "\x1b[2Jname": "a: b: c",
}


def start(node: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", f"penumbra.vehicle.node.{node}", "--ros-args", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def assert_one_line(ended: subprocess.CompletedProcess, node: str) -> None:
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert lines[-1].startswith(f"{node}: "), ended.stderr
    assert all(line.isprintable() for line in lines), ended.stderr
    assert len(lines) == 1, ended.stderr


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--log-level", "loud"),
        ("--params-file", "no such file.yaml"),
        ("-r", "__node:=not a name"),
        ("-r", "__ns:=/not a namespace"),
        ("-r", "a:=:=b"),
        ("-p", "no value"),
        ("--unknown-option",),
    ],
    ids=" ".join,
)
def test_an_invalid_argument(ros_domain, node, arguments):
    assert_one_line(start(node, *arguments), node)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_parameter_file(ros_domain, tmp_path, how):
    file = tmp_path / f"{how}.yaml"
    file.write_text(BROKEN[how])
    assert_one_line(start("perception_node", "--params-file", str(file)), "perception_node")


@pytest.mark.parametrize("fault", ["hangs", "slow"])
def test_an_interrupt_during_inference_leaves_no_error(peer, tmp_path, fault):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    with running(str(STUB_NODE), bundle=bundle.path, runner="onnxruntime") as node:
        drive = Drive(peer)
        drive.run(lambda: drive.level == "WARN", "a judged frame")
        before = len(node.log)
        slow = with_first_pixel(fault_pixel(fault))
        peer.publisher().publish(peer.image(slow))
        peer.spin(0.2)
        assert node.end(signal.SIGINT) == 0
        late = [line for line in node.log[before:] if "ERROR" in line or "lost an image" in line]
        assert not late
        node.process.poll = lambda: None  # `running` expects to end it itself
        node.end = lambda: 0
