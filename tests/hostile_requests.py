"""Random requests to any service, made from the fields of its type."""

from __future__ import annotations

import importlib
import math
import random
import re
from typing import Any

TEXTS = [
    "",
    "x",
    "x" * 100_000,
    "\x1b[2J\x1b[31mred",
    "two\nlines",
    "back\rspace\b\b",
    "[ERROR] [0.0] [penumbra]: forged",
    "<script>alert(1)</script>",
    "%s%n{0}{}",
    "../../etc/passwd",
    "\u202ereversed",
    "\N{SNOWMAN}",
    "a..b",
    ".",
    "~",
    "/",
]
NUMBERS = {
    "double": [0.0, -1.0, 1e308, -1e308, math.nan, math.inf, -math.inf, 5e-324, 1.0],
    "boolean": [False, True],
    "octet": [b"\x00", b"\xff"],
}
LENGTHS = [0, 0, 1, 1, 1, 2, 3, 40]


class Requests:
    """Requests of random content; `names` are used as text more often than others."""

    def __init__(self, seed: int, names: list[str]) -> None:
        self._choose = random.Random(seed)
        self._names = names

    def fill(self, kind: type) -> Any:
        """A message of this type with random fields."""
        message = kind()
        for field, of in kind.get_fields_and_field_types().items():
            setattr(message, field, self._value(of, field))
        return message

    def _value(self, of: str, field: str) -> Any:
        if found := re.fullmatch(r"sequence<(.+?)(?:, (\d+))?>", of):
            length = min(self._choose.choice(LENGTHS), int(found[2] or 100))
            return [self._value(found[1], field) for _ in range(length)]
        if found := re.fullmatch(r"(.+)\[(\d+)\]", of):
            return [self._value(found[1], field) for _ in range(int(found[2]))]
        if of.startswith("string"):
            names = self._names if self._choose.random() < 0.6 else TEXTS
            return self._choose.choice(names)
        if found := re.fullmatch(r"(u?)int(\d+)", of):
            return self._integer(found[1] == "", int(found[2]), field)
        if of in NUMBERS:
            return self._choose.choice(NUMBERS[of])
        return self.fill(message_type(of))

    def _integer(self, signed: bool, bits: int, field: str) -> int:
        largest = 2 ** (bits - signed) - 1
        if field == "type" and self._choose.random() < 0.7:
            return self._choose.randint(0, 9)  # the defined types of a parameter
        odd = [0, 1, 2, 3, largest, -largest - 1 if signed else 77]
        return self._choose.choice([*odd, self._choose.randint(0, largest)])


def message_type(name: str) -> type:
    """The type of `package/Name`."""
    package, _, last = name.partition("/")
    return getattr(importlib.import_module(f"{package}.msg"), last)


def service_type(name: str) -> type:
    """The type of `package/srv/Name`."""
    package, _, last = name.split("/")
    return getattr(importlib.import_module(f"{package}.srv"), last)
