"""Every decision of the set-up, taken before anything is changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from places import HOOK, REQUIREMENTS, ROOT, VENV, WORKSPACE
from process import SetupError

PROFILES = ("run", "dev")  # each includes those before it
ROS_PATHS = ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(frozen=True)
class Plan:
    """The decisions; `scripts/setup --explain` prints them."""

    profile: str
    ros: str
    sourced: dict[str, list[str]]  # the path variables of a sourced ROS 2; empty: ROS 2 from PyPI
    python: str
    system_site_packages: bool
    requirements: list[str]
    constraints: list[str]
    colcon_packages: list[str]
    colcon_flags: list[str]


def make_plan(profile: str, environ: Mapping[str, str], previous: Mapping) -> Plan:
    """Decide from the environment variables and the stamp of an existing environment.

    An environment keeps the profile, the Python and the sourced ROS 2 that it was created with, so
    that `scripts/demo` in a new terminal does not undo what `scripts/test` did in another.
    """
    profile = max(profile, previous.get("profile") or profile, key=PROFILES.index)
    profiles = [f"{name}.txt" for name in PROFILES[: PROFILES.index(profile) + 1]]
    sourced = sourced_paths(environ) or previous.get("sourced")
    if sourced:
        prefix, python = python_of(sourced)
        return Plan(
            profile=profile,
            ros=f"2 sourced from {prefix}",
            sourced=sourced,
            python=python,
            # rclpy, cv_bridge, numpy and OpenCV stay the distribution's
            system_site_packages=True,
            requirements=profiles,
            constraints=["sourced-ros.txt"],
            # `ros2 launch` and `ros2 run` look for penumbra in the workspace. colcon runs by
            # .venv's Python, so the scripts that it writes start that Python and find the runners.
            colcon_packages=["penumbra_msgs", "penumbra"],
            colcon_flags=["--symlink-install"],
        )
    python = previous.get("python")
    if not python or environ.get("PYTHON") or not os.access(python, os.X_OK):
        python = getattr(sys, "_base_executable", sys.executable)
    return Plan(
        profile=profile,
        ros="2 Jazzy from PyPI",
        sourced={},
        python=python,
        system_site_packages=False,
        requirements=["ros.txt", *profiles],
        constraints=[],
        colcon_packages=["penumbra_msgs"],
        colcon_flags=[],
    )


def sourced_paths(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """The path variables of a sourced ROS 2, without this project's own entries; {} if none is."""
    if not environ.get("ROS_DISTRO"):
        return {}
    ours = (str(VENV), str(WORKSPACE))
    return {
        name: [p for p in environ.get(name, "").split(os.pathsep) if p and not p.startswith(ours)]
        for name in ROS_PATHS
    }


def python_of(sourced: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The prefix of a sourced ROS 2 that holds rclpy, and the Python that rclpy was built for."""
    for prefix in sourced["AMENT_PREFIX_PATH"]:
        for rclpy in sorted(Path(prefix).glob("lib/python3.*/*-packages/rclpy")):
            version = rclpy.parents[1].name
            # the distribution's own first: a pyenv of the same version has no cv_bridge
            python = shutil.which(version, path=f"/usr/bin:{os.environ.get('PATH', '')}")
            if python:
                return prefix, python
            raise SetupError(
                f"the ROS 2 sourced from {prefix} is built for {version}, which is not on PATH:"
                f" sudo apt install {version} {version}-venv"
            )
    raise SetupError(
        "a ROS 2 is sourced (ROS_DISTRO is set) but has no rclpy: sudo apt install"
        " ros-jazzy-ros-base, or unset ROS_DISTRO to take ROS 2 from PyPI"
    )


def fingerprints(plan: Plan) -> dict[str, str]:
    """What each part of the environment is made from, in the order in which they are made."""
    interfaces = WORKSPACE / "src" / "penumbra_msgs"
    messages = [interfaces / "package.xml", interfaces / "CMakeLists.txt"]
    messages += sorted(interfaces.glob("msg/*.msg"))
    package = [ROOT / name for name in ("package.xml", "setup.py", "setup.cfg")]
    requirements = [REQUIREMENTS / name for name in plan.requirements + plan.constraints]
    venv = fingerprint(ROOT, plan.python, plan.ros)
    return {
        "venv": venv,
        "packages": fingerprint(venv, files=requirements),
        "fit": fingerprint(
            venv, plan.sourced, files=[HOOK, HOOK.with_name("parts.py"), *requirements]
        ),
        "messages": fingerprint(venv, plan.colcon_packages, plan.colcon_flags, files=messages),
        "penumbra": fingerprint(venv, files=package),
    }


def fingerprint(*facts: object, files: Sequence[Path] = ()) -> str:
    """A hash over facts and over the names and contents of files."""
    digest = hashlib.sha256(json.dumps(facts, default=str).encode())
    for path in files:
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
