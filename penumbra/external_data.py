"""Refuses an ONNX file whose tensors lie in other files.

ONNX permits a tensor to name a file beside the graph, or anywhere, that holds its numbers. Such a
file is not among the checksums of a bundle: replaced, the bundle verifies and every label changes.
"""

from __future__ import annotations

from penumbra.errors import PenumbraError
from penumbra.protobuf import fields, read_varint
from penumbra.text import printable

MOST_FIELDS = 500_000  # seconds in Python; the graphs of the shipped models have 20,000

# Where a tensor can be, in onnx.proto: for each kind of message, the kind of each field's message.
MODEL, TENSOR = "ModelProto", "TensorProto"
_GRAPH, _NODE, _ATTRIBUTE = "GraphProto", "NodeProto", "AttributeProto"
_SPARSE, _FUNCTION, _TRAINING = "SparseTensorProto", "FunctionProto", "TrainingInfoProto"
_INSIDE = {
    MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: TENSOR, 6: _GRAPH, 10: TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: TENSOR, 2: TENSOR},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
    TENSOR: {},
}
_TENSOR_NAME, _TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION = 8, 13, 14


def refuse_external_data(model: bytes, where: object) -> None:
    """Raise PenumbraError if a tensor of the ONNX file lies elsewhere, or the file is damaged.

    Only headers are read: the numbers of a tensor are skipped by their length.
    """
    try:
        tensor = _first_external(memoryview(model))
    except ValueError as error:
        raise PenumbraError(
            f"{where} is not an ONNX graph ({error}): export the model again"
        ) from error
    if tensor is not None:
        raise PenumbraError(
            f"{where} has a tensor {printable(tensor)!r} in another file, which no checksum "
            "covers: export the model with its tensors inside (onnx.save without external data)"
        )


def _first_external(model: memoryview) -> str | None:
    """The name of the first tensor with external data; a stack, since graphs nest in graphs."""
    todo, seen = [(MODEL, model)], 0
    while todo:
        kind, message = todo.pop()
        name, external = "", False
        for number, content, _ in fields(message):
            seen += 1
            if seen > MOST_FIELDS:
                raise ValueError(f"more than {MOST_FIELDS} fields")
            inner = _INSIDE[kind].get(number)
            if inner is not None:
                todo.append((inner, content))
            elif kind == TENSOR:
                if number == _TENSOR_NAME:
                    name = bytes(content).decode("utf-8", "replace")
                elif number == _TENSOR_EXTERNAL_DATA:
                    external = True
                elif number == _TENSOR_DATA_LOCATION:
                    external |= read_varint(content, 0)[0] != 0
        if external:
            return name
    return None
