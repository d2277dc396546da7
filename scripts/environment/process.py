"""Run a command quietly: progress on the terminal, output in the log, one line if it fails."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from places import LOG, ROOT

# Through these, another environment or a sourced shell would leak into this one.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "COLCON_PREFIX_PATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE")
FOREIGN_ROS = ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH")  # unless a ROS 2 was sourced on purpose

# Of an unreachable index pip reports "no matching distribution", after one of these.
UNREACHABLE = ("Retrying (Retry(", "ReadTimeoutError", "ConnectionError", "Connection broken")


class SetupError(Exception):
    """What is wrong and how to fix it, in one line."""


def say(text: str, end: str = "\n") -> None:
    """Print progress to stderr: stdout belongs to the program that runs after the set-up."""
    print(text, end=end, file=sys.stderr, flush=True)


def clean_environment() -> dict[str, str]:
    """The environment variables without those of other environments."""
    foreign = FOREIGN if os.environ.get("ROS_DISTRO") else FOREIGN + FOREIGN_ROS
    return {name: value for name, value in os.environ.items() if name not in foreign}


def run(title: str, command: Sequence[object], cwd: Path = ROOT) -> str:
    """The command's output; SetupError if it fails. An empty title shows nothing."""
    output: list[str] = []
    with LOG.open("a") as log, progress(title, output):
        log.write(f"\n$ {' '.join(map(str, command))}\n")
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=clean_environment(),
            close_fds=False,  # a child that outlives a killed set-up goes on holding the lock
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for line in process.stdout:
            log.write(line)
            log.flush()
            output.append(line)
        if process.wait():
            raise SetupError(diagnose(title or f"running {command[0]}", "".join(output)))
    return "".join(output)


@contextlib.contextmanager
def progress(title: str, output: list[str]) -> Iterator[None]:
    """Show progress, also while the command prints nothing, and the time it took."""
    if not title:
        yield
        return
    started, ended = time.monotonic(), threading.Event()
    terminal = sys.stderr.isatty()
    every, before, end = (1, "\r\033[K", "") if terminal else (20, "", "\n")

    def show() -> None:
        while not ended.wait(every):
            newest = output[-1].strip()[:60] if terminal and output else ""
            say(f"{before}  {title}: {time.monotonic() - started:.0f} s  {newest}".rstrip(), end)

    reporter = threading.Thread(target=show, daemon=True)
    reporter.start()
    try:
        yield
        result = f"  {title}: done in {time.monotonic() - started:.0f} s\n"
    except BaseException:
        result = ""
        raise
    finally:
        ended.set()
        reporter.join()
        say(before + result, end="")


def diagnose(title: str, output: str) -> str:
    """What a failed command means for the user."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if re.search(r"\berror\b", line, re.I)]
    first = errors[0] if errors else -1
    cause = " ".join(lines[first:][:3])[:300] or "it printed nothing"  # CMake wraps its lines
    if any(sign in output for sign in UNREACHABLE):
        cause = (
            "the package index cannot be reached. Check the network, the proxy or PIP_INDEX_URL and"
            " run this again: it goes on where it stopped"
        )
    elif "No space left on device" in output:
        cause = "the disk is full. Make room and run this again"
    elif "No matching distribution found" in output:
        cause += " (for this Python; another may do: PYTHON=python3.12 scripts/setup)"
    return f"{title} failed: {cause}. Log: {LOG}"
