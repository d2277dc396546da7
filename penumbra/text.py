"""Text from outside, made safe to print: names, types, labels and errors of bags, bundles and ROS.

A topic name may hold an escape sequence that clears the terminal, a line break that fakes a log
line, or a mark that reverses what is read. HTML needs `html.escape` in addition.
"""

from __future__ import annotations

LONGEST_NAME = 200
"""Characters of a name in a message; ROS 2 limits topic names to 255."""
LONGEST_LINE = 2000
"""Characters of a whole line in a log or on the terminal, whatever it contains."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: object, limit: int = LONGEST_NAME) -> str:
    r"""`str(text)` in one line of at most `limit` characters; the end of a longer one becomes `…`.

    Control characters, ANSI escapes, line breaks, surrogates and invisible or direction-changing
    marks become escapes such as `\x1b`. Printable text, a backslash among it, stays as it is, so a
    text that passes twice is escaped once.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}: at least one character is needed")
    whole = str(text)
    cut = whole[: limit + 1]  # a text of a gigabyte costs no more than a short one
    if len(cut) <= limit and cut.isprintable():
        return cut
    parts: list[str] = []
    length = 0
    for character in cut:
        part = character if character.isprintable() else _escape(character)
        parts.append(part)
        length += len(part)
        if length > limit:
            break
    else:
        return "".join(parts)
    while length >= limit:  # the mark needs a place of its own, and no escape is cut in two
        length -= len(parts.pop())
    return "".join(parts) + "…"


def _escape(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
