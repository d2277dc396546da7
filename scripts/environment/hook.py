"""Start every Python of `.venv` as if `activate` and `ros2_ws/install/setup.bash` had been sourced.

`scripts/setup` copies this file into the environment's site-packages, next to `penumbra_paths.py`
with the paths themselves; a `.pth` imports it whenever the environment's Python starts.

The dynamic loader reads LD_LIBRARY_PATH once, when a process begins. If it is not yet complete,
Python is started again with the same arguments. The ROS 2 wheels do just that by their own `.pth`
(`ros_wheels_bootstrapper`, which runs after this one), so there it is left to them: one restart,
not two. They keep a guard variable that children inherit; it is dropped when the libraries on the
path are those of another environment.
"""

import os
import sys

from penumbra_paths import PATHS, WHEELS_RESTART

WHEELS_GUARD = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"


def prepend(variable: str, wanted: list[str]) -> bool:
    """Put the missing of `wanted` in front of a path variable; True if any was missing."""
    present = [entry for entry in os.environ.get(variable, "").split(os.pathsep) if entry]
    missing = [entry for entry in wanted if entry not in present]
    if missing:
        os.environ[variable] = os.pathsep.join(missing + present)
    return bool(missing)


def apply() -> None:
    """Complete the environment variables, and restart Python if the loader has to see them."""
    os.environ["VIRTUAL_ENV"] = sys.prefix  # by which CMake finds this Python before all others
    restart = False
    for variable, wanted in PATHS.items():
        restart |= prepend(variable, wanted) and variable == "LD_LIBRARY_PATH"
    if restart and WHEELS_RESTART:
        os.environ.pop(WHEELS_GUARD, None)
    elif restart:
        os.execve(sys.executable, sys.orig_argv, os.environ)


# install/setup.bash asks this script of colcon's what the shell's variables lack, so it has to see
# them as they are.
if not any("_local_setup_util_" in word for word in sys.orig_argv):
    apply()
