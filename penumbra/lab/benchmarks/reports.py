"""The measurements: what each prints, stores as JSON, and contributes to the goals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from penumbra.bundle import Bundle, load_bundle
from penumbra.errors import PenumbraError
from penumbra.lab.benchmarks.goals import network_kind
from penumbra.share import bundle_folder
from penumbra.vehicle.pipeline import PipelineConfig
from penumbra.vehicle.runners import RUNNERS, RunnerSettings, runner_class

if TYPE_CHECKING:
    from penumbra.replay.node_benchmark import NodeOverhead

NODE_MS = 100.0  # of the bare model that the node is compared with
CAMERA_FRAMES = 20  # in a row with one camera, then as many with two


@dataclass(frozen=True)
class BenchmarkOptions:
    """The user's options, see `penumbra benchmark --help`."""

    bundle: str | None = None
    size: tuple[int, int] | None = None  # width, height
    repetitions: int = 20
    threads: int = 0
    runner: str = "auto"
    samples: int = 50
    images: Path | None = None
    frames: int = 4

    def load(self, default: str | None = None) -> Bundle:
        """The chosen bundle, or else the default of the measurement."""
        name = self.bundle or default
        if name is None:
            raise PenumbraError("--bundle is missing: give the folder of a bundle, or its name")
        return load_bundle(bundle_folder(name))

    @property
    def width_height(self) -> tuple[int, int]:
        """The size of images."""
        return self.size or (480, 360)

    @property
    def height_width(self) -> tuple[int, int]:
        """The size of images in the order of array axes."""
        width, height = self.width_height
        return height, width


@dataclass(frozen=True)
class BenchmarkReport:
    """All figures, for JSON, and those that have a goal, by its key."""

    figures: dict[str, Any]
    measured: dict[str, float | str] = field(default_factory=dict)


def propagation(options: BenchmarkOptions) -> BenchmarkReport:
    """Propagated networks relative to the plain networks."""
    from penumbra.lab.benchmarks.propagation import propagation_costs

    threads = options.threads or 1  # ratios of plain arithmetic vary least on one thread
    found = propagation_costs(options.repetitions, threads)
    for cost in found:
        print(f"{cost.name:24} {cost.ratio:6.3f}   {_ms(cost.propagated)} / {_ms(cost.plain)}")
    figures = {"threads": threads, "costs": [asdict(cost) for cost in found]}
    return BenchmarkReport(figures, {cost.name: cost.ratio for cost in found})


def _ms(facts: dict[str, float]) -> str:
    return f"{facts['median_ms']:.1f} ms (p99 {facts['p99_ms']:.1f})"


def runner(options: BenchmarkOptions) -> BenchmarkReport:
    """A bundle's first frame, and its later frames relative to other forms of the network."""
    from penumbra.lab.benchmarks import runner as benchmark

    bundle, (width, height) = options.load(), options.width_height
    first = benchmark.cold_start(bundle, (height, width), options.runner, options.threads)
    print(f"{bundle.name} {width}x{height} on {first.runner}")
    print(
        f"first frame {first.seconds:.2f} s (import {first.import_seconds:.2f}, load "
        f"{first.load_seconds:.2f}, infer {first.infer_seconds:.2f}; CPU {first.cpu_seconds:.2f}), "
        f"{first.megabytes:.0f} MB",
        flush=True,
    )
    lines = benchmark.compare(
        bundle,
        (height, width),
        options.runner,
        options.threads,
        options.repetitions,
        options.samples,
    )
    for line in lines:
        print(
            f"{line.over + ' / ' + line.under:46}  {line.ratio:7.3f}   {line.over_ms:7.1f} ms (p99 "
            f"{line.over_p99_ms:.1f}) / {line.under_ms:.1f} ms (p99 {line.under_p99_ms:.1f})"
        )
    figures = {"first_frame": asdict(first), "comparisons": [asdict(line) for line in lines]}
    return BenchmarkReport(figures, benchmark.measured(bundle, lines, options.samples))


def node(options: BenchmarkOptions) -> BenchmarkReport:
    """The overhead of the ROS 2 node over the bare model."""
    from penumbra.replay.process import need_ros

    need_ros()
    from penumbra.replay.node_benchmark import measure

    def overhead(bundle: Bundle) -> NodeOverhead:
        frames = max(options.repetitions, 10)
        return measure(bundle, frames, *options.width_height, options.runner, options.threads)

    if options.bundle is not None:
        found = overhead(options.load())
    else:
        from penumbra.lab.benchmarks.untrained import bundle_of_about

        with TemporaryDirectory() as folder:
            settings = RunnerSettings(threads=options.threads)
            config = PipelineConfig(options.runner, settings=settings)
            found = overhead(bundle_of_about(NODE_MS, Path(folder), options.height_width, config))
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
    goals: dict[str, float | str] = {"node": found.ratio, "node, overhead": found.overhead_p50}
    is_goal_size = options.width_height == (480, 360)
    return BenchmarkReport({"node": found.as_dict()}, goals if is_goal_size else {})


def scaling(options: BenchmarkOptions) -> BenchmarkReport:
    """How time scales with the pixels, and with the multiply-adds."""
    from penumbra.lab.benchmarks import scaling as benchmark

    bundle = options.load("segnet-street")
    how = options.runner, options.threads, options.repetitions
    lines = {
        "pixels": benchmark.with_pixels(bundle, *how),
        "multiply-adds": benchmark.with_multiply_adds(*how),
    }
    for name, line in lines.items():
        what = bundle.name if name == "pixels" else "SegNet of several widths"
        print(f"{what}: time is proportional to the {name} to the power of {line.slope:.3f}")
        for point in line.points:
            print(f"  {point.name:14} {point.amount:14,d}   {point.median_ms:9.2f} ms "
                  f"(p99 {point.p99_ms:.2f})")  # fmt: skip
    figures = {"scaling": {name: asdict(line) for name, line in lines.items()}}
    return BenchmarkReport(figures, {name: line.slope for name, line in lines.items()})


def cameras(options: BenchmarkOptions) -> BenchmarkReport:
    """The throughput of two cameras on one engine relative to one camera."""
    from penumbra.replay.process import need_ros

    need_ros()
    from penumbra.replay.node_benchmark import compare_cameras

    bundle = options.load("segnet-street")
    rounds = max(3, options.repetitions // 2)
    how = *options.width_height, options.runner, options.threads
    found = compare_cameras(bundle, rounds, CAMERA_FRAMES, *how)
    print(
        f"{found.bundle} {found.width}x{found.height} on {found.runner}: one camera "
        f"{found.one_camera_fps:.2f} frames/s, two together {found.two_cameras_fps:.2f}, "
        f"{found.ratio:.3f} times as many"
    )
    return BenchmarkReport({"cameras": asdict(found)}, {"cameras": found.ratio})


def memory(options: BenchmarkOptions) -> BenchmarkReport:
    """Peak memory relative to the network without noise."""
    from penumbra.lab.benchmarks.memory import measure

    bundle = options.load("segnet-camvid-encdec")
    processes = max(3, options.repetitions // 4)
    found = measure(bundle, options.height_width, options.runner, options.threads, processes)
    print(
        f"{bundle.name} on {found.runner}: peak {found.propagated_mib:.0f} MiB propagated, "
        f"{found.deterministic_mib:.0f} MiB deterministic, {found.ratio:.3f} times as much"
    )
    goals: dict[str, float | str] = {f"{network_kind(bundle)}/memory": found.ratio}
    return BenchmarkReport({"memory": asdict(found)}, goals)


def fleet(options: BenchmarkOptions) -> BenchmarkReport:
    """The speed-up of verification on Ray by a second worker."""
    from penumbra.lab.benchmarks.fleet import measure

    bundle = options.load("segnet-street")
    rounds = max(1, options.repetitions // 7)
    found = measure(bundle, *options.width_height, options.samples, rounds, options.runner)
    one, two = (", ".join(f"{value:.1f}" for value in found.seconds[n]) for n in (1, 2))
    print(
        f"{found.bundle}: {found.bags} bags of {found.frames} frames {found.width}x{found.height}, "
        f"{found.samples} samples: one worker {one} s, two workers {two} s, {found.ratio:.3f} "
        "times as fast"
    )
    return BenchmarkReport({"fleet": asdict(found)}, {"fleet": found.ratio})


def guard(options: BenchmarkOptions) -> BenchmarkReport:
    """The reaction times of the guard to faults of the perception node."""
    from penumbra.replay.process import need_ros

    need_ros()
    from penumbra.replay.guard_benchmark import measure, reaction_table

    found = measure(options.repetitions)
    print(reaction_table(found))
    return BenchmarkReport({"guard": [asdict(line) for line in found]})


def parity(options: BenchmarkOptions) -> BenchmarkReport:
    """Agreement of the CPU runners with PyTorch's propagation."""
    from penumbra.verification import parity as benchmark

    if options.images is None:
        raise PenumbraError("--images is missing: give a folder of images of ordinary streets")
    if options.frames < 1:
        raise PenumbraError(f"--frames is {options.frames}: at least one image is needed")
    bundle = options.load()
    files = benchmark.spread(options.images, options.frames)
    print(
        f"share of equal labels (goal {benchmark.PREDICTION}) and uncertainty "
        f"({benchmark.UNCERTAINTY}); flipped poolings; the shares with aligned poolings"
    )
    found = []
    for one in benchmark.measure(bundle, files, _runners(options), _sizes(options, bundle)):
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


def _runners(options: BenchmarkOptions) -> list[str]:
    """The chosen runner; for auto all CPU runners that are installed."""
    if options.runner != "auto":
        return [options.runner]
    installed = [name for name in RUNNERS if runner_class(name).obstacle(RunnerSettings()) is None]
    return [name for name in installed if not name.startswith("tensorrt")]


def _sizes(options: BenchmarkOptions, bundle: Bundle) -> list[tuple[int, int]]:
    """Height and width of images: the chosen size, or the bundle's, or several."""
    from penumbra.verification.parity import SIZES

    if options.size:
        return [options.height_width]
    height, width = bundle.input.height, bundle.input.width
    return SIZES if height is None or width is None else [(height, width)]


REPORTS: dict[str, Callable[[BenchmarkOptions], BenchmarkReport]] = {
    "propagation": propagation,
    "runner": runner,
    "node": node,
    "scaling": scaling,
    "cameras": cameras,
    "memory": memory,
    "fleet": fleet,
    "guard": guard,
    "parity": parity,
}
