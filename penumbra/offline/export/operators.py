"""Checks at export that TensorRT can compile a graph.

By NVIDIA's support table (tensorrt_operators.txt). The error for an unsupported operator names the
layer that it comes from.
"""

from __future__ import annotations

from importlib import resources

import onnx_ir as ir

from penumbra.errors import PenumbraError
from penumbra.offline.export.graph import LAYER


def supported_operators() -> frozenset[str]:
    """The operators of ONNX's default domain that TensorRT supports."""
    text = resources.files("penumbra.offline.export").joinpath("tensorrt_operators.txt").read_text()
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def refuse_unsupported(model: ir.Model) -> None:
    """PenumbraError at the first node that TensorRT cannot compile."""
    supported = supported_operators()
    for node in model.graph.all_nodes():
        obstacle = _obstacle(node, supported)
        if obstacle:
            layer = node.metadata_props.get(LAYER, f"node {node.name!r} of the graph")
            raise PenumbraError(
                f"TensorRT does not support {obstacle}, which comes from {layer}: write the layer "
                "with other operations (see penumbra/offline/export/tensorrt_operators.txt)"
            )


def _obstacle(node: ir.Node, supported: frozenset[str]) -> str | None:
    """What TensorRT does not support of a node, by the table's restrictions; None: nothing."""
    operator = node.op_type
    if node.domain not in ("", "ai.onnx"):
        return f"operator {node.domain}::{operator}"
    if operator not in supported:
        return f"operator {operator}"
    if operator == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].uses():
        return "MaxPool with indices"
    if operator == "ScatterND" and node.attributes.get_string("reduction", "none") != "none":
        return "ScatterND with a reduction"
    if operator == "Resize":
        mode = node.attributes.get_string("mode", "nearest")
        if mode not in ("nearest", "linear"):
            return f"Resize in mode {mode}"
        if node.attributes.get_int("antialias", 0):
            return "Resize with antialiasing"
    if operator != "Cast" and any(_is_byte(value) for value in node.inputs):
        return f"{operator} of uint8 values (only Cast reads them)"
    if operator != "Cast" and any(_is_byte(v) and not v.is_graph_output() for v in node.outputs):
        return f"{operator} to uint8 values"
    return None


def _is_byte(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.UINT8
