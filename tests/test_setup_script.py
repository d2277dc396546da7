"""scripts/setup in bad surroundings: the real script, in a copy of the tree, says one clear line.

What needs the whole environment (making it, from a half-made one, in a path with spaces) is done by
`.ci/run`, where the environment is made anyway.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OFFLINE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # port 9, "discard": nobody listens
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_RETRIES": "1",
}


@pytest.fixture
def clone(tmp_path) -> Path:
    """What scripts/setup reads, at a place with a space in its name, and no environment."""
    clone = tmp_path / "a clone"
    for name in ("scripts", "launch", "config", "ros2_ws/src/penumbra_msgs"):
        shutil.copytree(ROOT / name, clone / name)
    for name in ("package.xml", "setup.py", "setup.cfg"):
        shutil.copy(ROOT / name, clone / name)
    return clone


@pytest.fixture
def tools(tmp_path) -> Path:
    """A directory to be PATH, with little more in it than a shell."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    return tools


def setup(clone: Path, environment: dict[str, str], *arguments: str, **changes: str):
    command = [str(clone / "scripts" / "setup"), *arguments]
    environment = {**environment, "PYTHON": "", **changes}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def base_python() -> str:
    return getattr(sys, "_base_executable", sys.executable)


def assert_one_line(done: subprocess.CompletedProcess, *parts: str) -> None:
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("scripts/setup: ")
    assert "Traceback" not in done.stderr
    assert [part for part in parts if part not in last] == []


def pretend_python(tools: Path, name: str, version: str) -> None:
    """A Python that is too old: it tells its version, and fails any test of being newer."""
    (tools / name).write_text(f"#!/bin/sh\n[ $1 = --version ] && echo Python {version}\n")
    (tools / name).chmod(0o755)


def test_no_python(clone, tools, shell_environment):
    done = setup(clone, shell_environment, PATH=str(tools))
    assert_one_line(done, "Python 3.10 or newer is needed, found: none", "sudo apt install python3")
    assert len(done.stderr.splitlines()) == 1


def test_old_python(clone, tools, shell_environment):
    pretend_python(tools, "python3", "3.8.10")
    pretend_python(tools, "python3.11", "3.8.10")
    done = setup(clone, shell_environment, PATH=str(tools))
    assert_one_line(done, "Python 3.10 or newer is needed, found: Python 3.8.10", "PYTHON=")


def test_old_python_beside_a_newer_one(clone, tools, shell_environment):
    pretend_python(tools, "python3", "3.8.10")
    name = f"python3.{sys.version_info.minor}"
    (tools / name).symlink_to(base_python())
    done = setup(clone, shell_environment, "--explain", PATH=str(tools))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["python"].rpartition("/")[2].startswith("python3")


def test_no_compiler(clone, tools, shell_environment):
    (tools / "python3").symlink_to(base_python())
    done = setup(clone, shell_environment, PATH=str(tools))
    assert_one_line(done, "a C++ compiler, make, CMake", "sudo apt install build-essential cmake")
    assert not (clone / ".venv").exists()  # told before anything was made


def test_no_network(clone, shell_environment):
    done = setup(clone, shell_environment, "run", **OFFLINE)
    log = clone / ".venv.log"
    assert_one_line(done, "the package index cannot be reached", "Check the network", str(log))
    assert "127.0.0.1" in log.read_text()
    # What was made stands: the next run goes on with the packages instead of starting over.
    stamp = json.loads((clone / ".venv" / "penumbra-setup.json").read_text())
    assert list(stamp["parts"]) == ["venv"]
    assert "working_on" not in stamp
    again = setup(clone, shell_environment, "run", **OFFLINE)
    assert "making .venv" not in again.stderr


@pytest.mark.parametrize("remains", ["a garbled stamp", "interrupted"])
def test_half_made_environment_is_made_anew(clone, shell_environment, remains):
    """As far as one gets without a network; the rest of the way is .ci/run's."""
    venv = clone / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "leftover").touch()
    stamp = json.dumps({"parts": {}, "working_on": "packages"})
    length = len(stamp) if remains == "interrupted" else 10
    (venv / "penumbra-setup.json").write_text(stamp[:length])
    done = setup(clone, shell_environment, "run", **OFFLINE)
    assert ".venv is incomplete or damaged; creating it anew" in done.stderr
    assert "making .venv: done" in done.stderr
    assert not (venv / "leftover").exists()


def test_two_at_once_wait_for_each_other(clone, tools, shell_environment):
    (tools / "python3").symlink_to(base_python())
    environment = {**shell_environment, "PATH": str(tools), "PYTHON": ""}
    with (clone / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [str(clone / "scripts" / "setup")], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert "another set-up of this clone is running" in second.stderr.readline()
        assert second.poll() is None
        fcntl.flock(lock, fcntl.LOCK_UN)
    rest = second.communicate(timeout=60)[1]
    assert "a C++ compiler" in rest  # it went on, as far as these surroundings allow


def test_nothing_to_do(shell_environment):
    """The second of two runs, in the environment of this test: silent, and nothing is touched."""
    stamp = ROOT / ".venv" / "penumbra-setup.json"
    if not stamp.exists() or Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("these tests do not run in an environment made by scripts/setup")
    assert setup(ROOT, shell_environment, "run").returncode == 0
    before = stamp.stat().st_mtime_ns
    done = setup(ROOT, shell_environment, "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stamp.stat().st_mtime_ns == before


# --- A sourced ROS 2, which cannot be had here: its decisions -------------------------------------


@pytest.fixture
def sourced(tmp_path) -> dict[str, str]:
    """The variables of a shell that sourced a ROS 2 built for this Python."""
    prefix = tmp_path / "opt" / "ros" / "jazzy"
    packages = prefix / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "rclpy").mkdir(parents=True)
    return {
        "ROS_DISTRO": "jazzy",
        "AMENT_PREFIX_PATH": str(prefix),
        "LD_LIBRARY_PATH": str(prefix / "lib"),
        "PYTHONPATH": str(packages),
    }


def explain(clone, environment, *arguments, **changes) -> dict:
    done = setup(clone, environment, "--explain", *arguments, **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_ros_it_comes_from_pypi(clone, shell_environment):
    plan = explain(clone, shell_environment, "run")
    assert plan["requirements"] == ["ros.txt", "run.txt"]
    assert plan["colcon_packages"] == ["penumbra_msgs"]
    assert not plan["system_site_packages"]
    assert explain(clone, shell_environment)["requirements"] == ["ros.txt", "run.txt", "dev.txt"]


def test_a_sourced_ros_is_used_and_not_shadowed(clone, shell_environment, sourced):
    plan = explain(clone, shell_environment, "dev", **sourced)
    assert plan["system_site_packages"]
    assert plan["requirements"] == ["run.txt", "dev.txt"]  # no ROS 2 wheels, no OpenCV wheel
    assert plan["constraints"] == ["sourced-ros.txt"]
    assert plan["colcon_packages"] == ["penumbra_msgs", "penumbra"]
    assert plan["sourced"]["AMENT_PREFIX_PATH"] == [sourced["AMENT_PREFIX_PATH"]]
    requirements = ROOT / "scripts" / "environment" / "requirements"
    texts = [(requirements / name).read_text() for name in plan["requirements"]]
    assert [text for text in texts if "ros-jazzy" in text or "opencv" in text] == []
    assert "numpy<2" in (requirements / "sourced-ros.txt").read_text()


def test_an_environment_made_with_a_sourced_ros_keeps_it(clone, shell_environment, sourced):
    """A new terminal in which nobody sourced anything must not replace it by wheels."""
    plan = explain(clone, shell_environment, "run", **sourced)
    (clone / ".venv").mkdir()
    stamp = {"parts": {}, "profile": "dev", "python": plan["python"], "sourced": plan["sourced"]}
    (clone / ".venv" / "penumbra-setup.json").write_text(json.dumps(stamp))
    later = explain(clone, shell_environment, "run")
    assert later["sourced"] == plan["sourced"]
    assert later["profile"] == "dev"  # an environment is upgraded, never downgraded


def test_a_sourced_ros_without_rclpy(clone, shell_environment, sourced):
    done = setup(clone, shell_environment, **{**sourced, "AMENT_PREFIX_PATH": "/nowhere"})
    assert_one_line(done, "has no rclpy", "ros-jazzy-ros-base")


def test_a_sourced_ros_for_another_python(clone, shell_environment, sourced):
    prefix = Path(sourced["AMENT_PREFIX_PATH"])
    (prefix / "lib" / f"python3.{sys.version_info.minor}").rename(prefix / "lib" / "python3.99")
    done = setup(clone, shell_environment, **sourced)
    assert_one_line(
        done, "is built for python3.99, which is not on PATH", "sudo apt install python3.99"
    )


def test_a_sourced_ros_in_a_path_with_spaces(clone, shell_environment, sourced):
    """`ros2 run` could not start what setuptools writes there."""
    done = setup(clone, shell_environment, **sourced)
    assert_one_line(done, "fail in a path with spaces", str(clone))
    assert not (clone / ".venv").exists()
