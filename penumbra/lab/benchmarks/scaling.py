"""How the time of a propagated frame scales with the pixels, and with the multiply-adds.

The slope b of the least-squares line log t = a + b log n: 1 is proportional, less is better than
proportional. All sizes are timed in one interleaved run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tqdm import tqdm

from penumbra.bundle import Bundle
from penumbra.lab.timing import interleaved
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings

# Height, width. All but those of CamVid and KITTI are multiples of 32, to which SegNet pads.
SIZES = ((96, 128), (128, 192), (192, 256), (256, 384), (360, 480), (480, 640), (375, 1242))
WIDTHS = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)
WIDTH_SIZE = (192, 256)


@dataclass(frozen=True)
class ScalingPoint:
    """One size of image or network; `amount` is the number of pixels or multiply-adds."""

    name: str
    amount: int
    median_ms: float
    p99_ms: float


@dataclass(frozen=True)
class ScalingLine:
    """Points in the order of their amount, and the slope of the line through them."""

    slope: float
    points: tuple[ScalingPoint, ...]


def with_pixels(
    bundle: Bundle,
    runner: str,
    threads: int,
    repetitions: int,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> ScalingLine:
    """A bundle for images of any size, on images of all `sizes`."""
    # A pipeline for each: a runner keeps compiled graphs for at most two sizes.
    jobs = {f"{width}x{height}": (bundle, (height, width)) for height, width in sizes}
    amounts = {f"{width}x{height}": height * width for height, width in sizes}
    return _line(jobs, amounts, runner, threads, repetitions)


def with_multiply_adds(
    runner: str,
    threads: int,
    repetitions: int,
    widths: Sequence[float] = WIDTHS,
    size: tuple[int, int] = WIDTH_SIZE,
) -> ScalingLine:
    """Untrained SegNets of several widths, on images of one size.

    The amounts are the multiply-adds of the deterministic network, to which those of the propagated
    one are proportional.
    """
    from penumbra.lab.benchmarks.untrained import multiply_adds, untrained_bundle, untrained_segnet

    with TemporaryDirectory() as folder:
        jobs, amounts = {}, {}
        for width in tqdm(widths, desc="export", leave=False):
            name = f"width {width:g}"
            jobs[name] = untrained_bundle(width, Path(folder) / name, size), size
            amounts[name] = multiply_adds(untrained_segnet(width), size)
        return _line(jobs, amounts, runner, threads, repetitions)


def slope(amounts: Sequence[float], times: Sequence[float]) -> float:
    """The exponent of time as a function of the amount: least squares of the logarithms."""
    return float(np.polyfit(np.log(amounts), np.log(times), 1)[0])


def _line(
    jobs: Mapping[str, tuple[Bundle, tuple[int, int]]],
    amounts: Mapping[str, int],
    runner: str,
    threads: int,
    repetitions: int,
) -> ScalingLine:
    config = PipelineConfig(runner, settings=RunnerSettings(threads=threads))
    noise = np.random.default_rng(0)
    with ExitStack() as open_pipelines:
        calls = {}
        for name, (bundle, size) in jobs.items():
            pipeline = open_pipelines.enter_context(Pipeline(bundle, config))
            image = noise.integers(0, 256, (*size, 3), dtype=np.uint8)
            calls[name] = partial(pipeline.process, image)
        times = interleaved(calls, repetitions)
    points = [
        ScalingPoint(name, amounts[name], times[name].median * 1e3, times[name].p99 * 1e3)
        for name in sorted(amounts, key=amounts.__getitem__)
    ]
    found = slope([p.amount for p in points], [p.median_ms for p in points])
    return ScalingLine(found, tuple(points))
