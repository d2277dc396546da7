"""Peak memory of a propagated network relative to the same network without noise.

Both run alternately in fresh processes, so that neither affects the peak of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tqdm import tqdm

from penumbra.bundle import Bundle
from penumbra.lab.benchmarks.cold_start import fresh_process

FRAMES = 3  # in each process; later frames show memory that is retained


@dataclass(frozen=True)
class PeakMemory:
    """Peak resident memory in MiB of whole processes, Python and the runtime included."""

    runner: str
    ratio: float
    propagated_mib: float
    deterministic_mib: float
    processes: int  # of each


def measure(
    bundle: Bundle, size: tuple[int, int], runner: str, threads: int, processes: int
) -> PeakMemory:
    """Medians over the processes of each; the ratio is the median over the rounds."""
    from penumbra.offline.export import plain_bundle

    with TemporaryDirectory() as folder:
        plain = plain_bundle(bundle, Path(folder) / "plain")
        rounds = []
        for _ in tqdm(range(processes), unit="round", leave=False):
            ours, theirs = (
                fresh_process(one, size, runner, threads, FRAMES) for one in (bundle, plain)
            )
            rounds.append((ours.megabytes, theirs.megabytes))
    return PeakMemory(
        ours.runner,
        median(ours / theirs for ours, theirs in rounds),
        median(ours for ours, _ in rounds),
        median(theirs for _, theirs in rounds),
        processes,
    )
