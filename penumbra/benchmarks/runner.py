"""One bundle on one runner: the first frame from a cold start, and what every further one costs.

All times of a comparison come from one interleaved run; the ratios are what can be repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from penumbra.benchmarks.timing import Timing, interleaved, ratio
from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.pipeline import Config, Pipeline
from penumbra.runners import Settings

# What a vehicle does once after switching on, with nothing imported before.
_COLD_START = """
import json, resource, sys, time
begin = time.perf_counter()
from penumbra.pipeline import Config, Pipeline
from penumbra.runners import Settings
import numpy as np
imported = time.perf_counter()
with Pipeline(sys.argv[1], Config(sys.argv[2], settings=Settings(threads=int(sys.argv[3])))) as p:
    loaded = time.perf_counter()
    p.process(np.zeros((int(sys.argv[4]), int(sys.argv[5]), 3), np.uint8))
    end = time.perf_counter()
    print(json.dumps({
        "import": imported - begin, "load": loaded - imported, "infer": end - loaded,
        "cpu": time.process_time(), "runner": p.runner.description,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))
"""


@dataclass(frozen=True)
class ColdStart:
    """From the first import to the first result, in a process of its own (median of several)."""

    runner: str
    seconds: float
    import_seconds: float
    load_seconds: float
    infer_seconds: float
    cpu_seconds: float
    megabytes: float


@dataclass(frozen=True)
class Comparison:
    """One line: how much longer `over` takes than `under`."""

    over: str
    under: str
    ratio: float
    over_ms: float
    over_p99_ms: float
    under_ms: float


def cold_start(
    bundle: Bundle, size: tuple[int, int], runner: str, threads: int, repetitions: int = 5
) -> ColdStart:
    """Start a fresh Python so many times; the run with the median total is returned."""
    words = [str(bundle.path.resolve()), runner, str(threads), *map(str, size)]
    runs = []
    for _ in range(repetitions):
        done = subprocess.run(
            [sys.executable, "-c", _COLD_START, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PenumbraError(f"the first frame failed: {done.stderr.strip()[-300:]}")
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    runs.sort(key=_total)
    run = runs[len(runs) // 2]
    return ColdStart(
        run["runner"], _total(run), run["import"], run["load"], run["infer"], run["cpu"],
        run["megabytes"],
    )  # fmt: skip


def _total(run: dict[str, float]) -> float:
    return run["import"] + run["load"] + run["infer"]


def compare(
    bundle: Bundle,
    size: tuple[int, int],
    runner: str,
    threads: int,
    repetitions: int,
    samples: int,
) -> list[Comparison]:
    """The bundle on its runner against the plain network there, and against PyTorch."""
    import torch

    from penumbra.calibration import walk_of_bundle
    from penumbra.export import plain_bundle
    from penumbra.models import load_model
    from penumbra.montecarlo import monte_carlo

    torch.set_num_threads(threads or torch.get_num_threads())
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    settings = Config(runner, settings=Settings(threads=threads))
    model = load_model(bundle.weights_file)
    head = _probabilities_of(model)
    x = torch.rand(1, 3, *(model.config.get("size") or size))
    walk = walk_of_bundle(bundle, model, folded=False)
    with TemporaryDirectory() as folder:
        plain = plain_bundle(bundle, Path(folder) / "plain")
        with Pipeline(bundle, settings) as ours, Pipeline(plain, settings) as without:
            candidates: dict[str, Callable[[], Any]] = {
                "propagated": lambda: ours.process(image),
                "plain": lambda: without.process(image),
                "PyTorch, propagated": _without_gradients(lambda: walk(x)),
                "PyTorch, plain": _without_gradients(lambda: head(x)),
            }
            times = interleaved(candidates, repetitions)
    slow = {f"PyTorch, MC-{samples}": lambda: monte_carlo(head, x, samples=samples)}
    times |= interleaved(slow, max(1, repetitions // 10), warm_up=0)
    pairs = [
        ("propagated", "plain"),
        ("PyTorch, propagated", "PyTorch, plain"),
        ("PyTorch, propagated", "propagated"),
        (*slow, "PyTorch, propagated"),
        (*slow, "propagated"),
    ]
    return [_comparison(over, under, times) for over, under in pairs]


def _comparison(over: str, under: str, times: dict[str, Timing]) -> Comparison:
    a, b = times[over], times[under]
    paired = len(a.seconds) == len(b.seconds)
    return Comparison(
        over,
        under,
        ratio(a, b) if paired else a.median / b.median,
        a.median * 1e3,
        a.p99 * 1e3,
        b.median * 1e3,
    )


def _without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    def timed() -> Any:
        with torch.inference_mode():
            return call()

    return timed


def _probabilities_of(model: Any) -> Any:
    """What Monte Carlo samples: class probabilities, or the disparity itself."""
    from penumbra.models.segnet import Probabilities, SegNet

    return Probabilities(model).eval() if isinstance(model, SegNet) else model
