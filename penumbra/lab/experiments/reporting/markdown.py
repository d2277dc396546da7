"""Tables for the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def rows(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    parts = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in parts)


def with_error(mean: float, error: float, digits: int = 2) -> str:
    """Mean and standard error in the paper's form: 3.13 ± 0.22."""
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
