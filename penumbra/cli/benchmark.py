"""Measure what uncertainty costs, as ratios within one run.

propagation: propagated networks against the plain networks they are made from.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

EXAMPLE = "penumbra benchmark propagation --repetitions 20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, how often, with how many threads."""
    parser.add_argument("what", choices=["propagation"], help="what to measure")
    parser.add_argument("--repetitions", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Print a table of ratios, or JSON."""
    from penumbra.benchmarks import propagation
    from penumbra.benchmarks.timing import machine

    costs = propagation.costs(arguments.repetitions, arguments.threads)
    if arguments.json:
        surroundings = {**machine(), "threads": arguments.threads}
        json.dump({"machine": surroundings, "costs": [asdict(cost) for cost in costs]}, sys.stdout)
        print()
        return 0
    print(f"{'propagated / plain':44}  {'ratio':>6}  {'goal':>6}  {'plain':>9}  {'propagated':>10}")
    for cost in costs:
        print(
            f"{cost.name:44}  {cost.ratio:6.3f}  ≤ {cost.goal:4.2f}  {cost.plain_ms:6.1f} ms  "
            f"{cost.propagated_ms:7.1f} ms"
        )
    return 0
