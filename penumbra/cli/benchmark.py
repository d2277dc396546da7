"""Measure what uncertainty costs, as ratios within one run.

propagation: propagated networks against the plain networks they are made from.
runner: a bundle's first frame from a cold start, and its frames against the network without noise
and against Monte Carlo.
node: what the ROS 2 node adds to the bare model, over DDS, with all raw outputs subscribed to.
scaling: how the time grows with the pixels, and with the multiply-adds.
cameras: frames per second of two cameras on one engine against one.
memory: the peak of a bundle against that of its network without noise, in fresh processes.
fleet: bags verified on Ray by two workers of one thread each against one.
all: these, for the shipped bundles, and one table of goals. With --json an interrupted run goes on
where it was.
parity: how far a bundle's CPU runners agree with PyTorch's propagation, on pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penumbra.errors import PenumbraError
from penumbra.options import width_and_height

EXAMPLE = "penumbra benchmark all --json benchmarks.json --plot benchmarks.png"
MEASURES = ("propagation", "runner", "node", "scaling", "cameras", "memory", "fleet", "parity",
            "all")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, how often, with how many threads."""
    parser.add_argument("what", choices=MEASURES, help="what to measure")
    parser.add_argument("--repetitions", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument(
        "--threads",
        type=int,
        help="default: one per core, as a user gets; propagation: 1",
    )
    parser.add_argument(
        "--bundle",
        help="what to run, a folder or a shipped model (default: node: a network of about 100 ms; "
        "scaling, cameras, fleet: segnet-street; memory: segnet-camvid-encdec; all: the shipped "
        "ones)",
    )
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
    parser.add_argument(
        "--samples", type=int, default=50, help="runner, fleet: of Monte Carlo (50)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.png)")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found and the table of goals; write and draw it. 1 if a part of all failed."""
    from penumbra.lab.benchmarks import suite
    from penumbra.lab.benchmarks.reports import REPORTS, BenchmarkOptions

    if arguments.repetitions < 1:
        raise PenumbraError(f"--repetitions is {arguments.repetitions}: give at least 1")
    asked = BenchmarkOptions(
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
        return 0 if suite.run(asked, arguments.json, arguments.plot) else 1
    report = REPORTS[arguments.what](asked)
    suite.finish(asked, report, arguments.json, arguments.plot)
    return 0
