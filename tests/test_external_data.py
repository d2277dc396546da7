"""Wherever ONNX permits a tensor, one that lies in another file is found; checked with `onnx`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penumbra import external_data
from penumbra.errors import PenumbraError
from penumbra.external_data import refuse_external_data
from penumbra.protobuf import varint


def tensor(external: bool, name: str = "w") -> TensorProto:
    made = numpy_helper.from_array(np.arange(4, dtype=np.float32), name)
    if external:
        made.ClearField("raw_data")
        made.data_location = TensorProto.EXTERNAL
        made.external_data.add(key="location", value="weights.bin")
    return made


def graph(nodes=(), **parts) -> onnx.GraphProto:
    made = helper.make_graph(list(nodes), "graph", [], [])
    for name, values in parts.items():
        getattr(made, name).extend(values)
    return made


def node(**attributes) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["y"], **attributes)


def sparse(values, indices) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=values, indices=indices, dims=[9])


def in_training(place, content) -> onnx.ModelProto:
    model = helper.make_model(graph())
    getattr(model.training_info.add(), place).CopyFrom(content)
    return model


def in_function(nodes=(), attributes=()) -> onnx.ModelProto:
    function = helper.make_function("d", "f", [], [], list(nodes), [])
    function.attribute_proto.extend(attributes)
    return helper.make_model(graph(), functions=[function])


def nested(depth: int, innermost: onnx.GraphProto) -> onnx.GraphProto:
    for _ in range(depth):
        innermost = graph([node(body=innermost)])
    return innermost


PLACES = {
    "initializer": lambda t: helper.make_model(graph(initializer=[tensor(False), t])),
    "attribute": lambda t: helper.make_model(graph([node(value=t)])),
    "attribute, several": lambda t: helper.make_model(graph([node(values=[tensor(False), t])])),
    "subgraph": lambda t: helper.make_model(graph([node(body=graph(initializer=[t]))])),
    "subgraphs": lambda t: helper.make_model(graph([node(bodies=[graph(), graph([node(v=t)])])])),
    "deep": lambda t: helper.make_model(nested(20, graph(initializer=[t]))),
    "sparse values": lambda t: helper.make_model(
        graph(sparse_initializer=[sparse(t, tensor(False))])
    ),
    "sparse indices": lambda t: helper.make_model(
        graph(sparse_initializer=[sparse(tensor(False), t)])
    ),
    "sparse attribute": lambda t: helper.make_model(graph([node(v=sparse(t, tensor(False)))])),
    "sparse attributes": lambda t: helper.make_model(graph([node(v=[sparse(t, tensor(False))])])),
    "function": lambda t: in_function([node(value=t)]),
    "default of a function": lambda t: in_function([], [helper.make_attribute("a", t)]),
    "training, first": lambda t: in_training("initialization", graph(initializer=[t])),
    "training, then": lambda t: in_training("algorithm", graph([node(value=t)])),
}


@pytest.mark.parametrize("place", PLACES)
def test_external_data_is_found_in(place):
    refuse_external_data(PLACES[place](tensor(False)).SerializeToString(), "model.onnx")
    model = PLACES[place](tensor(True, "far")).SerializeToString()
    with pytest.raises(PenumbraError, match="model.onnx has a tensor 'far' in another file"):
        refuse_external_data(model, "model.onnx")


@pytest.mark.parametrize("part", ["data_location", "external_data"])
def test_either_mark_suffices(part):
    """A parser may go by one of the two."""
    marked = tensor(True)
    marked.ClearField(part)
    model = PLACES["initializer"](marked).SerializeToString()
    with pytest.raises(PenumbraError, match="in another file"):
        refuse_external_data(model, "model.onnx")


def field(number: int, content: bytes, key: bytes | None = None) -> bytes:
    return (key or varint(number << 3 | 2)) + varint(len(content)) + content


HIDDEN = tensor(True).SerializeToString()


@pytest.mark.parametrize(
    "model, reason",
    [
        # A parser that keeps 32 bits of the key sees the graph in field 7.
        (field(7, field(5, HIDDEN), key=varint((7 << 3 | 2) + (1 << 32))), "field number"),
        (field(7, b"\x2b" + HIDDEN + b"\x2c"), "wire type 3"),  # a group
        (b"\x80" * 11 + b"\x01", "more than 64 bits"),
        (b"\x02\x00", "field number 0"),
        (b"\x3a\x7f\x01", "ends in the middle of a field"),
    ],
)
def test_what_parsers_may_read_differently_is_refused(model, reason):
    with pytest.raises(PenumbraError, match=f"not an ONNX graph .*{reason}"):
        refuse_external_data(model, "model.onnx")


def test_a_second_graph_is_merged_by_parsers_and_read_here():
    model = helper.make_model(graph()).SerializeToString() + field(7, field(5, HIDDEN))
    assert onnx.load_from_string(model).graph.initializer[0].data_location == TensorProto.EXTERNAL
    with pytest.raises(PenumbraError, match="in another file"):
        refuse_external_data(model, "model.onnx")


def test_the_numbers_of_a_tensor_are_skipped(monkeypatch):
    """The work depends on the number of fields, not of bytes."""
    monkeypatch.setattr(external_data, "MOST_FIELDS", 20)
    large = numpy_helper.from_array(np.zeros(1 << 20, np.float32), "w")
    refuse_external_data(helper.make_model(graph(initializer=[large])).SerializeToString(), "m")
    with pytest.raises(PenumbraError, match="more than 20 fields"):
        refuse_external_data(b"\x08\x01" * 21, "m")
