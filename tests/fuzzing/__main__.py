"""Fuzz one target or all of them, for a number of inputs or a time: see scripts/fuzz.

Inputs are guided by coverage where atheris is installed, and else mutated at random. Each target
runs in a process of its own with a limit on its memory, and is ended where an input takes 5 s.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mutation

TARGETS = ("manifest", "graph", "image", "bag_mcap", "bag_db3", "bag_ros1", "bag_metadata")
INSTRUMENTED = ["penumbra", "fuzzing.planted"]
MEMORY_MB = 1024
"""Resident memory that a target may take, of which importing it takes 200 MB."""
DEFECT = "penumbra-defect-"
"""How the names of inputs begin that a target fails on."""
SKIPPED = 3
"""Exit code where atheris was asked for and is missing."""


def main() -> int:
    """Run the targets; 0 if none has a defect."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument(
        "target", nargs="?", choices=(*TARGETS, "planted"), help="default: all but the planted one"
    )
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--runs", type=int, help="inputs for each target")
    how_long.add_argument("--seconds", type=int, help="time for each target (default: 60)")
    parser.add_argument("--by", choices=("coverage", "mutation"), help="default: what there is")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers")
    parser.add_argument("--found", type=Path, help="keep the inputs that reach new code here")
    parser.add_argument("--hang", type=int, default=5, help="most seconds for an input (5)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    there = importlib.util.find_spec("atheris") is not None
    by = arguments.by or ("coverage" if there else "mutation")
    if by == "coverage" and not there:
        print("scripts/fuzz: atheris is not installed here: use --by mutation", file=sys.stderr)
        return SKIPPED
    if arguments.here:
        return _here(arguments, by)
    if arguments.found is not None:
        arguments.found = arguments.found.resolve()
    names = [arguments.target] if arguments.target else TARGETS
    return max(_in_a_child(name, arguments, by) for name in names)


def _in_a_child(name: str, arguments: argparse.Namespace, by: str) -> int:
    """Run one target in a process of its own, and print one line about it."""
    words = [sys.executable, "-m", "fuzzing", name, "--here", "--by", by]
    words += ["--seed", str(arguments.seed), "--hang", str(arguments.hang)]
    for option in ("runs", "seconds", "found"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option}", str(value)]
    start = time.monotonic()
    # libFuzzer ends its process without leaving anything: its temporary files are removed here.
    with tempfile.TemporaryDirectory(prefix="penumbra-fuzz-") as folder:
        done = subprocess.run(
            words,
            cwd=Path(mutation.__file__).parent,
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            errors="replace",
        )
        output = done.stdout + done.stderr
        figures = dict(re.findall(r"^stat::(\w+): *(\S+)$", output, re.MULTILINE))
        if done.returncode or "number_of_executed_units" not in figures:
            print(output[-8000:])
            for file in Path(folder).glob(f"{DEFECT}*"):
                kept = shutil.move(file, Path(tempfile.gettempdir()) / file.name)
                print(f"{name}: the input is kept in {kept}")
            print(f"{name}: DEFECT, exit code {done.returncode}", flush=True)
            return 1
    print(
        f"{name}: {figures['number_of_executed_units']} inputs by {by} in"
        f" {time.monotonic() - start:.0f} s, slowest {figures['slowest_unit_time_sec']} s,"
        f" peak {figures['peak_rss_mb']} MB, no defect",
        flush=True,
    )
    return 0


def _here(arguments: argparse.Namespace, by: str) -> int:
    if by == "coverage":
        return _by_coverage(arguments)
    _quiet_libraries()
    mutation.HANG = arguments.hang
    runs = arguments.runs or 10**9
    seconds = None if arguments.runs else arguments.seconds or 60
    count = 0
    module = mutation.target(arguments.target)
    run_one = module.run_one

    def counted(data: bytes) -> None:
        nonlocal count
        count += 1
        run_one(data)

    module.run_one = counted
    slowest, _ = mutation.run(arguments.target, runs, arguments.seed, seconds)
    _statistics(count, slowest)
    return 0


def _by_coverage(arguments: argparse.Namespace) -> int:
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        module = mutation.target(arguments.target)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder)
        for number, data in enumerate(mutation.corpus(arguments.target)):
            (inputs / f"seed{number}").write_bytes(data)
        limit = f"-runs={arguments.runs}" if arguments.runs else None
        options = [
            limit or f"-max_total_time={arguments.seconds or 60}",
            f"-seed={arguments.seed}",
            f"-timeout={arguments.hang}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={mutation.LONGEST if 'bag' in arguments.target else 8192}",
            "-print_final_stats=1",
            "-close_fd_mask=2",  # what libjpeg and libpng print
            f"-artifact_prefix={tempfile.gettempdir()}/{DEFECT}",
        ]
        if arguments.found is not None:
            arguments.found.mkdir(parents=True, exist_ok=True)
            options.append(str(arguments.found))
        atheris.Setup(["fuzzing", *options, str(inputs)], module.run_one)
        atheris.Fuzz()
    return 0


def _statistics(count: int, slowest: float) -> None:
    """As libFuzzer prints them."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"stat::number_of_executed_units: {count}")
    print(f"stat::slowest_unit_time_sec: {slowest:.3f}")
    print(f"stat::peak_rss_mb: {peak}")
    if peak > MEMORY_MB:
        sys.exit(f"it took {peak} MB; the budget is {MEMORY_MB} MB")


def _quiet_libraries() -> None:
    """Discard what libjpeg and libpng print about every image, but keep Python's own errors."""
    sys.stderr = sys.__stderr__ = os.fdopen(os.dup(2), "w")
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 2)


if __name__ == "__main__":
    sys.exit(main())
