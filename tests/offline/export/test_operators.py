"""Unsupported operators of TensorRT are refused at export, with the layer they come from."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from torch import nn

from penumbra.errors import PenumbraError
from penumbra.offline.export.frame import FrameModule, OutputEntry
from penumbra.offline.export.graph import to_onnx
from penumbra.offline.export.operators import refuse_unsupported, supported_operators
from penumbra.propagation import propagate


def graph_with(op_type: str, attributes=None, domain="", outputs=1, dtype=ir.DataType.FLOAT):
    x = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape([1, 1, 4, 4]))
    node = ir.node(op_type, [x], attributes, domain=domain, num_outputs=outputs, name="the_node")
    for index, value in enumerate(node.outputs):
        value.name, value.dtype = f"y{index}", ir.DataType.FLOAT
    nodes = [node]
    if outputs > 1:  # the second one is read
        nodes.append(ir.node("Identity", [node.outputs[1]]))
    graph = ir.Graph([x], [node.outputs[0]], nodes=nodes, opset_imports={"": 18})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    "model, obstacle",
    [
        (graph_with("MaxUnpool"), "operator MaxUnpool"),
        (graph_with("Bernoulli"), "operator Bernoulli"),
        (graph_with("Gelu", domain="com.microsoft"), "operator com.microsoft::Gelu"),
        (graph_with("MaxPool", {"kernel_shape": [2, 2]}, outputs=2), "MaxPool with indices"),
        (graph_with("Resize", {"mode": "cubic"}), "Resize in mode cubic"),
        (graph_with("Resize", {"mode": "linear", "antialias": 1}), "Resize with antialiasing"),
        (graph_with("ScatterND", {"reduction": "add"}), "ScatterND with a reduction"),
        (graph_with("Relu", dtype=ir.DataType.UINT8), "Relu of uint8 values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(model, obstacle):
    with pytest.raises(PenumbraError) as caught:
        refuse_unsupported(model)
    assert f"TensorRT does not support {obstacle}" in str(caught.value)
    assert "the_node" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        graph_with("Relu"),
        graph_with("Cast", {"to": 1}, dtype=ir.DataType.UINT8),
        graph_with("MaxPool", {"kernel_shape": [2, 2]}),
        graph_with("Resize", {"mode": "linear"}),
    ],
)
def test_accepted(model):
    refuse_unsupported(model)


def test_the_table():
    operators = supported_operators()
    assert {"Conv", "Erf", "DepthToSpace", "ArgMax", "Where"} <= operators
    assert not {"MaxUnpool", "Bernoulli", "Det", "#"} & operators
    assert all(name.isidentifier() for name in operators)
    assert len(operators) == 150


class Odd(nn.Module):
    """A layer with an operation that ONNX supports and TensorRT does not."""

    def forward(self, x):
        return (x.to(torch.int32) & 3).to(torch.float32)


class OddFrame(FrameModule):
    OUTPUTS = (OutputEntry("out", "float32", False, "a sum", "one"),)

    def outputs(self, result, image):
        return (result.mean.sum() + result.variance.sum(),)


def test_the_layer_is_named():
    body = nn.Sequential()
    body.add_module("first", nn.Conv2d(3, 4, 3))
    body.add_module("odd", Odd())
    body.add_module("noise", nn.Dropout(0.5))
    body.add_module("last", nn.Conv2d(4, 2, 3))
    frame = OddFrame(propagate(body.eval()), "rgb", [0, 0, 0], [1, 1, 1]).eval()
    model = to_onnx(frame, torch.zeros(16, 16, 3, dtype=torch.uint8), ["out"])
    with pytest.raises(PenumbraError, match="BitwiseAnd, which comes from .*'odd'"):
        refuse_unsupported(model)
