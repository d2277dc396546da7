"""The encoding of protocol buffers: enough of it to walk an ONNX file without the `onnx` package.

`onnx` is too heavy for a vehicle (30 MB, a third of a second). A message is a sequence of fields,
each with a number, a wire type and its content; a message within it is the content of a field, and
is skipped by its length. What is not certain to be read alike by every parser is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
_LONGEST_VARINT = 10  # bytes: 64 bits in groups of seven
_KEYS = 1 << 32  # parsers truncate a larger key to 32 bits, to the number of another field


class Field(NamedTuple):
    """One field of a message: its number, its content, and its complete encoding."""

    number: int
    content: memoryview
    whole: memoryview


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message; ValueError if it is not one."""
    position = 0
    while position < len(message):
        start = position
        key, position = read_varint(message, position)
        kind = key & 7
        if kind == VARINT:
            content = position
            _, position = read_varint(message, position)
        elif kind == BYTES:
            size, content = read_varint(message, position)
            position = content + size
        elif kind in (FIXED64, FIXED32):
            content = position
            position += 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"invalid wire type {kind} in the protocol buffer")
        if position > len(message):
            raise ValueError("the protocol buffer ends in the middle of a field")
        if not 8 <= key < _KEYS:
            raise ValueError(f"invalid field number {key >> 3} in the protocol buffer")
        yield Field(key >> 3, message[content:position], message[start:position])


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, least significant first, and its end position."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if position >= len(message):
            raise ValueError("the protocol buffer ends in the middle of a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number in the protocol buffer has more than 64 bits")


def varint(value: int) -> bytes:
    """The encoding of a number."""
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
