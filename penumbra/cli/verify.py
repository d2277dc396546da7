"""Verify the node against Monte Carlo on a bag, frame by frame.

The bag is sent through the real node in its own process; PyTorch samples the same frames from the
bundle's weights (slow, so each frame is cached under PENUMBRA_CACHE and an interrupted run can be
resumed). Prints the figures and the noise of the reference in them. Exit code 1 if a figure misses
the tolerance in the bundle's manifest (tolerances.monte_carlo).

For several bags, or a folder with bags, the result is one table, and one page that links to a page
for each bag. Results of an earlier run are reused; a bag that fails is listed with its error, and
the exit code is 2. With --ray the bags are distributed among workers.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    from penumbra.verification.facts import FrameFacts, SpeedFacts, VerificationFacts

EXAMPLE = "penumbra verify drive --bundle segnet-street --samples 300 --frames 8 --report report"
NOT_HELD, FAILURE = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The bags, the bundle, the reference, and what to write."""
    parser.add_argument("bags", type=Path, nargs="+", metavar="BAG", help="folder, or file .mcap "
                        ".db3 .bag; or a folder of bags")  # fmt: skip
    parser.add_argument("--bundle", required=True, metavar="B", help="folder, or a shipped model")
    parser.add_argument("--samples", type=int, default=300, metavar="N", help="Monte-Carlo "
                        "samples of each frame, an even number (default 300)")  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the samples (default 0)"
    )
    parser.add_argument("--frames", type=int, metavar="N", help="only N frames, spread evenly over "
                        "the bag")  # fmt: skip
    parser.add_argument("--topic", help="of the frames (default: the only images)")
    parser.add_argument("--runner", default="auto", help="of the node (default: auto)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of the node and of "
                        "PyTorch, for one bag (default: one per core; with --ray: 1)")  # fmt: skip
    parser.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help="one task per "
                        "bag on the Ray cluster at auto or HOST:PORT; without an address, on a "
                        "local cluster for this call")  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="DIR", help="write index.html, a page with "
                        "images, curves and tables, and figures.json")  # fmt: skip
    parser.add_argument("--video", type=Path, metavar="FILE", help="write the images as a film "
                        "(.mp4 or .avi)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, including "
                        "those of each frame; - prints them")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """0 if every tolerance is held, or none is stated."""
    from penumbra.bags import find_bags

    if arguments.threads < 0:
        raise PenumbraError(f"--threads is {arguments.threads}: give 0 (one per core) or more")
    bags = [bag for path in arguments.bags for bag in find_bags(path)]
    if bags == arguments.bags[:1] and arguments.ray is None:
        return _one(bags[0], arguments)
    return _many(bags, arguments)


def _one(bag: Path, arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from penumbra.files import write_atomically
    from penumbra.verification import verify

    facts = verify(
        bag,
        arguments.bundle,
        arguments.samples,
        seed=arguments.seed,
        frames=arguments.frames,
        runner=arguments.runner,
        threads=arguments.threads,
        topic=arguments.topic,
        report=arguments.report,
        video=arguments.video,
        progress=lambda work, total: tqdm(work, total=total, unit="", leave=False, disable=None),
    )
    text = json.dumps(facts.to_dict(), indent=1)
    if arguments.json is None or str(arguments.json) != "-":
        _print(facts)
    else:
        print(text)
    if arguments.json is not None and str(arguments.json) != "-":
        write_atomically(arguments.json, text)
    for kind, place in (("page", arguments.report and arguments.report / "index.html"),
                        ("film", arguments.video), ("figures", arguments.json)):  # fmt: skip
        if place is not None and str(place) != "-":
            print(f"{kind:<10} {place}")
    return 0 if facts.passed else NOT_HELD


def _many(bags: list[Path], arguments: argparse.Namespace) -> int:
    from functools import partial

    from tqdm import tqdm

    from penumbra.files import write_atomically
    from penumbra.verification.fleet import VerificationSettings, sequential, verify_all
    from penumbra.verification.on_ray import on_ray
    from penumbra.verification.overview import lines, summary, warnings_of

    if arguments.report is None:
        raise PenumbraError(
            "--report is missing: several bags need a folder for their results; give DIR"
        )
    if arguments.video is not None:
        raise PenumbraError("--video is for one bag: give one, or omit it")
    names = ("bundle", "samples", "seed", "frames", "runner", "topic", "threads")
    settings = VerificationSettings(**{name: getattr(arguments, name) for name in names})
    if arguments.ray is None:
        inner = partial(tqdm, unit="", leave=False, disable=None, position=1)
        execute = sequential(lambda work, total: inner(work, total=total))
    else:
        settings = replace(settings, threads=settings.threads or 1)
        execute = on_ray(arguments.ray, settings.threads)
    rows = verify_all(
        bags,
        settings,
        arguments.report,
        execute,
        progress=lambda work, total: tqdm(work, total=total, unit="bag"),
    )
    text = json.dumps([row.to_dict() for row in rows], indent=1)
    if str(arguments.json) == "-":
        print(text)
    else:
        warnings = (f"{name}: {warning}" for name, warning in warnings_of(rows))
        print("\n".join((*lines(rows), *warnings, "", summary(rows))))
        print(f"page       {arguments.report / 'index.html'}")
        if arguments.json is not None:
            write_atomically(arguments.json, text)
    verdicts = {row.verdict for row in rows}
    if "failed" in verdicts:
        return FAILURE
    return NOT_HELD if verdicts & {"missed", "undecided"} else 0


def _print(facts: VerificationFacts) -> None:
    from penumbra.verification.figures import NOISE, TITLES

    figures = facts.figures
    print(
        f"{facts.bundle.name} on {facts.bag.name}: {facts.bag.frames} frames, "
        f"{facts.reference.samples} samples each, {facts.versions['runner']}"
    )
    _print_frames(facts.per_frame)
    print()
    for name, title in TITLES.items():
        if name in figures:
            noise = f"noise of the reference {NOISE[name](figures):.4f}" if name in NOISE else ""
            print(f"{title:<48} {figures[name]:8.4f}   {noise}".rstrip())
    if facts.truth:
        _print_truth(facts)
    _print_speed(facts.speed)
    for check in facts.checks:
        bound = (
            "no tolerance in the manifest"
            if check.tolerance is None
            else f"tolerance {check.tolerance:g}, with the noise {check.limit:.4f}"
        )
        print(f"{check.verdict:<10} {check.name} {check.figure:.4f} ({bound})")


def _print_truth(facts: VerificationFacts) -> None:
    from penumbra.offline.metrics.coverage import NOTE, coverage_table
    from penumbra.verification.facts import OURS, SAMPLED
    from penumbra.verification.figures import TITLES

    print(f"\n{'against ground truth':<48} {'node':>8} {'MC':>10}")
    for name, value in facts.truth[OURS].items():
        print(f"{TITLES.get(name, name):<48} {value:8.4f} {facts.truth[SAMPLED][name]:10.4f}")
    if facts.coverage:
        columns = {"node": facts.coverage[OURS], "MC": facts.coverage[SAMPLED]}
        print(f"\n{coverage_table(columns)}\n{textwrap.fill(NOTE, 78)}\n")
    for method, curves in facts.sparsification.items():
        rates = " ".join(f"{rate:.3f}" for rate in curves.quantiles)
        print(f"{'error by decile, ' + method.replace('_', ' '):<48} {rates}")


def _print_speed(speed: SpeedFacts) -> None:
    infer, total = speed.node_infer_s * 1e3, speed.node_total_s * 1e3
    print(f"\nnode: {infer:.0f} ms inference, {total:.0f} ms in total")
    for count, seconds in speed.monte_carlo_s.items():
        print(f"MC-{count}: {seconds:.2f} s, {speed.times_faster[count]:.1f} times as long")
    print()


def _print_frames(per_frame: Sequence[FrameFacts]) -> None:
    from penumbra.verification.figures import COLUMNS

    frames = [frame.to_dict() for frame in per_frame]
    heads = {name: head for name, head in COLUMNS.items() if any(name in f for f in frames)}
    print("  ".join(heads.values()))
    for frame in frames:
        values = (f"{frame.get(name, float('nan')):{len(head)}.4g}" for name, head in heads.items())
        print("  ".join(values))
