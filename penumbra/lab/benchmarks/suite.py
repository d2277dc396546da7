"""All measurements for the shipped bundles, with one JSON file and one table of goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.lab.benchmarks.goals import GOALS, SHIPPED, Measured, goal_table, with_goals
from penumbra.lab.benchmarks.reports import REPORTS, BenchmarkOptions, BenchmarkReport
from penumbra.lab.timing import machine
from penumbra.share import bundle_folder


def run(options: BenchmarkOptions, file: Path | None, plot: Path | None) -> bool:
    """Measure and print the table; `file` is written after each part.

    An interrupted run resumes from its file; a finished one is measured again. If a part fails, the
    others are still measured, the next run repeats it, and the result is False.
    """
    settings = json.loads(json.dumps(asdict(options), default=str))
    facts: dict[str, Any] = {
        "machine": _environment(options),
        "settings": settings,
        "finished": False,
        "parts": _finished_parts(file, settings),
    }
    failed = False
    for name, what, part in _parts(options):
        if name in facts["parts"]:
            print(f"## {name}: kept from the interrupted run\n")
            continue
        print(f"## {name}", flush=True)
        reason = _missing(part)
        if reason is None:
            try:
                report = REPORTS[what](part)
            except PenumbraError as error:
                print(f"failed: {error}\n", flush=True)
                failed = True
                continue
        else:
            print(reason)
            kind = name.split()[-1]
            mine = [key for key in GOALS if key.startswith(f"{kind}/")]
            report = BenchmarkReport({}, dict.fromkeys(mine, f"not measured: {reason}"))
        print(flush=True)
        facts["parts"][name] = {
            "figures": report.figures,
            "measured": report.measured,
            "load": machine().load,
        }
        _write(file, facts)
    measured = _without_fast(
        {key: value for part in facts["parts"].values() for key, value in part["measured"].items()}
    )
    facts |= {"finished": not failed, "measured": with_goals(measured)}
    _write(file, facts)
    print(goal_table(measured, GOALS if options.bundle is None else with_goals(measured)))
    scaling = facts["parts"].get("scaling", {"figures": {}})["figures"].get("scaling")
    _draw(plot, measured, scaling)
    return not failed


def finish(
    options: BenchmarkOptions, report: BenchmarkReport, file: Path | None, plot: Path | None
) -> None:
    """Print the table of a single measurement, write its file and its plot."""
    measured = with_goals(report.measured)
    if measured:
        print(f"\n{goal_table(measured, measured)}")
    _write(file, {"machine": _environment(options), **report.figures, "measured": measured})
    _draw(plot, measured, report.figures.get("scaling"))


def _parts(options: BenchmarkOptions) -> Iterator[tuple[str, str, BenchmarkOptions]]:
    """Name, measurement, and its options."""
    yield "propagation", "propagation", options
    if options.bundle is not None:
        yield "runner", "runner", options
    else:
        for kind, bundle in SHIPPED.items():
            yield f"runner {kind}", "runner", replace(options, bundle=bundle)
    yield "node", "node", replace(options, bundle=None)
    for what in ("scaling", "cameras", "memory", "fleet"):
        yield what, what, options


def _missing(part: BenchmarkOptions) -> str | None:
    """Why a part cannot be measured: a bundle that is not shipped yet."""
    name = part.bundle
    if name is None or name not in SHIPPED.values() or bundle_folder(name).is_dir():
        return None
    return f"there is no config/models/{name}"


def _without_fast(measured: dict[str, float | str]) -> dict[str, float | str]:
    """Name the reason for a missing fast form, which not every bundle has gains for."""
    missing = "not measured: no bundle in this form"
    return {"encdec/fast": missing, **measured} if "encdec/truthful" in measured else measured


def _environment(options: BenchmarkOptions) -> dict[str, Any]:
    """The machine, and the number of threads: as chosen (0: one per core), and PyTorch's."""
    facts = {**asdict(machine()), "threads": options.threads}
    if "torch" in sys.modules:
        facts["torch_threads"] = sys.modules["torch"].get_num_threads()
    return facts


def _finished_parts(file: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The parts that an interrupted run with the same settings has finished."""
    if file is None or not file.is_file():
        return {}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PenumbraError(f"cannot read {file} ({error}): remove it to start again") from error
    same = facts.get("settings") == settings and facts.get("finished") is False
    return facts.get("parts", {}) if same else {}


def _write(file: Path | None, facts: dict[str, Any]) -> None:
    if file is not None:
        write_atomically(file, json.dumps(facts, indent=2) + "\n")


def _draw(file: Path | None, measured: Measured, scaling: dict[str, Any] | None) -> None:
    if file is not None:
        from penumbra.lab.benchmarks.plot import draw

        write_atomically(file, draw(measured, scaling))
