"""Removes from an ONNX file what the requested outputs do not need.

ONNX Runtime computes every node of a graph. The file is a protocol buffer, of which a few fields
are interpreted here; the rest is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penumbra.errors import PenumbraError
from penumbra.protobuf import BYTES, Field, fields, varint

# Field numbers in onnx.proto.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_OUTPUT, GRAPH_VALUE_INFO = 1, 5, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_ATTRIBUTE = 1, 2, 5
ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 6, 11
TENSOR_NAME, VALUE_NAME = 8, 1


def prune(model: bytes, outputs: Sequence[str]) -> bytes:
    """The model with only `outputs`, and the nodes and weights that they need."""
    try:
        return _prune(model, outputs)
    except ValueError as error:
        raise PenumbraError(f"the graph is damaged ({error}): export the model again") from error


def _prune(model: bytes, outputs: Sequence[str]) -> bytes:
    parts: list[bytes | memoryview] = []
    for field in fields(memoryview(model)):
        if field.number == MODEL_GRAPH:
            graph = b"".join(_prune_graph(field.content, outputs))
            parts += [varint(MODEL_GRAPH << 3 | BYTES), varint(len(graph)), graph]
        else:
            parts.append(field.whole)
    return b"".join(parts)


def _prune_graph(graph: memoryview, outputs: Sequence[str]) -> Iterator[memoryview]:
    parts = list(fields(graph))
    nodes = [field for field in parts if field.number == GRAPH_NODE]
    needed, kept = set(outputs), set()
    for node in reversed(nodes):  # ONNX requires topological order
        inside = list(fields(node.content))
        if _has_subgraph(inside):  # it may read any value by name, without listing it
            yield from (field.whole for field in parts)
            return
        if needed.intersection(_names(inside, NODE_OUTPUT)):
            needed.update(_names(inside, NODE_INPUT))
            kept.add(id(node))
    for field in parts:
        if field.number == GRAPH_NODE:
            keep = id(field) in kept
        elif field.number == GRAPH_INITIALIZER:
            keep = needed.issuperset(_names(fields(field.content), TENSOR_NAME))
        elif field.number == GRAPH_OUTPUT:
            keep = not set(_names(fields(field.content), VALUE_NAME)).isdisjoint(outputs)
        elif field.number == GRAPH_VALUE_INFO:
            keep = needed.issuperset(_names(fields(field.content), VALUE_NAME))
        else:
            keep = True
        if keep:
            yield field.whole


def _has_subgraph(node: Sequence[Field]) -> bool:
    return any(
        inner.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS)
        for field in node
        if field.number == NODE_ATTRIBUTE
        for inner in fields(field.content)
    )


def _names(message: Iterator[Field] | Sequence[Field], number: int) -> list[str]:
    return [str(field.content, "utf-8") for field in message if field.number == number]
