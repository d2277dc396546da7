"""Hold the node against Monte Carlo on a bag: the same frames, every number compared.

The bag goes through the real node in a process of its own, frame by frame; PyTorch samples the
same frames from the bundle's weights (slow, so each is kept under PENUMBRA_CACHE and an interrupted
run goes on). Printed are the figures and what the reference's own noise explains of them. Exit
code 1 if one misses the tolerance that the bundle's manifest states (tolerances.monte_carlo).

Of several bags, or of a folder with bags in it, the result is one table and one page with a page
for each bag behind it. A bag whose result is there already is not computed again; one that fails is
listed with its error, and the exit code is 2. With --ray they are shared out among workers.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError

EXAMPLE = "penumbra verify drive --bundle segnet-street --samples 300 --frames 8 --report report"
NOT_HELD, FAILURE = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bags", type=Path, nargs="+", metavar="BAG", help="folder, or file .mcap "
                        ".db3 .bag; or a folder with bags in it")  # fmt: skip
    parser.add_argument("--bundle", required=True, metavar="B", help="folder, or a shipped model")
    parser.add_argument("--samples", type=int, default=300, metavar="N", help="of Monte Carlo for "
                        "each frame, an even number (default 300)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the samples (default 0)")
    parser.add_argument("--frames", type=int, metavar="N", help="only so many, spread evenly over "
                        "the bag")  # fmt: skip
    parser.add_argument("--topic", help="of the frames (default: the only images)")
    parser.add_argument("--runner", default="auto", help="of the node (default: auto)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of the node and of "
                        "PyTorch, for one bag (default: one per core; with --ray: 1)")  # fmt: skip
    parser.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help="one task per "
                        "bag on Ray: auto or HOST:PORT; without an address on this machine, one "
                        "that ends with the job")  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="DIR", help="write index.html, one page with"
                        " pictures, curves and tables, and figures.json")  # fmt: skip
    parser.add_argument("--video", type=Path, metavar="FILE", help="write the pictures as a film "
                        "(.mp4 or .avi)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, also of each "
                        "frame; - prints them")  # fmt: skip


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
    text = json.dumps(facts, indent=1)
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
    return 0 if facts["passed"] else NOT_HELD


def _many(bags: list[Path], arguments: argparse.Namespace) -> int:
    from functools import partial

    from tqdm import tqdm

    from penumbra.files import write_atomically
    from penumbra.verification.fleet import VerificationSettings, one_after_another, verify_all
    from penumbra.verification.on_ray import on_ray
    from penumbra.verification.overview import FAILED, lines, summary, warnings_of

    if arguments.report is None:
        raise PenumbraError("--report is missing: of several bags it keeps what is done; give DIR")
    if arguments.video is not None:
        raise PenumbraError("--video is of one bag: give one, or leave it out")
    names = ("bundle", "samples", "seed", "frames", "runner", "topic", "threads")
    settings = VerificationSettings(**{name: getattr(arguments, name) for name in names})
    if arguments.ray is None:
        inner = partial(tqdm, unit="", leave=False, disable=None, position=1)
        execute = one_after_another(lambda work, total: inner(work, total=total))
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
    text = json.dumps(rows, indent=1)
    if str(arguments.json) == "-":
        print(text)
    else:
        told = (f"{name}: {warning}" for name, warning in warnings_of(rows))
        print("\n".join((*lines(rows), *told, "", summary(rows))))
        print(f"page       {arguments.report / 'index.html'}")
        if arguments.json is not None:
            write_atomically(arguments.json, text)
    verdicts = {row["verdict"] for row in rows}
    if FAILED in verdicts:
        return FAILURE
    return NOT_HELD if verdicts & {"missed", "undecided"} else 0


def _print(facts: dict[str, Any]) -> None:
    from penumbra.offline.metrics.coverage import NOTE, coverage_table
    from penumbra.verification.report import NOISE, TITLES

    figures, speed = facts["figures"], facts["speed"]
    bag, samples = facts["bag"], facts["reference"]["samples"]
    print(
        f"{facts['bundle']['name']} on {bag['name']}: {bag['frames']} frames, {samples} samples "
        f"each, {facts['versions']['runner']}"
    )
    _print_frames(facts["per_frame"])
    print()
    for name, title in TITLES.items():
        if name in figures:
            noise = f"reference's noise {NOISE[name](figures):.4f}" if name in NOISE else ""
            print(f"{title:<48} {figures[name]:8.4f}   {noise}".rstrip())
    truth = facts["truth"]
    if truth:
        print(f"\n{'against ground truth':<48} {'node':>8} {'MC':>10}")
        for name, value in truth["propagated"].items():
            print(f"{TITLES.get(name, name):<48} {value:8.4f} {truth['monte_carlo'][name]:10.4f}")
        if facts["coverage"]:
            names = {"propagated": "node", "monte_carlo": "MC"}
            columns = {names[method]: rows for method, rows in facts["coverage"].items()}
            print(f"\n{coverage_table(columns)}\n{textwrap.fill(NOTE, 78)}\n")
        for method, curves in facts["calibration"].items():
            rates = " ".join(f"{rate:.3f}" for rate in curves["quantiles"])
            print(f"{'error by uncertainty, tenths, ' + method.replace('_', ' '):<48} {rates}")
    print(f"\nnode: {speed['node_infer_s'] * 1e3:.0f} ms inference, "
          f"{speed['node_total_s'] * 1e3:.0f} ms in all")  # fmt: skip
    for count, seconds in speed["monte_carlo_s"].items():
        print(f"MC-{count}: {seconds:.2f} s, {speed['times_faster'][count]:.1f} times as long")
    print()
    for check in facts["checks"]:
        bound = (
            "no tolerance in the manifest"
            if check["tolerance"] is None
            else f"tolerance {check['tolerance']:g}, with the noise {check['limit']:.4f}"
        )
        print(f"{check['verdict']:<10} {check['name']} {check['figure']:.4f} ({bound})")


def _print_frames(per_frame: list[dict[str, Any]]) -> None:
    from penumbra.verification.report import COLUMNS

    there = {name: head for name, head in COLUMNS.items() if any(name in f for f in per_frame)}
    print("  ".join(there.values()))
    for frame in per_frame:
        values = (f"{frame.get(name, float('nan')):{len(head)}.4g}" for name, head in there.items())
        print("  ".join(values))
