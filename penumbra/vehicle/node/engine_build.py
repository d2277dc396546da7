"""Builds an engine in a child process, which can be killed at any time.

A TensorRT build takes minutes, cannot be interrupted at will and may run out of memory, none of
which may affect the node. The child reports its progress as lines of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penumbra.bundle import load_bundle
from penumbra.errors import PenumbraError
from penumbra.vehicle.runners.engine import Engine, Key
from penumbra.vehicle.runners.settings import Progress, RunnerError


class EngineBuild:
    """A running build: `run` waits for its end, `cancel` (from any thread) ends it."""

    def __init__(self, engine: Engine) -> None:
        order = {
            "bundle": str(engine.bundle.path),
            "key": asdict(engine.key),
            "folder": str(engine.folder),
            "workspace_mb": engine.workspace_mb,
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that Ctrl-C reaches only the node
        )

    def run(self, progress: Progress) -> None:
        """Wait for the build and forward its progress; RunnerError if it fails."""
        reason = None
        with self._child as child:
            for line in child.stdout or ():
                report = json.loads(line)
                reason = report.get("error")
                if reason is None:
                    progress(report["progress"], report["phase"])
        if child.returncode:
            default = f"the build exited with code {child.returncode}, see its output in the log"
            raise RunnerError(reason or default)

    def cancel(self) -> None:
        """Kill the build; `run` then raises."""
        self._child.kill()


def main(arguments: Sequence[str]) -> int:
    """Entry point of the child; its only argument describes the engine."""
    report = _reporter()
    order: dict[str, Any] = json.loads(arguments[0])
    try:
        Engine(
            bundle=load_bundle(order["bundle"]),
            key=Key(**order["key"]),
            folder=Path(order["folder"]),
            workspace_mb=order["workspace_mb"],
        ).build(lambda fraction, phase: report(progress=fraction, phase=phase))
    except PenumbraError as error:
        report(error=str(error))
        return 2
    return 0


def _reporter() -> Callable[..., None]:
    """A function that writes lines of JSON to the original standard output.

    Standard output itself is redirected to standard error, so that no output of a library
    interleaves with these lines.
    """
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(**facts: Any) -> None:
        lines.write(json.dumps(facts) + "\n")
        lines.flush()

    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
