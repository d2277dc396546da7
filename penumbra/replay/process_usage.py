"""Memory, handles and threads of a process, read from /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penumbra.errors import PenumbraError


@dataclass(frozen=True)
class ProcessUsage:
    """Resources of a process at one moment."""

    seconds: float  # since the start of the measurement
    memory_mib: float  # resident, including shared memory of the middleware
    handles: int  # open files, sockets and the like
    threads: int


def process_usage(pid: int, seconds: float) -> ProcessUsage | None:
    """The present usage of process `pid`; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text().splitlines()
        handles = sum(1 for _ in (folder / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/status").exists():
            raise PenumbraError("there is no /proc: measuring a node needs Linux") from None
        return None
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    if "VmRSS" not in status:  # a zombie
        return None
    return ProcessUsage(
        seconds, int(status["VmRSS"].split()[0]) / 1024, handles, int(status["Threads"])
    )
