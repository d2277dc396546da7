"""All bags on one page and in one table: a row for each, with a link to its own page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from penumbra.verification.facts import OURS, Figures, VerificationFacts
from penumbra.verification.figures import COLUMNS
from penumbra.verification.html_page import document, number, table
from penumbra.verification.report import PAGE
from penumbra.verification.tolerance import Verdict

BagVerdict = Verdict | Literal["failed"]
WORST_FIRST: tuple[BagVerdict, ...] = ("failed", "missed", "undecided", "held", "not asked")
SHOWN = ("label_agreement", "disparity_relative_error", "std_relative_error",
         "std_relative_error_noise", "std_ratio", "spearman", "propagated_global_accuracy",
         "propagated_mean_iou", "propagated_abs_rel", "infer_ms")  # fmt: skip


@dataclass(frozen=True)
class BagRow:
    """One bag in the table: its figures, or the error that it ended with."""

    bag: Path
    place: str  # its folder in the report
    verdict: BagVerdict
    error: str = ""
    figures: Figures = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    frames: int | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, bag: Path, place: str, facts: VerificationFacts, warnings: Sequence[str]) -> BagRow:
        """Of a bag that was verified."""
        found = {check.verdict for check in facts.checks}
        figures = dict(facts.figures)
        for name, value in facts.truth.get(OURS, {}).items():
            figures[f"{OURS}_{name}"] = value
        figures["infer_ms"] = facts.speed.node_infer_s * 1e3
        return cls(
            bag,
            place,
            next(verdict for verdict in WORST_FIRST if verdict in found),
            figures={name: figures[name] for name in SHOWN if name in figures},
            warnings=tuple(warnings),
            frames=facts.bag.frames,
            sha256=facts.bag.sha256,
        )

    @classmethod
    def failed(cls, bag: Path, place: str, error: str) -> BagRow:
        """Of a bag without a result."""
        return cls(bag, place, "failed", error)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without what a failed bag does not have."""
        row = asdict(self) | {"bag": str(self.bag), "warnings": list(self.warnings)}
        return {name: value for name, value in row.items() if value is not None}


def summary(rows: Sequence[BagRow]) -> str:
    """The number of bags by verdict, in one line."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in WORST_FIRST}
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{len(rows)} bag{'' if len(rows) == 1 else 's'}: {text}"


def lines(rows: Sequence[BagRow]) -> Iterator[str]:
    """The table as plain text; an error takes the place of the figures."""
    names, heads = _names(rows), _heads(rows)
    widths = [max(len(name) for name in ("bag", *names)), 6, 9]
    widths += [max(7, len(head)) for head in heads.values()]
    for cells in (["bag", "frames", "verdict", *heads.values()], *_cells(rows, names, heads)):
        first, *others = cells
        figures = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False))
        yield "  ".join((f"{first:<{widths[0]}}", *figures)).rstrip()


def warnings_of(rows: Sequence[BagRow]) -> Iterator[tuple[str, str]]:
    """The warnings of bags that could be read, each with the name of its bag."""
    for name, row in zip(_names(rows), rows, strict=True):
        yield from ((name, text) for text in row.warnings)


def overview(bundle: str, samples: int, rows: Sequence[BagRow]) -> str:
    """The page as HTML."""
    names, heads = _names(rows), _heads(rows)
    failed = [(name, row) for name, row in zip(names, rows, strict=True) if row.error]
    good = all(row.verdict in ("held", "not asked") for row in rows)
    parts = [
        f"<h1>{escape(bundle)} on {len(rows)} bags</h1>",
        f'<p><span class="verdict {"held" if good else "missed"}">{summary(rows)}</span></p>',
        f"<p>Each bag was sent through the perception node and compared with {samples} Monte-Carlo"
        " samples of each frame. Its name links to its own page, which explains the figures.</p>",
        _table(rows, names, heads),
    ]
    if failed:
        parts.append("<h2>Bags without a result</h2>")
        parts += [f"<p><b>{escape(name)}</b>: {escape(row.error)}</p>" for name, row in failed]
    warnings = list(warnings_of(rows))
    if warnings:
        parts.append("<h2>Warnings</h2>")
        parts += [f"<p><b>{escape(name)}</b>: {escape(text)}</p>" for name, text in warnings]
    return document(f"{bundle}: verification of {len(rows)} bags", parts)


def _table(rows: Sequence[BagRow], names: Sequence[str], heads: dict[str, str]) -> str:
    shown = []
    for row, name in zip(rows, names, strict=True):
        kind = {"failed": "missed", "not asked": "open"}.get(row.verdict, row.verdict)
        link = f'<a href="{quote(row.place)}/{PAGE}">{escape(name)}</a>'
        shown.append([
            escape(name) if row.verdict == "failed" else link,
            _frames(row),
            f'<span class="verdict {kind}">{row.verdict}</span>',
            *_figures(row, heads),
        ])  # fmt: skip
    return f"<div class=wide>{table(('bag', 'frames', '', *heads.values()), shown)}</div>"


def _cells(
    rows: Sequence[BagRow], names: Sequence[str], heads: dict[str, str]
) -> Iterator[list[str]]:
    for row, name in zip(rows, names, strict=True):
        content = [row.error] if row.error else _figures(row, heads)
        yield [name, _frames(row), row.verdict, *content]


def _frames(row: BagRow) -> str:
    return "" if row.frames is None else str(row.frames)


def _figures(row: BagRow, heads: dict[str, str]) -> list[str]:
    return [number(row.figures.get(head)) for head in heads]


def _heads(rows: Sequence[BagRow]) -> dict[str, str]:
    """The columns for which any bag has a figure."""
    return {name: COLUMNS[name] for name in SHOWN if any(name in row.figures for row in rows)}


def _names(rows: Sequence[BagRow]) -> list[str]:
    """The paths of the bags below their common folder."""
    common = os.path.commonpath([row.bag.parent for row in rows])
    return [row.bag.relative_to(common).as_posix() for row in rows]
