"""Pruning, verified with the `onnx` package."""

from __future__ import annotations

from itertools import combinations

import onnx
import pytest
import tiny_bundles
from onnx import TensorProto, helper

from penumbra.errors import PenumbraError
from penumbra.vehicle.runners import create
from penumbra.vehicle.runners.pruning import prune

NAMES = ["labels", "uncertainty", "confidence", "frame_score", "entropy"]


@pytest.fixture
def model(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street").model_file.read_bytes()


def needed_nodes(model, outputs):
    """By definition: the nodes from which the outputs are reachable."""
    makers = {name: node for node in model.graph.node for name in node.output}
    todo, found = list(outputs), set()
    while todo:
        node = makers.get(todo.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            todo += node.input
    return found


@pytest.mark.parametrize(
    "wanted", [list(c) for n in range(1, 6) for c in combinations(NAMES, n)], ids=",".join
)
def test_only_needed_nodes_remain(model, wanted):
    before, after = onnx.load_from_string(model), onnx.load_from_string(prune(model, wanted))
    onnx.checker.check_model(after, full_check=True)
    assert [output.name for output in after.graph.output] == wanted
    assert {node.name for node in after.graph.node} == needed_nodes(before, wanted)
    read = {name for node in after.graph.node for name in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= read
    kept = {node.name: node for node in before.graph.node}
    assert all(node == kept[node.name] for node in after.graph.node)
    assert after.graph.input == before.graph.input
    assert after.opset_import == before.opset_import


def test_a_model_without_unused_outputs_is_unchanged(model):
    assert prune(model, NAMES) == model


def test_a_model_with_a_subgraph_is_unchanged():
    """The branches of `If` read `outer`, which is not among its inputs."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["outer"], ["inner"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["outer"]),
            helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
            helper.make_node("Abs", ["x"], ["z"]),
        ],
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "yz"],
    )
    model = helper.make_model(graph).SerializeToString()
    assert prune(model, ["y"]) == model


@pytest.mark.parametrize("invalid", [b"\xff" * 40, b"\x3a\x7f\x01", b"\x0b", b"\x3a"])
def test_an_invalid_protocol_buffer_is_rejected(invalid):
    with pytest.raises(PenumbraError, match="protocol buffer"):
        prune(invalid, ["labels"])


def test_the_runner_loads_only_needed_nodes(tmp_path):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    with create("onnxruntime", bundle, ["labels"]) as runner:
        loaded = onnx.load_from_string(runner._model())
    assert "make_labels" in {node.name for node in loaded.graph.node}
    assert "make_entropy" not in {node.name for node in loaded.graph.node}
