"""Mixed precision, written into the graph: the mean in FP16, the variance in FP32.

TensorRT 11 takes every type as it stands in the graph, so the graph says where half precision is
good enough. That is told by one rule, node by node, from the front:

- A layer with weights (convolution, matrix product, batch norm) that reads a *parameter of the
  model as it is* computes the mean. The variance goes through the same layers with their weights
  squared, and a square is no parameter.
- An operation that leaves the scale of its values as it is (pooling, ReLU, concatenation …)
  computes the mean if all that it reads does.
- Everything else stays in FP32: the image, noise (squares of means leave the range of FP16 at 256),
  the moments of activations, softmax, every output.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

# By operator: which of its inputs are parameters.
_WEIGHTED = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
    "BatchNormalization": (1, 2, 3, 4),
}
_KEEP_SCALE = {
    "Add", "AveragePool", "Clip", "Concat", "DepthToSpace", "Elu", "Expand", "Flatten", "Gather",
    "Greater", "Identity", "LeakyRelu", "Less", "Max", "MaxPool", "Min", "PRelu", "Pad", "Relu",
    "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Transpose",
    "Unsqueeze", "Where",
}  # fmt: skip
# Inputs that are float32 by definition and no data.
_SETTINGS = {"Resize": (1, 2)}


def mean_in_half(model: ir.Model, parameters: Collection[str]) -> int:
    """Turn the mean branch of an FP32 graph into FP16; returns how many nodes that are.

    `parameters` names the initializers that are the model's own, not computed from them.
    """
    graph = model.graph
    half: set[ir.Value] = set()
    nodes = [node for node in graph if _belongs_to_mean(node, half, set(parameters))]
    chosen = set(nodes)
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    for node in list(graph):
        wanted = ir.DataType.FLOAT16 if node in chosen else ir.DataType.FLOAT
        for index, value in _float_inputs(node):
            if (value in half) != (wanted == ir.DataType.FLOAT16):
                node.replace_input_with(index, _cast(value, wanted, node, casts, chosen))
    for value in half:
        value.dtype = ir.DataType.FLOAT16
    RemoveUnusedNodesPass()(model)  # the constants that were replaced
    return len(nodes)


def _belongs_to_mean(node: ir.Node, half: set[ir.Value], parameters: set[str]) -> bool:
    """Decide for one node; its float outputs are added to `half`."""
    outputs = [value for value in node.outputs if value.dtype == ir.DataType.FLOAT]
    if any(value.is_graph_output() for value in outputs):
        return False
    inputs = _float_inputs(node)
    if node.op_type in _WEIGHTED:
        places = _WEIGHTED[node.op_type]
        weights = [value for index, value in inputs if index in places]
        belongs = bool(weights) and all(value.name in parameters for value in weights)
    else:
        data = [value for _, value in inputs if value.const_value is None]
        belongs = node.op_type in _KEEP_SCALE and bool(data) and half.issuperset(data)
    if belongs:
        half.update(outputs)
    return belongs


def _float_inputs(node: ir.Node) -> list[tuple[int, ir.Value]]:
    settings = _SETTINGS.get(node.op_type, ())
    return [
        (index, value)
        for index, value in enumerate(node.inputs)
        if value is not None and value.dtype == ir.DataType.FLOAT and index not in settings
    ]


def _cast(
    value: ir.Value,
    to: ir.DataType,
    reader: ir.Node,
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value],
    chosen: set[ir.Node],
) -> ir.Value:
    """The value in the other type, made once.

    A constant that only the mean reads is stored in FP16. One whose square the variance reads stays
    in FP32 and is converted when the graph is loaded, so that it is in the file once.
    """
    if (value, to) in casts:
        return casts[value, to]
    graph = reader.graph
    if value.is_initializer() and all(user in chosen for user in value.consumers()):
        new = ir.Value(name=f"{value.name}.half", type=ir.TensorType(to), shape=value.shape)
        new.const_value = ir.tensor(value.const_value.numpy().astype("float16"), name=new.name)
        graph.register_initializer(new)
    else:
        node = ir.node("Cast", [value], {"to": to}, metadata_props=dict(reader.metadata_props))
        new = node.outputs[0]
        new.name = f"{value.name}.{'half' if to == ir.DataType.FLOAT16 else 'float'}"
        new.dtype, new.shape = to, value.shape
        node.name = new.name
        graph.insert_before(reader, node)
    casts[value, to] = new
    return new
