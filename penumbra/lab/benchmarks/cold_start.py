"""A bundle's first frame in a fresh Python process, as after power-on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError

# Peak memory is VmHWM: getrusage's ru_maxrss starts at the peak of the parent process.
_PROGRAM = """
import json, pathlib, sys, time
begin = time.perf_counter()
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings
import numpy as np
imported = time.perf_counter()
config = PipelineConfig(sys.argv[2], settings=RunnerSettings(threads=int(sys.argv[3])))
with Pipeline(sys.argv[1], config) as p:
    loaded = time.perf_counter()
    image = np.zeros((int(sys.argv[4]), int(sys.argv[5]), 3), np.uint8)
    p.process(image)
    end = time.perf_counter()
    cpu = time.process_time()
    for _ in range(int(sys.argv[6]) - 1):
        p.process(image)
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(json.dumps({
        "runner": p.description, "seconds": end - begin, "import_seconds": imported - begin,
        "load_seconds": loaded - imported, "infer_seconds": end - loaded, "cpu_seconds": cpu,
        "megabytes": peak / 1024,
    }))
"""


@dataclass(frozen=True)
class ColdStart:
    """From the first import to the first result, in a fresh process."""

    runner: str
    seconds: float
    import_seconds: float
    load_seconds: float
    infer_seconds: float
    cpu_seconds: float
    megabytes: float  # peak resident memory, over all frames


def fresh_process(
    bundle: Bundle, size: tuple[int, int], runner: str, threads: int, frames: int = 1
) -> ColdStart:
    """Start Python, load the bundle, process frames of `size` (height, width)."""
    words = [str(bundle.path.resolve()), runner, *map(str, (threads, *size, frames))]
    command = [sys.executable, "-c", _PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PenumbraError(f"the first frame failed: {done.stderr.strip()[-300:]}")
    return ColdStart(**json.loads(done.stdout.splitlines()[-1]))
