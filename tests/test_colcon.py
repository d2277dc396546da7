"""The two packages as colcon builds, installs and tests them, in both layouts of a workspace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COLCON = [sys.executable, "-m", "colcon"]
PYTHON = f"python3.{sys.version_info.minor}"
NOT_SOURCES = shutil.ignore_patterns(".*", "build", "install", "log", "*.egg-info", "__pycache__")

pytestmark = pytest.mark.slow


def colcon(workspace: Path, *arguments: str) -> str:
    """Run colcon as a user does after scripts/setup, without the messages of this clone."""
    paths = {name: without_this_clone(name) for name in ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH")}
    done = subprocess.run(
        [*COLCON, *arguments],
        cwd=workspace,
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def without_this_clone(variable: str) -> str:
    entries = os.environ.get(variable, "").split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if not entry.startswith(f"{ROOT}/ros2_ws"))


def copy_of_the_clone(destination: Path) -> Path:
    """The source tree with its link ros2_ws/src/penumbra, and nothing that was built."""
    return Path(shutil.copytree(ROOT, destination, symlinks=True, ignore=NOT_SOURCES))


def packages(listing: str) -> dict[str, str]:
    """Name and place of each package in the output of `colcon list`."""
    return {line.split("\t")[0]: line.split("\t")[1] for line in listing.splitlines()}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """`cd ros2_ws && colcon build` in a clean tree."""
    clone = copy_of_the_clone(tmp_path_factory.mktemp("colcon") / "clone")
    output = colcon(clone / "ros2_ws", "build")
    assert "Summary: 2 packages finished" in output
    return clone / "ros2_ws"


def test_build_installs_where_ros2_looks(workspace):
    penumbra, messages = workspace / "install/penumbra", workspace / "install/penumbra_msgs"
    expected = [
        penumbra / "share/ament_index/resource_index/packages/penumbra",
        penumbra / "share/penumbra/package.xml",
        penumbra / "lib/penumbra/penumbra",
        penumbra / "lib/penumbra/perception_node",
        messages / "share/penumbra_msgs/msg/OodAlert.msg",
        messages / "lib/libpenumbra_msgs__rosidl_typesupport_fastrtps_c.so",
    ]
    for folder in ("launch", "config"):
        files = [path for path in (ROOT / folder).rglob("[!._]*.*") if path.is_file()]
        files = [path for path in files if path.parent.name != "checkpoints"]  # for training only
        expected += [penumbra / "share/penumbra" / path.relative_to(ROOT) for path in files]
    assert [str(path) for path in expected if not path.exists()] == []
    shebang = (penumbra / "lib/penumbra/perception_node").read_text().splitlines()[0]
    assert sys.executable in shebang  # so the node finds what is installed beside colcon


def test_sourcing_the_workspace_works(workspace, shell_environment):
    """With the environment's Python; what was sourced goes before this clone's own."""
    where = "import penumbra, penumbra_msgs.msg as m; print(penumbra.__file__, m.__file__, sep='|')"
    program = "install/penumbra/lib/penumbra/penumbra"
    command = f'source install/setup.bash && "$0" -c "$1" && {program} --version'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, where],
        cwd=workspace,
        env=shell_environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    where, version = done.stdout.splitlines()
    installed = [
        f"install/{name}/lib/{PYTHON}/site-packages" for name in ("penumbra", "penumbra_msgs")
    ]
    for place, expected in zip(where.split("|"), installed, strict=True):
        assert Path(place).is_relative_to(workspace / expected)
    assert version.startswith("penumbra ")


def test_colcon_test_sees_every_test_once(workspace):
    """It runs in src/penumbra, a link to a tree that holds the link: nothing is found twice."""
    arguments = ["--packages-select", "penumbra", "--event-handlers", "console_direct+"]
    counts = "tests/test_conftest.py --collect-only -q"
    output = colcon(workspace, "test", *arguments, "--pytest-args", *counts.split())
    found = [line for line in output.splitlines() if "::test_" in line]
    assert len(found) == len(set(found)) == 5
    assert all(line.startswith("tests/test_conftest.py") for line in found)


def test_cloned_into_the_src_of_a_workspace(tmp_path):
    """colcon stops at the first package it finds; docs/deployment.md shows two ways to go on."""
    copy_of_the_clone(tmp_path / "src/penumbra")
    messages = "src/penumbra/ros2_ws/src/penumbra_msgs"
    assert packages(colcon(tmp_path, "list")) == {"penumbra": "src/penumbra"}

    base_paths = ["--base-paths", "src", messages]
    expected = {"penumbra": "src/penumbra", "penumbra_msgs": messages}
    assert packages(colcon(tmp_path, "list", *base_paths)) == expected

    (tmp_path / "src/penumbra_msgs").symlink_to("penumbra/ros2_ws/src/penumbra_msgs")
    expected["penumbra_msgs"] = "src/penumbra_msgs"
    assert packages(colcon(tmp_path, "list")) == expected
    assert "Summary: 2 packages finished" in colcon(tmp_path, "build")
