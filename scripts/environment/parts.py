"""The parts of the environment, one function each, in the order of PARTS."""

from __future__ import annotations

import os
import platform
import re
import shutil

from places import HOOK, REQUIREMENTS, ROOT, VENV, VENV_PYTHON, WORKSPACE
from plan import ROS_PATHS, Plan
from process import SetupError, run


def check_surroundings(plan: Plan) -> None:
    """Check in advance what would otherwise fail after minutes of downloading."""
    here = (platform.system(), platform.machine())
    if not plan.sourced and here != ("Linux", "x86_64"):
        raise SetupError(
            f"ROS 2 comes from PyPI for x86-64 Linux only, and this is {' '.join(here)}:"
            " install ROS 2 Jazzy, source it and run this again (docs/deployment.md, Jetson)"
        )
    ask = (
        "import importlib.util as u, os, sysconfig;"
        "print(u.find_spec('ensurepip') is not None,"
        " os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    )
    has_pip, has_headers = run("", [plan.python, "-c", ask]).split()
    compilers = [os.environ.get("CXX", "c++"), "c++", "g++", "clang++"]
    there = {
        "a C++ compiler": any(map(shutil.which, compilers)),
        "make": shutil.which("make"),
        "CMake": shutil.which("cmake"),
        f"the headers of {plan.python}": has_headers == "True",
        f"the venv module of {plan.python}": has_pip == "True",
    }
    if plan.sourced and " " in str(ROOT):
        raise SetupError(f"ROS 2's tools fail in a path with spaces: move the clone out of {ROOT}")
    missing = [name for name, found in there.items() if not found]
    if missing:
        raise SetupError(
            f"missing: {', '.join(missing)}, needed to build the ROS 2 messages."
            " sudo apt install build-essential cmake python3-dev python3-venv"
        )


def make_venv(plan: Plan) -> None:
    """An empty virtual environment; an old one is deleted."""
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    flags = ["--system-site-packages"] if plan.system_site_packages else []
    run("making .venv", [plan.python, "-m", "venv", *flags, VENV])


def install_packages(plan: Plan) -> None:
    """Everything from PyPI, in one call so that pip resolves all requirements together."""
    arguments = [f for name in plan.requirements for f in ("-r", REQUIREMENTS / name)]
    arguments += [f for name in plan.constraints for f in ("-c", REQUIREMENTS / name)]
    pip("installing Python packages (minutes, the first time)", *arguments)


def fit_packages(plan: Plan) -> None:
    """Adapt the installed packages to this machine, so that ROS 2 is found with nothing sourced."""
    if not plan.sourced:
        mend_wheels()
        mend_colcon()
    install_hook(plan)


def mend_wheels() -> None:
    """Point the CMake files of the ROS 2 wheels to this Python's headers.

    They carry the include directories of the machine that built them, /opt/python/cp311-cp311/….
    """
    ask = "import sysconfig as s, numpy as n; print(s.get_path('include')); print(n.get_include())"
    python_headers, numpy_headers = run("", [VENV_PYTHON, "-c", ask]).splitlines()
    for file in VENV.glob("share/*/cmake/*.cmake"):
        old = file.read_text()
        new = re.sub(r'/opt/python/[^;"]*/numpy/[^;"]*include', lambda _: numpy_headers, old)
        new = re.sub(r'/opt/python/[^;"/]*/include/[^;"]*', lambda _: python_headers, new)
        if new != old:
            file.write_text(new)


def mend_colcon() -> None:
    """Quote the path of Python in colcon's setup scripts: it may contain spaces."""
    for template in VENV.glob("lib/python3.*/site-packages/colcon_*/shell/template/prefix.*sh.em"):
        text = template.read_text()
        call = "\n$_colcon_python_executable "
        template.write_text(text.replace(call, '\n"$_colcon_python_executable" '))


def install_hook(plan: Plan) -> None:
    """Let every Python of the environment find ROS 2 and the messages with nothing sourced."""
    site = next(VENV.glob("lib/python3.*/site-packages"))
    messages = WORKSPACE / "install" / "penumbra_msgs"
    paths = {name: list(plan.sourced.get(name, [])) for name in ROS_PATHS}
    if not plan.sourced:
        paths["AMENT_PREFIX_PATH"] = paths["CMAKE_PREFIX_PATH"] = [str(VENV)]
        for shell in ("sh", "bash", "zsh"):  # colcon sources one in every prefix under a workspace
            nothing = "# Nothing to do: this environment sets itself up when its Python starts.\n"
            (VENV / f"local_setup.{shell}").write_text(nothing)
    own = {
        "AMENT_PREFIX_PATH": messages,
        "CMAKE_PREFIX_PATH": messages,
        "LD_LIBRARY_PATH": messages / "lib",
        "PYTHONPATH": messages / "lib" / site.parent.name / "site-packages",
    }
    paths = {name: [str(own[name]), *entries] for name, entries in paths.items()}
    python_path = paths.pop("PYTHONPATH")  # goes into the .pth: other Pythons must not see it
    paths["PATH"] = [str(VENV / "bin")]
    (site / "penumbra_paths.py").write_text(
        '"""Written by scripts/setup, read by penumbra_environment.py."""\n\n'
        f"WHEELS_RESTART = {not plan.sourced}\nPATHS = {paths!r}\n"
    )
    shutil.copyfile(HOOK, site / "penumbra_environment.py")
    # Its name sorts before ros_wheels_bootstrapper.pth, as it has to.
    lines = [*python_path, "import penumbra_environment"]
    (site / "penumbra_environment.pth").write_text("\n".join(lines) + "\n")


def build_messages(plan: Plan) -> None:
    """`colcon build` in ros2_ws, from nothing: a deleted message must not linger."""
    for package in plan.colcon_packages:
        for base in ("build", "install"):
            shutil.rmtree(WORKSPACE / base / package, ignore_errors=True)
    build = ["build", "--packages-select", *plan.colcon_packages, *plan.colcon_flags]
    run("building the messages", [VENV_PYTHON, "-m", "colcon", *build], cwd=WORKSPACE)


def install_penumbra(plan: Plan) -> None:
    """The package itself, editable: from the source tree."""
    pip("installing penumbra", "--no-build-isolation", "--no-deps", "-e", ROOT)


def pip(title: str, *arguments: object) -> None:
    """`pip install` by the environment's Python."""
    run(title, [VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check", *arguments])


PARTS = {
    "venv": make_venv,
    "packages": install_packages,
    "fit": fit_packages,
    "messages": build_messages,
    "penumbra": install_penumbra,
}
