"""YAML from outside, read within limits: what JSON can say, and no more.

The YAML of a bundle may come from anyone. A few bytes of aliases stand for gigabytes, a few
thousand brackets exhaust the stack, and PyYAML's numbers and dates raise errors of their own. So
the values are built here, from the parser's events, which come one by one: maps with unique string
keys, lists, strings, finite numbers, booleans and null. Everything else is refused in one line.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from penumbra.errors import PenumbraError
from penumbra.files import read_regular
from penumbra.text import printable

LARGEST = 1 << 20  # bytes; the largest shipped manifest has 8 kB
DEEPEST = 64  # nested maps and lists; a shipped manifest has 8
MOST_VALUES = 20_000  # 256 classes have 2,000; a million would take the validation minutes
LONGEST_TEXT = 1 << 16
LONGEST_NUMBER = 64  # characters
INTEGER_BITS = 63  # as ROS 2, numpy and C++ hold them

_TAG = "tag:yaml.org,2002:"
# The C parser is forty times as fast; some builds of PyYAML lack it.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()
_CONSTRUCTOR: Any = yaml.constructor.SafeConstructor()
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _PlainDumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice, and not as an alias, which would be refused."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Refused(ValueError):
    """Why this YAML is not read."""


def read_yaml(path: Path, what_to_do: str) -> Any:
    """The value in a YAML file; FileNotFoundError, or PenumbraError that ends in `what_to_do`."""
    return parse_yaml(read_regular(path, LARGEST), path, what_to_do)


def parse_yaml(data: bytes, where: object, what_to_do: str) -> Any:
    """The value of a YAML document; `where` it is from and `what_to_do` appear in the error."""
    try:
        if len(data) > LARGEST:
            raise _Refused(f"it has more than {LARGEST} bytes")
        return _value(data.decode("utf-8"))
    except _Refused as error:
        raise PenumbraError(f"{where} is refused: {printable(error)}; {what_to_do}") from error
    except (yaml.YAMLError, ValueError) as error:
        why = printable(" ".join(str(error).split()))
        raise PenumbraError(f"{where} is not YAML ({why}): {what_to_do}") from error


def dump_yaml(value: Any) -> str:
    """The YAML of a value, in the order of its keys, such that `parse_yaml` reads it."""
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100)


def _value(text: str) -> Any:
    """Build the value with a stack of our own, so that no input exhausts Python's."""
    whole: list[Any] = []
    inside = [(whole, "")]  # every open map or list: its items, and where it begins
    values = 0
    for event in yaml.parse(text, Loader=_Parser):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused(f"it has an alias or anchor{_place(event)}; write the value out")
        if isinstance(event, yaml.NodeEvent):
            values += 1
            if values > MOST_VALUES:
                raise _Refused(f"it has more than {MOST_VALUES} values")
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise _Refused(f"it has the tag {tag!r}{_place(event)}; write a plain value")
        if isinstance(event, yaml.ScalarEvent):
            inside[-1][0].append(_scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(inside) > DEEPEST:
                raise _Refused(f"it has more than {DEEPEST} levels{_place(event)}")
            inside.append(([], _place(event)))
        elif isinstance(event, yaml.CollectionEndEvent):
            items, place = inside.pop()
            is_map = isinstance(event, yaml.MappingEndEvent)
            inside[-1][0].append(_map(items, place) if is_map else items)
        elif isinstance(event, yaml.DocumentStartEvent) and whole:
            raise _Refused(f"it has a second document{_place(event)}")
    return whole[0] if whole else None


def _map(items: list[Any], place: str) -> dict[str, Any]:
    """Keys and values alternate in `items`."""
    found: dict[str, Any] = {}
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str):
            raise _Refused(f"it has the key {key!r}, which is not text, in the map{place}")
        if key in found:
            raise _Refused(f"it has the key {key!r} twice in the map{place}")
        found[key] = value
    return found


def _scalar(event: Any) -> str | int | float | bool | None:
    text: str = event.value
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, event.implicit).removeprefix(_TAG)
    if tag == "str":
        if len(text) > LONGEST_TEXT:
            raise _Refused(f"it has a text of more than {LONGEST_TEXT} characters{_place(event)}")
        text.encode()  # raises for half of a surrogate pair
        if _CONTROL.search(text):
            raise _Refused(f"it has a control character{_place(event)}")
        return text
    if tag not in ("null", "bool", "int", "float"):
        raise _Refused(f"it has a {tag}{_place(event)}; put it in quotes")
    if len(text) > LONGEST_NUMBER:
        raise _Refused(f"it has a number of more than {LONGEST_NUMBER} characters{_place(event)}")
    number = getattr(_CONSTRUCTOR, f"construct_yaml_{tag}")(yaml.ScalarNode(_TAG + tag, text))
    if tag == "float" and not math.isfinite(number):
        raise _Refused(f"it has {text}, which is not a finite number,{_place(event)}")
    if tag == "int" and number.bit_length() > INTEGER_BITS:
        raise _Refused(f"it has an integer of more than {INTEGER_BITS} bits{_place(event)}")
    value: int | float | bool | None = number
    return value


def _place(event: Any) -> str:
    return f" in line {event.start_mark.line + 1}"
