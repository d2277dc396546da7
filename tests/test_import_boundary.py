"""Two halves that meet only in the bundle: no torch on the vehicle, no rclpy in the core.

A module counts as part of the vehicle half, and as free of ROS, unless it is named here; so a new
one is held to both rules from its first day.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "penumbra"
OFFLINE = (
    "penumbra.lab.benchmarks",
    "penumbra.lab.experiments",
    "penumbra.offline.export",
    "penumbra.offline.models",
    "penumbra.propagation.montecarlo",
    "penumbra.propagation",
    "penumbra.offline.training",
    "penumbra.verification",
)
ROS = ("penumbra.vehicle.node", "penumbra.replay")

# Imports every module named on the command line in a Python where the first name does not exist.
IMPORT_WITHOUT = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r} (absent in this test)", name=name)

sys.meta_path.insert(0, Absent())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def modules(without: tuple[str, ...]) -> list[str]:
    """All modules of the package, except those at or under the names in `without`."""
    files = [path.relative_to(PACKAGE.parent) for path in sorted(PACKAGE.rglob("*.py"))]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files]
    return [name for name in names if not f"{name}.".startswith(tuple(f"{w}." for w in without))]


def import_without(absent: str, names: list[str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", IMPORT_WITHOUT, absent, *names]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "absent, elsewhere", [("torch", OFFLINE), ("rclpy", ROS)], ids=["torch", "rclpy"]
)
def test_imports_without(absent, elsewhere):
    names = modules(without=elsewhere)
    assert {"penumbra.cli.main", "penumbra.errors"} <= set(names)
    done = import_without(absent, names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "absent, needs_it", [("rclpy", "penumbra.vehicle.node.perception_node"), ("torch", "torch")]
)
def test_what_is_absent_really_is(absent, needs_it):
    """So that the test above can fail."""
    done = import_without(absent, [needs_it])
    assert done.returncode == 1
    assert "absent in this test" in done.stderr


def test_help_starts_nothing_heavy():
    """The reason why `penumbra --help` answers at once."""
    code = (
        "import sys; from penumbra.cli.main import build_parser; build_parser();"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "rclpy", "numpy", "cv2", "onnx", "onnxruntime", "scipy", "matplotlib", "yaml"}
    assert heavy & set(done.stdout.split()) == set()
