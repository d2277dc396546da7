"""Mixed precision in the graph: the mean in FP16, the variance in FP32.

TensorRT 11 uses the types of the graph, so the graph defines where half precision is used. Nodes
are classified in topological order:

- A layer with weights (convolution, matrix product, batch norm) that reads *unmodified parameters
  of the model* computes the mean. The variance goes through the same layers with squared weights,
  which are not parameters.
- An operation that keeps the scale of its values (pooling, ReLU, concatenation …) computes the mean
  if all of its inputs do.
- Everything else stays in FP32: the image, noise (the squares of means above 256 exceed the range
  of FP16), the moments of activations, softmax, all outputs.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from penumbra.offline.export.graph import graph_of

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
# Inputs that are float32 by definition, not data.
_SETTINGS = {"Resize": (1, 2)}


def mean_in_half(model: ir.Model, parameters: Collection[str]) -> int:
    """Convert the mean branch of an FP32 graph to FP16; returns the number of its nodes.

    `parameters` are the names of the initializers that are parameters of the model.
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
    RemoveUnusedNodesPass()(model)  # replaced constants
    return len(nodes)


def _belongs_to_mean(node: ir.Node, half: set[ir.Value], parameters: set[str]) -> bool:
    """Classify a node; if it belongs to the mean, its float outputs are added to `half`."""
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
    """The value in the other type, converted once.

    A constant that only the mean reads is stored in FP16. One whose square the variance reads stays
    in FP32 and is converted when the graph is loaded, so that the file has it once.
    """
    if (value, to) in casts:
        return casts[value, to]
    graph, constant = graph_of(reader), value.const_value
    if (
        value.is_initializer()
        and constant is not None
        and all(user in chosen for user in value.consumers())
    ):
        new = ir.Value(name=f"{value.name}.half", type=ir.TensorType(to), shape=value.shape)
        new.const_value = ir.tensor(constant.numpy().astype("float16"), name=new.name)
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
