"""What a process holds, seen from outside through /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penumbra.errors import PenumbraError


@dataclass(frozen=True)
class ProcessUsage:
    """What a process had at one moment."""

    seconds: float  # since the watching began
    memory_mib: float  # resident, shared memory of the middleware included
    handles: int  # open files, sockets and the like
    threads: int


def process_usage(pid: int, seconds: float) -> ProcessUsage | None:
    """What process `pid` has now; None if it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text().splitlines()
        handles = sum(1 for _ in (folder / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/status").exists():
            raise PenumbraError("there is no /proc here: a node is watched on Linux") from None
        return None
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    if "VmRSS" not in status:  # it has ended and waits to be reaped
        return None
    return ProcessUsage(
        seconds, int(status["VmRSS"].split()[0]) / 1024, handles, int(status["Threads"])
    )
