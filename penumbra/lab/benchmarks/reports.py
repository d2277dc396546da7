"""What each measurement prints, what it leaves for machines, and which goals it speaks to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.lab.benchmarks.goals import network_kind
from penumbra.share import bundle_folder
from penumbra.vehicle.pipeline import PipelineConfig
from penumbra.vehicle.runners import RUNNERS, RunnerSettings, runner_class

NODE_MS = 100.0  # of the bare model that the node is held against
CAMERA_FRAMES = 20  # in a row with one camera, then as many with two


@dataclass(frozen=True)
class BenchmarkOptions:
    """What the user asked for."""

    bundle: str | None = None
    size: tuple[int, int] | None = None  # width, height
    repetitions: int = 20
    threads: int = 0
    runner: str = "auto"
    samples: int = 50
    images: Path | None = None
    frames: int = 4

    def load(self, default: str | None = None) -> Bundle:
        name = self.bundle or default
        if name is None:
            raise PenumbraError("--bundle is missing: give the folder of a bundle, or its name")
        return load_bundle(bundle_folder(name))

    @property
    def width_height(self) -> tuple[int, int]:
        return self.size or (480, 360)

    @property
    def height_width(self) -> tuple[int, int]:
        width, height = self.width_height
        return height, width


@dataclass(frozen=True)
class BenchmarkReport:
    """Figures for machines, and numbers by the keys of the goals."""

    figures: dict[str, Any]
    measured: dict[str, float | str] = field(default_factory=dict)


def propagation(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.lab.benchmarks.propagation import costs

    threads = asked.threads or 1  # ratios of plain arithmetic repeat best on one
    found = costs(asked.repetitions, threads)
    for cost in found:
        print(f"{cost.name:24} {cost.ratio:6.3f}   {_ms(cost.propagated)} / {_ms(cost.plain)}")
    figures = {"threads": threads, "costs": [asdict(cost) for cost in found]}
    return BenchmarkReport(figures, {cost.name: cost.ratio for cost in found})


def _ms(facts: dict[str, float]) -> str:
    return f"{facts['median_ms']:.1f} ms (p99 {facts['p99_ms']:.1f})"


def runner(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.lab.benchmarks import runner as benchmark

    bundle, (width, height) = asked.load(), asked.width_height
    first = benchmark.cold_start(bundle, (height, width), asked.runner, asked.threads)
    print(f"{bundle.name} {width}x{height} on {first.runner}")
    print(
        f"first frame {first.seconds:.2f} s (import {first.import_seconds:.2f}, load "
        f"{first.load_seconds:.2f}, infer {first.infer_seconds:.2f}; CPU {first.cpu_seconds:.2f}), "
        f"{first.megabytes:.0f} MB",
        flush=True,
    )
    lines = benchmark.compare(
        bundle, (height, width), asked.runner, asked.threads, asked.repetitions, asked.samples
    )
    for line in lines:
        print(
            f"{line.over + ' / ' + line.under:46}  {line.ratio:7.3f}   {line.over_ms:7.1f} ms (p99 "
            f"{line.over_p99_ms:.1f}) / {line.under_ms:.1f} ms (p99 {line.under_p99_ms:.1f})"
        )
    figures = {"first_frame": asdict(first), "comparisons": [asdict(line) for line in lines]}
    return BenchmarkReport(figures, benchmark.measured(bundle, lines, asked.samples))


def node(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.replay.process import need_ros

    need_ros()
    from penumbra.replay.node_benchmark import measure

    def measured(bundle: Bundle) -> Any:
        frames = max(asked.repetitions, 10)
        return measure(bundle, frames, *asked.width_height, asked.runner, asked.threads)

    if asked.bundle is not None:
        found = measured(asked.load())
    else:
        from penumbra.lab.benchmarks.untrained import bundle_of_about

        with TemporaryDirectory() as folder:
            how = PipelineConfig(asked.runner, settings=RunnerSettings(threads=asked.threads))
            found = measured(bundle_of_about(NODE_MS, Path(folder), asked.height_width, how))
    print(f"{found.bundle} {found.width}x{found.height} on {found.runner}, {found.frames} frames")
    print(f"bare model      {found.bare_p50:8.2f} ms (p99 {found.bare_p99:.2f})")
    print(
        f"in the node     {found.total_p50:8.2f} ms (p99 {found.total_p99:.2f}), from arrival to "
        f"the last output: {found.ratio:.3f} times the bare model; inference {found.infer_p50:.2f}"
    )
    print(
        f"node's overhead {found.overhead_p50:8.2f} ms (p99 {found.overhead_p99:.2f}): hand-over "
        f"{found.wait_p50:.2f}, conversion {found.convert_p50:.2f}, post-processing "
        f"{found.postprocess_p50:.2f}, messages {found.publish_p50:.2f}"
    )
    print(f"round trip      {found.round_trip_p50:8.2f} ms, image sent to last output received")
    goals = {"node": found.ratio, "node, overhead": found.overhead_p50}
    return BenchmarkReport(
        {"node": found.as_dict()}, goals if asked.width_height == (480, 360) else {}
    )


def scaling(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.lab.benchmarks import scaling as benchmark

    bundle = asked.load("segnet-street")
    how = asked.runner, asked.threads, asked.repetitions
    lines = {
        "pixels": benchmark.with_pixels(bundle, *how),
        "multiply-adds": benchmark.with_multiply_adds(*how),
    }
    for name, line in lines.items():
        what = bundle.name if name == "pixels" else "SegNet of several widths"
        print(f"{what}: time grows with the {name} to the power of {line.slope:.3f}")
        for point in line.points:
            print(f"  {point.name:14} {point.amount:14,d}   {point.median_ms:9.2f} ms "
                  f"(p99 {point.p99_ms:.2f})")  # fmt: skip
    slopes = {name: line.slope for name, line in lines.items()}
    return BenchmarkReport(
        {"scaling": {name: asdict(line) for name, line in lines.items()}}, slopes
    )


def cameras(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.replay.process import need_ros

    need_ros()
    from penumbra.replay.node_benchmark import compare_cameras

    bundle = asked.load("segnet-street")
    rounds = max(3, asked.repetitions // 2)
    how = *asked.width_height, asked.runner, asked.threads
    found = compare_cameras(bundle, rounds, CAMERA_FRAMES, *how)
    print(
        f"{found.bundle} {found.width}x{found.height} on {found.runner}: one camera "
        f"{found.one_camera_fps:.2f} frames/s, two together {found.two_cameras_fps:.2f}, "
        f"{found.ratio:.3f} times as many"
    )
    return BenchmarkReport({"cameras": asdict(found)}, {"cameras": found.ratio})


def memory(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.lab.benchmarks.memory import measure

    bundle = asked.load("segnet-camvid-encdec")
    processes = max(3, asked.repetitions // 4)
    found = measure(bundle, asked.height_width, asked.runner, asked.threads, processes)
    print(
        f"{bundle.name} on {found.runner}: peak {found.propagated_mib:.0f} MiB propagated, "
        f"{found.deterministic_mib:.0f} MiB deterministic, {found.ratio:.3f} times as much"
    )
    return BenchmarkReport(
        {"memory": asdict(found)}, {f"{network_kind(bundle)}/memory": found.ratio}
    )


def fleet(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.lab.benchmarks.fleet import measure

    bundle = asked.load("segnet-street")
    rounds = max(1, asked.repetitions // 7)
    found = measure(bundle, *asked.width_height, asked.samples, rounds, asked.runner)
    one, two = (", ".join(f"{value:.1f}" for value in found.seconds[n]) for n in (1, 2))
    print(
        f"{found.bundle}: {found.bags} bags of {found.frames} frames {found.width}x{found.height}, "
        f"{found.samples} samples: one worker {one} s, two workers {two} s, {found.ratio:.3f} "
        "times as fast"
    )
    return BenchmarkReport({"fleet": asdict(found)}, {"fleet": found.ratio})


def parity(asked: BenchmarkOptions) -> BenchmarkReport:
    from penumbra.verification import parity as held

    if asked.images is None:
        raise PenumbraError("--images is missing: give a folder of pictures of ordinary streets")
    if asked.frames < 1:
        raise PenumbraError(f"--frames is {asked.frames}: at least one picture is needed")
    bundle = asked.load()
    names = [asked.runner]
    if asked.runner == "auto":
        installed = [
            name for name in RUNNERS if runner_class(name).obstacle(RunnerSettings()) is None
        ]
        names = [name for name in installed if not name.startswith("tensorrt")]
    sizes = held.SIZES
    if asked.size or bundle.input.height is not None:
        sizes = [asked.height_width if asked.size else (bundle.input.height, bundle.input.width)]
    files = held.spread(asked.images, asked.frames)
    print(
        f"share of equal labels (goal {held.PREDICTION}) and uncertainty "
        f"({held.UNCERTAINTY}); flips of poolings; the shares with the same choices"
    )
    found = []
    for one in held.measure(bundle, files, names, sizes):
        found.append(asdict(one))
        print(
            f"{one.width}x{one.height} {one.image:20.20} {one.runner:12} "
            f"{one.free.prediction:.6f} {one.free.uncertainty:.5f}  "
            f"{one.flipped:4} of {one.windows} (within {one.widest:.0e})  "
            f"{one.aligned.prediction:.6f} {one.aligned.uncertainty:.5f}"
            f"{'' if one.aligned.enough else '  missed'}",
            flush=True,
        )
    return BenchmarkReport({"parity": found})


REPORTS: dict[str, Callable[[BenchmarkOptions], BenchmarkReport]] = {
    "propagation": propagation,
    "runner": runner,
    "node": node,
    "scaling": scaling,
    "cameras": cameras,
    "memory": memory,
    "fleet": fleet,
    "parity": parity,
}
