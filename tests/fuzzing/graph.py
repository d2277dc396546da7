"""Fuzz target: the bytes of a model.onnx, through the check for external data and the pruning."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import tiny_bundles
from google.protobuf.message import DecodeError
from test_external_data import PLACES, tensor

from penumbra.errors import PenumbraError
from penumbra.external_data import refuse_external_data
from penumbra.vehicle.runners.pruning import prune


def run_one(data: bytes) -> None:
    """Check and prune one input; every exception but PenumbraError is a defect.

    So is external data that passes the check: the `onnx` package reads the same bytes.
    """
    try:
        prune(data, ["labels", "frame_score"])
    except PenumbraError as error:
        assert "\n" not in str(error), error
    try:
        refuse_external_data(data, "model.onnx")
    except PenumbraError as error:
        assert "\n" not in str(error), error
        return
    try:
        model = onnx.load_from_string(data)
    except DecodeError:
        return
    assert not any(map(onnx.external_data_helper.uses_external_data, tensors(model))), data


def tensors(message) -> list[onnx.TensorProto]:
    """Every tensor of a message, found by the description of the format and not by our table."""
    found, todo = [], [message]
    while todo:
        each = todo.pop()
        if isinstance(each, onnx.TensorProto):
            found.append(each)
        for field, value in each.ListFields():
            if field.type == field.TYPE_MESSAGE:
                todo += list(value) if isinstance(value, list) or hasattr(value, "add") else [value]
    return found


def seeds() -> list[bytes]:
    """Graphs of both tasks, and one for each place where a tensor can be."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            tiny_bundles.segmentation(Path(folder) / "street").model_file.read_bytes(),
            tiny_bundles.depth(Path(folder) / "depth").model_file.read_bytes(),
        ]
    for make in PLACES.values():
        found += [make(tensor(external)).SerializeToString() for external in (False, True)]
    return found
