"""Measure the cost of uncertainty, as ratios within one run.

propagation: propagated networks relative to the plain networks.
runner: a bundle's first frame after a cold start, and its later frames relative to the network
without noise and to Monte Carlo.
node: the overhead of the ROS 2 node over the bare model, over DDS, with all raw outputs subscribed.
scaling: how time scales with the pixels, and with the multiply-adds.
cameras: frames per second of two cameras on one engine relative to one.
memory: peak memory of a bundle relative to its network without noise, in fresh processes.
fleet: speed of verification on Ray with two workers of one thread relative to one.
all: all of these for the shipped bundles, and one table of goals. With --json an interrupted run
can be resumed.
guard: time from a fault of the perception node to the guard's safe = false, at least 30 faults of
each kind.
parity: agreement of a bundle's CPU runners with PyTorch's propagation, on images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penumbra.errors import PenumbraError
from penumbra.options import width_and_height

EXAMPLE = "penumbra benchmark all --json benchmarks.json --plot benchmarks.png"
MEASURES = ("propagation", "runner", "node", "scaling", "cameras", "memory", "fleet", "guard",
            "parity", "all")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and how."""
    parser.add_argument("what", choices=MEASURES, help="what to measure")
    parser.add_argument("--repetitions", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument(
        "--threads",
        type=int,
        help="CPU threads (default: one per core; propagation: 1)",
    )
    parser.add_argument(
        "--bundle",
        help="a folder or a shipped model (default: node: a network of about 100 ms; "
        "scaling, cameras, fleet: segnet-street; memory: segnet-camvid-encdec; all: the shipped "
        "ones)",
    )
    parser.add_argument(
        "--runner", default="auto", help="runner (default: auto; parity: all CPU runners)"
    )
    parser.add_argument(
        "--size",
        metavar="WIDTHxHEIGHT",
        help="size of images (default: 480x360; parity: 480x360, 1242x375 and 321x243)",
    )
    parser.add_argument("--images", type=Path, help="parity: folder of images")
    parser.add_argument(
        "--frames", type=int, default=4, help="parity: how many images (default: 4)"
    )
    parser.add_argument(
        "--samples", type=int, default=50, help="runner, fleet: Monte-Carlo samples (default: 50)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios (.png)")


def run(arguments: argparse.Namespace) -> int:
    """Print the figures and the table of goals; write and draw them. 1 if a part of `all` fails."""
    from penumbra.lab.benchmarks import suite
    from penumbra.lab.benchmarks.reports import REPORTS, BenchmarkOptions

    if arguments.repetitions < 1:
        raise PenumbraError(f"--repetitions is {arguments.repetitions}: give at least 1")
    options = BenchmarkOptions(
        arguments.bundle,
        width_and_height(arguments.size) if arguments.size else None,
        arguments.repetitions,
        arguments.threads or 0,
        arguments.runner,
        arguments.samples,
        arguments.images,
        arguments.frames,
    )
    if arguments.what == "all":
        return 0 if suite.run(options, arguments.json, arguments.plot) else 1
    report = REPORTS[arguments.what](options)
    suite.finish(options, report, arguments.json, arguments.plot)
    return 0
