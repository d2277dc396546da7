"""Measure what uncertainty costs, as ratios within one run.

propagation: propagated networks against the plain networks they are made from.
runner: a bundle's first frame from a cold start, and its frames against the plain network and
against Monte Carlo.
parity: how far a bundle's CPU runners agree with PyTorch's propagation, on pictures.
node: what the ROS 2 node adds to the bare model, over DDS, with all raw outputs subscribed to.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

if TYPE_CHECKING:
    from penumbra.bundle import Bundle

EXAMPLE = "penumbra benchmark propagation --repetitions 20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, how often, with how many threads."""
    parser.add_argument("what", choices=list(_MEASURES), help="what to measure")
    parser.add_argument("--repetitions", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument(
        "--threads",
        type=int,
        help="default: one per core, as a user gets; propagation: 1",
    )
    parser.add_argument("--bundle", type=Path, help="runner, parity, node: what to run")
    parser.add_argument(
        "--runner", default="auto", help="which one (default: auto; parity: all of the CPU)"
    )
    parser.add_argument(
        "--size",
        metavar="WIDTHxHEIGHT",
        help="of images (default: 480x360; parity: 480x360, 1242x375 and 321x243)",
    )
    parser.add_argument("--images", type=Path, help="parity: folder of pictures")
    parser.add_argument("--frames", type=int, default=4, help="parity: of the pictures (4)")
    parser.add_argument("--samples", type=int, default=50, help="runner: of Monte Carlo")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")


def run(arguments: argparse.Namespace) -> int:
    """Print a table of ratios; with `--json` write them to a file as well."""
    if arguments.threads is None:  # ratios of plain arithmetic repeat best on one
        arguments.threads = 1 if arguments.what == "propagation" else 0
    figures = _MEASURES[arguments.what](arguments)
    if arguments.json:
        from penumbra.benchmarks.timing import machine

        surroundings = {**machine(), "threads": arguments.threads}
        text = json.dumps({"machine": surroundings, **figures}, indent=2)
        write_atomically(arguments.json, text + "\n")
    return 0


def _propagation(arguments: argparse.Namespace) -> dict[str, Any]:
    from penumbra.benchmarks import propagation

    costs = propagation.costs(arguments.repetitions, arguments.threads)
    print(f"{'propagated / plain':44}  {'ratio':>6}  {'goal':>6}  {'plain':>9}  {'propagated':>10}")
    for cost in costs:
        print(
            f"{cost.name:44}  {cost.ratio:6.3f}  ≤ {cost.goal:4.2f}  {cost.plain_ms:6.1f} ms  "
            f"{cost.propagated_ms:7.1f} ms"
        )
    return {"costs": [asdict(cost) for cost in costs]}


def _runner(arguments: argparse.Namespace) -> dict[str, Any]:
    from penumbra.benchmarks import runner

    bundle, width, height = _bundle_and_size(arguments)
    first = runner.cold_start(bundle, (height, width), arguments.runner, arguments.threads)
    print(f"{bundle.name} {width}x{height} on {first.runner}")
    print(
        f"first frame {first.seconds:.2f} s (import {first.import_seconds:.2f}, load "
        f"{first.load_seconds:.2f}, infer {first.infer_seconds:.2f}; CPU {first.cpu_seconds:.2f}), "
        f"{first.megabytes:.0f} MB",
        flush=True,
    )
    table = runner.compare(
        bundle,
        (height, width),
        arguments.runner,
        arguments.threads,
        arguments.repetitions,
        arguments.samples,
    )
    for line in table:
        print(
            f"{line.over + ' / ' + line.under:46}  {line.ratio:7.3f}   "
            f"{line.over_ms:7.1f} ms (p99 {line.over_p99_ms:.1f}) / {line.under_ms:.1f} ms"
        )
    return {"first_frame": asdict(first), "comparisons": [asdict(line) for line in table]}


def _parity(arguments: argparse.Namespace) -> dict[str, Any]:
    from penumbra.runners import RUNNERS, runner_class
    from penumbra.runners.base import Settings
    from penumbra.verification import parity

    if arguments.images is None:
        raise PenumbraError("--images is missing: give a folder of pictures of ordinary streets")
    if arguments.frames < 1:
        raise PenumbraError(f"--frames is {arguments.frames}: at least one picture is needed")
    bundle = _bundle(arguments)
    names = [arguments.runner]
    if arguments.runner == "auto":
        installed = [name for name in RUNNERS if runner_class(name).obstacle(Settings()) is None]
        names = [name for name in installed if not name.startswith("tensorrt")]
    sizes = parity.SIZES
    if arguments.size or bundle.input.height is not None:
        width, height = _size(arguments)
        fixed = bundle.input.height, bundle.input.width
        sizes = [(height, width) if arguments.size else fixed]
    files = parity.spread(arguments.images, arguments.frames)
    print(
        f"share of equal labels (goal {parity.PREDICTION}) and uncertainty "
        f"({parity.UNCERTAINTY}); flips of poolings; the shares with the same choices"
    )
    found = []
    for one in parity.measure(bundle, files, names, sizes):
        found.append(asdict(one))
        print(
            f"{one.width}x{one.height} {one.image:20.20} {one.runner:12} "
            f"{one.free.prediction:.6f} {one.free.uncertainty:.5f}  "
            f"{one.flipped:4} of {one.windows} (within {one.widest:.0e})  "
            f"{one.aligned.prediction:.6f} {one.aligned.uncertainty:.5f}"
            f"{'' if one.aligned.enough else '  missed'}",
            flush=True,
        )
    return {"parity": found}


def _node(arguments: argparse.Namespace) -> dict[str, Any]:
    from penumbra.nodes import benchmark

    bundle, width, height = _bundle_and_size(arguments)
    found = benchmark.measure(
        bundle, arguments.repetitions, width, height, arguments.runner, arguments.threads
    )
    print(f"{bundle.name} {width}x{height} on {found.runner}, {found.frames} frames, medians")
    print(f"bare model      {found.bare_p50:8.2f} ms")
    print(f"inside the node {found.infer_p50:8.2f} ms")
    print(
        f"node's overhead {found.overhead_p50:8.2f} ms (p99 {found.overhead_p99:.2f}): hand-over "
        f"{found.wait_p50:.2f}, conversion {found.convert_p50:.2f}, post-processing "
        f"{found.postprocess_p50:.2f}, messages {found.publish_p50:.2f}"
    )
    print(f"round trip      {found.round_trip_p50:8.2f} ms, image sent to last output received")
    return {"node": found.as_dict()}


def _bundle_and_size(arguments: argparse.Namespace) -> tuple[Bundle, int, int]:
    return _bundle(arguments), *_size(arguments)


def _bundle(arguments: argparse.Namespace) -> Bundle:
    from penumbra.bundle import load_bundle

    if arguments.bundle is None:
        raise PenumbraError("--bundle is missing: give the folder of a bundle, config/models/NAME")
    return load_bundle(arguments.bundle)


def _size(arguments: argparse.Namespace) -> tuple[int, int]:
    text = arguments.size or "480x360"
    try:
        width, height = map(int, text.split("x"))
    except ValueError:
        raise PenumbraError(f"--size {text!r}: write it as WIDTHxHEIGHT") from None
    return width, height


_MEASURES = {"propagation": _propagation, "runner": _runner, "parity": _parity, "node": _node}
