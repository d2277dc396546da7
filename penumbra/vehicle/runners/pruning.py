"""Removes from an ONNX file what the requested outputs do not need.

ONNX Runtime computes every node of a graph, and the `onnx` package is too heavy for a vehicle
(30 MB, a third of a second). The file is a protocol buffer: a sequence of fields, each with a
number, a wire type and its content. Four of them are interpreted here; the rest is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Field numbers in onnx.proto.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_OUTPUT, GRAPH_VALUE_INFO = 1, 5, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_ATTRIBUTE = 1, 2, 5
ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 6, 11
TENSOR_NAME, VALUE_NAME = 8, 1

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class Field(NamedTuple):
    """One field of a message: its number, its content, and its complete encoding."""

    number: int
    content: memoryview
    whole: memoryview


def prune(model: bytes, outputs: Sequence[str]) -> bytes:
    """The model with only `outputs`, and the nodes and weights that they need."""
    parts: list[bytes | memoryview] = []
    for field in _fields(memoryview(model)):
        if field.number == MODEL_GRAPH:
            graph = b"".join(_prune_graph(field.content, outputs))
            parts += [_varint(MODEL_GRAPH << 3 | BYTES), _varint(len(graph)), graph]
        else:
            parts.append(field.whole)
    return b"".join(parts)


def _prune_graph(graph: memoryview, outputs: Sequence[str]) -> Iterator[memoryview]:
    fields = list(_fields(graph))
    nodes = [field for field in fields if field.number == GRAPH_NODE]
    needed, kept = set(outputs), set()
    for node in reversed(nodes):  # ONNX requires topological order
        inside = list(_fields(node.content))
        if _has_subgraph(inside):  # it may read any value by name, without listing it
            yield from (field.whole for field in fields)
            return
        if needed.intersection(_names(inside, NODE_OUTPUT)):
            needed.update(_names(inside, NODE_INPUT))
            kept.add(id(node))
    for field in fields:
        if field.number == GRAPH_NODE:
            keep = id(field) in kept
        elif field.number == GRAPH_INITIALIZER:
            keep = needed.issuperset(_names(_fields(field.content), TENSOR_NAME))
        elif field.number == GRAPH_OUTPUT:
            keep = not set(_names(_fields(field.content), VALUE_NAME)).isdisjoint(outputs)
        elif field.number == GRAPH_VALUE_INFO:
            keep = needed.issuperset(_names(_fields(field.content), VALUE_NAME))
        else:
            keep = True
        if keep:
            yield field.whole


def _has_subgraph(node: Sequence[Field]) -> bool:
    return any(
        inner.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS)
        for field in node
        if field.number == NODE_ATTRIBUTE
        for inner in _fields(field.content)
    )


def _names(fields: Iterator[Field] | Sequence[Field], number: int) -> list[str]:
    return [str(field.content, "utf-8") for field in fields if field.number == number]


def _fields(message: memoryview) -> Iterator[Field]:
    position = 0
    while position < len(message):
        start = position
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == VARINT:
            content = position
            _, position = _read_varint(message, position)
        elif kind == BYTES:
            size, content = _read_varint(message, position)
            position = content + size
        elif kind in (FIXED64, FIXED32):
            content = position
            position += 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"invalid wire type {kind} in the protocol buffer")
        if position > len(message):
            raise ValueError("the protocol buffer ends in the middle of a field")
        yield Field(key >> 3, message[content:position], message[start:position])


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, least significant first, and its end position."""
    value = shift = 0
    while True:
        if position >= len(message):
            raise ValueError("the protocol buffer ends in the middle of a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
