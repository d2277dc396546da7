"""Speed-up by a second worker: the same bags on Ray with one core, and with two.

Every worker has one thread. Time is from the start of the first bag to the last result: it does not
include starting Ray, but includes contention between the workers. The cache of samples is empty at
the start of every run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tqdm import tqdm

from penumbra.bags import write_drive
from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.offline.scenes import Camera
from penumbra.offline.scenes.street_drive import street_drive
from penumbra.verification.fleet import Job, VerificationSettings, jobs_of
from penumbra.verification.on_ray import on_ray

BAGS, FRAMES = 4, 2  # an even number of bags for two workers
WORKERS = (1, 2)


@dataclass(frozen=True)
class FleetSpeedUp:
    """Seconds of each round by number of workers, and the speed-up of two over one."""

    bundle: str
    bags: int
    frames: int
    samples: int
    width: int
    height: int
    seconds: dict[int, list[float]]
    ratio: float


def measure(
    bundle: Bundle, width: int, height: int, samples: int, rounds: int, runner: str = "auto"
) -> FleetSpeedUp:
    """Alternately with one worker and with two; the ratio is the median over the rounds."""
    seconds: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    with TemporaryDirectory(prefix="penumbra-fleet-") as folder:
        bags = [Path(folder) / f"drive-{seed}" for seed in range(BAGS)]
        for seed, bag in enumerate(bags):
            camera = Camera(width=width, height=height)
            write_drive(street_drive(seed, FRAMES / 5, 5.0, camera=camera), bag)
        settings = VerificationSettings(str(bundle.path), samples, runner=runner, threads=1)
        jobs = jobs_of(bags, settings, bundle)
        with tqdm(total=rounds * len(WORKERS) * BAGS, unit="bag", leave=False) as bar:
            for _ in range(rounds):
                for workers in WORKERS:
                    seconds[workers].append(_time(jobs, workers, bar))
    one, two = (np.asarray(seconds[workers]) for workers in WORKERS)
    ratio = float(np.median(one / two))
    return FleetSpeedUp(bundle.name, BAGS, FRAMES, samples, width, height, seconds, ratio)


def _time(jobs: Sequence[Job], workers: int, bar: tqdm) -> float:
    before = os.environ.get("PENUMBRA_CACHE")
    with TemporaryDirectory(prefix="penumbra-fleet-") as cache:
        os.environ["PENUMBRA_CACHE"] = cache  # inherited by Ray, which starts later
        try:
            results = []
            for job, result in on_ray(threads=1, workers=workers)(jobs):
                if result.error:
                    raise PenumbraError(f"{job.bag.name} with {workers} workers: {result.error}")
                results.append(result)
                bar.update()
        finally:
            os.environ.pop("PENUMBRA_CACHE")
            if before is not None:
                os.environ["PENUMBRA_CACHE"] = before
    return max(result.ended for result in results) - min(result.started for result in results)
