"""Measure the catalogue and write the table: `python -m penumbra.lab.experiments.networks`.

Needs nothing; architectures of timm, torchvision and segmentation_models_pytorch are left out, with
the reason, where those are not installed. Measured rows are kept in a file of JSON lines, so that
an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from penumbra.lab.experiments.networks.catalogue import ENTRIES
from penumbra.lab.experiments.networks.measurement import Row, measure

_HEADER = (
    "| network | noise | error | ratio | coherent: error | ratio | warns | cost | coherent | MC |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def main() -> None:
    """Measure, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--rows", type=Path, default=Path("networks.jsonl"))
    parser.add_argument("--out", type=Path, default=None, help="the table, as Markdown")
    parser.add_argument("--only", nargs="*", default=(), help="parts of names")
    options = parser.parse_args()
    done = read(options.rows)
    chosen = [e for e in ENTRIES if not options.only or any(o in e.title for o in options.only)]
    for entry in tqdm(chosen, unit="network"):
        if entry.title in done:
            continue
        try:
            done[entry.title] = measure(entry, options.samples)
        except ImportError as error:
            tqdm.write(f"{entry.title}: left out ({error})")
            continue
        with options.rows.open("a") as file:
            file.write(json.dumps(asdict(done[entry.title])) + "\n")
    text = table(done[e.title] for e in chosen if e.title in done)
    print(text)
    if options.out:
        options.out.write_text(text)


def read(rows: Path) -> dict[str, Row]:
    """Rows that were measured before, by name."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    found = [Row(**json.loads(line)) for line in lines]
    return {row.title: row for row in found}


def table(rows: Iterable[Row]) -> str:
    """The rows and what they sum up to, as Markdown."""
    rows = list(rows)
    through = [row for row in rows if row.error is not None]
    best = [_best(row) for row in through]
    lines = [_line(row) for row in rows]
    silent = [r for r in through if not r.warned and not 1 / 1.5 <= (r.ratio or 0) <= 1.5]
    summary = (
        f"\n{len(through)} of {len(rows)} go through. Median error "
        f"{statistics.median(r.error for r in through if r.error is not None):.1%} by default, "
        f"{statistics.median(best):.1%} with `coherent=True` where noise is shared. Off by more "
        f"than 1.5 without a warning: {', '.join(r.title for r in silent) or 'none'}.\n"
    )
    return _HEADER + "\n".join(lines) + "\n" + summary


def _best(row: Row) -> float:
    return row.coherent_error if row.coherent_error is not None else row.error or 0.0


def _line(row: Row) -> str:
    if row.error is None:
        return f"| {row.title} | | {row.reason} | | | | | | | |"

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    cells = (
        row.title, str(row.noise), number(row.error, ".1%"), number(row.ratio, ".2f"),
        number(row.coherent_error, ".1%"), number(row.coherent_ratio, ".2f"),
        "yes" if row.warned else "", number(row.cost, ".1f"), number(row.coherent_cost, ".1f"),
        number(row.sampling_cost, ".0f"),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
