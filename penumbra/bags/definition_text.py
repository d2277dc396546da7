"""Message definitions that a bag embeds, parsed within limits.

rosbags writes Python code from a definition and executes it, once for its class and once for each
direction of its bytes, with a line for every element of a fixed array of messages. So what it is
given is checked first: names that are names, no type within itself, and no more of anything than a
bag of real robots has.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat, Nodetype
from rosbags.interfaces.typing import FieldDesc, Typesdict
from rosbags.typesys import get_types_from_idl, get_types_from_msg
from rosbags.typesys.msg import normalize_msgtype

from penumbra.text import printable

LARGEST_DEFINITION = 2**20
"""Characters of one embedded definition."""
MOST_TEXT = 2**18
"""Characters in all definitions of a bag, without comments, each type counted once."""
MOST_MEMBERS = 4000
"""Fields and constants in all definitions of a bag; 500 in one type."""
MOST_IN_TYPE = 500
DEEPEST = 32
"""Types within types."""
MOST_VALUES = 20_000
"""Values of one message without its sequences: fields, times the length of fixed arrays of messages
and strings."""
MOST_EMPTY = 64
"""Members of one message that take no byte; a sequence of those would have no end."""
MOST_IDL = 2**15
MOST_IDL_VALUES = 100
"""Characters and values (constants, lengths, annotations) in all IDL of a bag: rosbags takes 20 ms
for each value, and for one in two pairs of parentheses half a minute."""
_RULE = "=" * 80 + "\n"
_COMMENTS = re.compile(r"^[ \t]*(#[^\n]*)?\n", re.MULTILINE)
_TYPE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)+")
_MEMBER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_IDL_TEXT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_IDL_VALUE = re.compile(r"[=\[<(]")


class DefinitionReader:
    """Parses the definitions of one bag, each type once, and counts against the limits."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, str], Typesdict] = {}
        self._known: Typesdict = {}
        self._text = self._members = self._idl = self._idl_values = 0

    def types(self, definition: MessageDefinition, type_name: str) -> Typesdict:
        """The type and those it contains; ValueError if it exceeds a limit."""
        if definition.format == MessageDefinitionFormat.NONE:
            return {}
        text = definition.data
        if len(text) > LARGEST_DEFINITION:
            raise ValueError(f"it has {len(text)} characters; the limit is {LARGEST_DEFINITION}")
        if definition.format == MessageDefinitionFormat.IDL or text.startswith(f"{_RULE}IDL: "):
            found = self._of_idl(text)
        else:
            found = self._of_msg(text, type_name)
        for name, (constants, fields) in found.items():
            _check_names(name, [c[0] for c in constants], fields)
        shape = _Shape(ChainMap(found, self._known))
        for name in found:
            shape.check(name)
        for name, parsed in found.items():  # of two definitions, the first stays
            self._known.setdefault(name, parsed)
        return found

    def _of_msg(self, text: str, type_name: str) -> Typesdict:
        """The parts of a .msg definition: the type itself, then `MSG: name` after each rule."""
        found: Typesdict = {}
        name, first = type_name, True
        for part in _COMMENTS.sub("", text + "\n").split(_RULE):
            if not first:
                head, _, part = part.partition("\n")
                if not head.startswith("MSG: "):
                    raise ValueError("a part of it lacks its name")
                name = head[5:].strip()
            first = False
            key = normalize_msgtype(name), part
            if key not in self._parsed:
                self._text = _within(self._text + len(part), MOST_TEXT, "characters")
                if part.count("\n") > MOST_IN_TYPE:
                    raise ValueError(f"a type has more than {MOST_IN_TYPE} members")
                parsed = get_types_from_msg(part, name)
                self._count(parsed)
                self._parsed[key] = parsed
            found |= self._parsed[key]
        return found

    def _of_idl(self, text: str) -> Typesdict:
        self._idl = _within(self._idl + len(text), MOST_IDL, "characters of IDL")
        bare = _IDL_TEXT.sub(" ", text)
        values = len(_IDL_VALUE.findall(bare))
        self._idl_values = _within(self._idl_values + values, MOST_IDL_VALUES, "values in IDL")
        if "<<" in bare or re.search(r"(?<![\w ])\s*\(|\([^)]*\(", bare):
            raise ValueError("its IDL has expressions, which are not read")
        found: Typesdict = {}
        parts = text.split(_RULE)[1:] if text.startswith(f"{_RULE}IDL: ") else [f"\n{text}"]
        for part in parts:
            found |= get_types_from_idl(part.partition("\n")[2])
        self._count(found)
        return found

    def _count(self, found: Typesdict) -> None:
        members = sum(len(constants) + len(fields) for constants, fields in found.values())
        self._members = _within(self._members + members, MOST_MEMBERS, "members")


class _Shape:
    """How deep and how large the messages of each type are."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._sizes: dict[str, tuple[int, int, int]] = {}

    def check(self, name: str, above: tuple[str, ...] = ()) -> tuple[int, int, int]:
        """Depth, values and members without bytes of a message; ValueError above a limit."""
        if name in self._sizes:
            return self._sizes[name]
        if name in above:
            raise ValueError(f"{printable(name)} contains itself")
        if len(above) >= DEEPEST:
            raise ValueError(f"its types are nested deeper than {DEEPEST}")
        fields = self._types[name][1] if name in self._types else []  # others are of Jazzy
        depth, values, empty = 0, 0, 0 if fields or name not in self._types else 1
        for field, description in fields:
            if field == "structure_needs_at_least_one_member":
                empty += 1
                continue
            inner, count, sequence = _element(description)
            if inner is None:
                values += count
                continue
            below, many, without = self.check(inner, (*above, name))
            if without and many <= without and (sequence or count > 1):
                raise ValueError(f"{printable(field)} is a list of {printable(inner)}: empty")
            depth = max(depth, below + 1)
            values += count * max(many, 1)
            empty += without
        values += empty
        if values > MOST_VALUES or empty > MOST_EMPTY or depth > DEEPEST:
            raise ValueError(f"a message of {printable(name)} has too many values: {values}")
        self._sizes[name] = depth, values, empty
        return self._sizes[name]


def _element(description: FieldDesc) -> tuple[str | None, int, bool]:
    """The message type of a field (None: a number or text), how many, and whether a sequence.

    A fixed array of numbers counts as one: it is copied as a block.
    """
    if description[0] == Nodetype.ARRAY or description[0] == Nodetype.SEQUENCE:
        inner, length = description[1]
        sequence = description[0] == Nodetype.SEQUENCE
        count = 1 if sequence else int(length)
        if inner[0] == Nodetype.NAME:
            return str(inner[1]), count, sequence
        return None, count if "string" in str(inner[1]) else 1, sequence
    return (str(description[1]) if description[0] == Nodetype.NAME else None), 1, False


def _check_names(name: str, constants: list[str], fields: list[tuple[str, FieldDesc]]) -> None:
    types = [inner for _, d in fields if (inner := _element(d)[0]) is not None]
    for text in (name, *types):
        if len(text) > 255 or not _TYPE_NAME.fullmatch(text):
            raise ValueError(f"{printable(text)} is not the name of a type")
    for text in (*constants, *(field for field, _ in fields)):
        if len(text) > 255 or not _MEMBER_NAME.fullmatch(text):
            raise ValueError(f"{printable(text)} is not the name of a field")
    if len(constants) + len(fields) > MOST_IN_TYPE:
        raise ValueError(f"{printable(name)} has more than {MOST_IN_TYPE} members")


def _within(value: int, limit: int, what: str) -> int:
    if value > limit:
        raise ValueError(f"the definitions of this bag have more than {limit} {what}")
    return value
