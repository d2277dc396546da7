"""Measure what uncertainty costs, as ratios within one run.

propagation: propagated networks against the plain networks they are made from.
runner: a bundle's first frame from a cold start, and its frames against the plain network and
against Monte Carlo.
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
    parser.add_argument("--bundle", type=Path, help="runner, node: what to run")
    parser.add_argument("--runner", default="auto", help="runner, node: which one (default: auto)")
    parser.add_argument(
        "--size", default="480x360", help="runner, node: image size (default: 480x360)"
    )
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
    from penumbra.bundle import load_bundle

    if arguments.bundle is None:
        raise PenumbraError("--bundle is missing: give the folder of a bundle, config/models/NAME")
    try:
        width, height = map(int, arguments.size.split("x"))
    except ValueError:
        raise PenumbraError(f"--size {arguments.size!r}: write it as WIDTHxHEIGHT") from None
    return load_bundle(arguments.bundle), width, height


_MEASURES = {"propagation": _propagation, "runner": _runner, "node": _node}
