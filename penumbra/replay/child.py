"""Run a module in a process that never outlives the one that started it.

    python -m penumbra.replay.child PARENT_PID MODULE ARGUMENTS…

A process that is killed (kill -9, the out-of-memory killer, a Ray worker that is taken away) cannot
end its children. A perception node left behind would go on to answer in its ROS domain, which the
next run on this machine may take for its own. So the kernel is asked to kill it too: Linux's
`prctl(PR_SET_PDEATHSIG)`, by which the thread counts that has started it.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command(module: str, *arguments: str) -> list[str]:
    """What to start so that `module` runs, and ends with the caller's process at the latest."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments]


def main() -> None:
    _, parent, module, *arguments = sys.argv
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        sys.exit(f"penumbra.replay.child: process {parent} has ended")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
