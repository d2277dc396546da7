"""Docstrings of this package as reStructuredText.

They are plain text with `code` in single backticks, code blocks by indentation, and formulas that
hold *, | and _ as they are. To reStructuredText these are cross-references, block quotes and
markup, so autodoc's text is rewritten before it is parsed.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

LITERAL = re.compile(r"``.+?``|`[^`]+`")
MARKUP = re.compile(r"([\\*|`]|_\b|\b_|_(?=\W|$))")
LIST_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def plain_to_rst(lines: list[str]) -> list[str]:
    """Rewrite a docstring: one paragraph, list or code block after the other."""
    result: list[str] = []
    in_list = in_code = False
    for is_text, block in groupby(lines, key=lambda line: bool(line.strip())):
        if not is_text:
            continue
        text = list(block)
        in_list = bool(LIST_ITEM.match(text[0])) or (in_list and text[0].startswith("  "))
        if any(line.startswith(" ") for line in text) and not in_list:
            begin = [] if in_code else ["::", ""]  # a blank line does not end a code block
            result += [*begin, *(f"    {line}" for line in text), ""]
            in_code = True
        else:
            result += [*_escaped(text), ""]
            in_code = False
    return result


def _escaped(text: list[str]) -> list[str]:
    """`code` as a literal, markup characters outside of it with a backslash."""
    paragraph = "\n".join(text)
    parts, end = [], 0
    for literal in LITERAL.finditer(paragraph):
        parts.append(MARKUP.sub(r"\\\1", paragraph[end : literal.start()]))
        # A literal may break across lines, and may touch a letter: `tensor`s.
        parts.append(f"\\ ``{literal.group().strip('`')}``\\ ")
        end = literal.end()
    parts.append(MARKUP.sub(r"\\\1", paragraph[end:]))
    return "".join(parts).split("\n")


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain_to_rst(lines)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
