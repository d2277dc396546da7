"""Run a module in a process that never outlives its parent.

    python -m penumbra.replay.child PARENT_PID MODULE ARGUMENTS…

A process that is killed (kill -9, the out-of-memory killer, a removed Ray worker) cannot end its
children. An orphaned perception node would keep answering in its ROS domain, which the next run on
this machine may reserve. Linux's `prctl(PR_SET_PDEATHSIG)` makes the kernel kill it when the thread
that started it ends.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a child that runs `module` and never outlives the calling process."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments]


def main() -> None:
    """Ask the kernel for the signal, then become the module."""
    _, parent, module, *arguments = sys.argv
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):  # the parent ended before prctl
        sys.exit(f"penumbra.replay.child: process {parent} has ended")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
