"""All bags on one page and in one table: a line for each, and the way to its own page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penumbra.verification.report import COLUMNS, PAGE, document, number, table

FAILED = "failed"
WORST_FIRST = (FAILED, "missed", "undecided", "held", "not asked")
SHOWN = ("label_agreement", "disparity_relative_error", "std_relative_error",
         "std_relative_error_noise", "std_ratio", "spearman", "propagated_global_accuracy",
         "propagated_mean_iou", "propagated_abs_rel", "infer_ms")  # fmt: skip

Row = dict[str, Any]


def row_of(bag: Path, place: str, facts: dict[str, Any] | None = None, error: str = "") -> Row:
    """What the table has of a bag: its facts as `verify` found them, or the error instead."""
    row = {"bag": str(bag), "place": place, "verdict": FAILED, "error": error, "figures": {},
           "warnings": []}  # fmt: skip
    if facts is None:
        return row
    found = {check["verdict"] for check in facts["checks"]}
    truth = facts["truth"].get("propagated", {})
    figures = facts["figures"] | {f"propagated_{name}": value for name, value in truth.items()}
    figures["infer_ms"] = facts["speed"]["node_infer_s"] * 1e3
    return row | {
        "verdict": next(verdict for verdict in WORST_FIRST if verdict in found),
        "frames": facts["bag"]["frames"],
        "sha256": facts["bag"]["sha256"],
        "figures": {name: figures[name] for name in SHOWN if name in figures},
        "warnings": list(facts["warnings"]),
    }


def summary(rows: Sequence[Row]) -> str:
    """How many bags ended how, in one line."""
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in WORST_FIRST}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{len(rows)} bag{'' if len(rows) == 1 else 's'}: {told}"


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """The table as plain text; an error takes the place of the figures."""
    names, heads = _names(rows), _heads(rows)
    widths = [max(len(name) for name in ("bag", *names)), 6, 9]
    widths += [max(7, len(head)) for head in heads.values()]
    for cells in (["bag", "frames", "verdict", *heads.values()], *_cells(rows, names, heads)):
        first, *others = cells
        figures = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False))
        yield "  ".join((f"{first:<{widths[0]}}", *figures)).rstrip()


def warnings_of(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """What is amiss with bags that could be read all the same, each with the name of its bag."""
    for name, row in zip(_names(rows), rows, strict=True):
        yield from ((name, text) for text in row["warnings"])


def overview(bundle: str, samples: int, rows: Sequence[Row]) -> str:
    """The page as HTML."""
    names, heads = _names(rows), _heads(rows)
    failed = [(name, row) for name, row in zip(names, rows, strict=True) if row["error"]]
    good = all(row["verdict"] in ("held", "not asked") for row in rows)
    parts = [
        f"<h1>{escape(bundle)} on {len(rows)} bags</h1>",
        f'<p><span class="verdict {"held" if good else "missed"}">{summary(rows)}</span></p>',
        f"<p>Each bag went through the perception node and was compared with {samples} Monte-Carlo"
        " samples of each frame. Its name leads to its own page, which says what the figures mean."
        "</p>",
        _table(rows, names, heads),
    ]
    if failed:
        parts.append("<h2>Bags without a result</h2>")
        parts += [f"<p><b>{escape(name)}</b>: {escape(row['error'])}</p>" for name, row in failed]
    warnings = list(warnings_of(rows))
    if warnings:
        parts.append("<h2>Warnings</h2>")
        parts += [f"<p><b>{escape(name)}</b>: {escape(text)}</p>" for name, text in warnings]
    return document(f"{bundle}: verification of {len(rows)} bags", parts)


def _table(rows: Sequence[Row], names: Sequence[str], heads: dict[str, str]) -> str:
    shown = []
    for row, name in zip(rows, names, strict=True):
        verdict = row["verdict"]
        kind = {FAILED: "missed", "not asked": "open"}.get(verdict, verdict)
        link = f'<a href="{quote(row["place"])}/{PAGE}">{escape(name)}</a>'
        figures = [number(row["figures"].get(head)) for head in heads]
        shown.append([
            escape(name) if verdict == FAILED else link,
            str(row.get("frames", "")),
            f'<span class="verdict {kind}">{verdict}</span>',
            *figures,
        ])  # fmt: skip
    return f"<div class=wide>{table(('bag', 'frames', '', *heads.values()), shown)}</div>"


def _cells(rows: Sequence[Row], names: Sequence[str], heads: dict[str, str]) -> Iterator[list[str]]:
    for row, name in zip(rows, names, strict=True):
        figures = [number(row["figures"].get(head)) for head in heads]
        said = [row["error"]] if row["error"] else figures
        yield [name, str(row.get("frames", "")), row["verdict"], *said]


def _heads(rows: Sequence[Row]) -> dict[str, str]:
    """The columns that any bag has a figure for."""
    return {name: COLUMNS[name] for name in SHOWN if any(name in row["figures"] for row in rows)}


def _names(rows: Sequence[Row]) -> list[str]:
    """Of the bags, from the folder on that they have in common."""
    bags = [Path(row["bag"]) for row in rows]
    common = os.path.commonpath([bag.parent for bag in bags])
    return [bag.relative_to(common).as_posix() for bag in bags]
