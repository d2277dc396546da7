"""All measurements in turn for the shipped bundles, one file of figures, one table of goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.lab.benchmarks.goals import GOALS, SHIPPED, known, table
from penumbra.lab.benchmarks.reports import REPORTS, BenchmarkOptions, BenchmarkReport
from penumbra.lab.timing import machine
from penumbra.share import bundle_folder


def run(asked: BenchmarkOptions, file: Path | None, plot: Path | None) -> bool:
    """Measure, and print the table; `file` is written after each part.

    A run that was interrupted goes on with what its file has; a finished one is measured anew. A
    part that fails is left for the next run, and the others are measured: False.
    """
    settings = json.loads(json.dumps(asdict(asked), default=str))
    kept = _kept(file, settings)
    facts: dict[str, Any] = {
        "machine": _surroundings(asked),
        "settings": settings,
        "finished": False,
        "parts": kept.get("parts", {}),
    }
    failed = False
    for name, what, part in _parts(asked):
        if name in facts["parts"]:
            print(f"## {name}: kept from the run that was interrupted\n")
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
            "load": machine()["load"],
        }
        _write(file, facts)
    measured = _without_fast(
        {key: value for part in facts["parts"].values() for key, value in part["measured"].items()}
    )
    facts |= {"finished": not failed, "measured": known(measured)}
    _write(file, facts)
    print(table(measured, GOALS if asked.bundle is None else known(measured)))
    scaling = facts["parts"].get("scaling", {"figures": {}})["figures"].get("scaling")
    _draw(plot, measured, scaling)
    return not failed


def finish(
    asked: BenchmarkOptions, report: BenchmarkReport, file: Path | None, plot: Path | None
) -> None:
    """The end of a single measurement: its table, its file, its picture."""
    measured = known(report.measured)
    if measured:
        print(f"\n{table(measured, measured)}")
    _write(file, {"machine": _surroundings(asked), **report.figures, "measured": measured})
    _draw(plot, measured, report.figures.get("scaling"))


def _parts(asked: BenchmarkOptions) -> Iterator[tuple[str, str, BenchmarkOptions]]:
    """Name, measurement and what it is asked."""
    yield "propagation", "propagation", asked
    if asked.bundle is not None:
        yield "runner", "runner", asked
    else:
        for kind, bundle in SHIPPED.items():
            yield f"runner {kind}", "runner", replace(asked, bundle=bundle)
    yield "node", "node", replace(asked, bundle=None)
    for what in ("scaling", "cameras", "memory", "fleet"):
        yield what, what, asked


def _missing(part: BenchmarkOptions) -> str | None:
    """Why a part cannot be measured: a bundle that is not shipped yet."""
    if part.bundle in SHIPPED.values() and not bundle_folder(part.bundle).is_dir():
        return f"there is no config/models/{part.bundle}"
    return None


def _without_fast(measured: dict[str, float | str]) -> dict[str, float | str]:
    """Say of what no shipped bundle has that it is not there."""
    missing = "not measured: no bundle in this form"
    return {"encdec/fast": missing, **measured} if "encdec/truthful" in measured else measured


def _surroundings(asked: BenchmarkOptions) -> dict[str, Any]:
    """The machine, and how many threads were asked for (0: one per core) and had by PyTorch."""
    facts = {**machine(), "threads": asked.threads}
    if "torch" in sys.modules:
        facts["torch_threads"] = sys.modules["torch"].get_num_threads()
    return facts


def _kept(file: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    if file is None or not file.is_file():
        return {}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PenumbraError(f"cannot read {file} ({error}): remove it to start anew") from error
    same = facts.get("settings") == settings and facts.get("finished") is False
    return facts if same else {}


def _write(file: Path | None, facts: dict[str, Any]) -> None:
    if file is not None:
        write_atomically(file, json.dumps(facts, indent=2) + "\n")


def _draw(file: Path | None, measured: dict[str, float | str], scaling: dict | None) -> None:
    if file is not None:
        from penumbra.lab.benchmarks.plot import draw

        write_atomically(file, draw(measured, scaling))
