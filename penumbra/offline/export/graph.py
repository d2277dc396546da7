"""Translation of a module to a compact ONNX graph whose nodes are named after their layers.

Squared weights are not stored: they stay `Mul(W, W)` of the stored weight, which runtimes compute
once when they load the graph.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir
import onnxscript.optimizer
import torch
from onnx_ir.passes import common as passes
from torch import Tensor, nn
from torch.fx.traceback import preserve_node_meta

import penumbra
from penumbra.errors import PenumbraError
from penumbra.propagation import Propagated

# That of the exporter, so that nothing is converted; TensorRT 10.0 reads up to 20, 8.6 up to 19.
OPSET = 18
# Key of a node's metadata: the layer of the model that it comes from.
LAYER = "penumbra.layer"
# Constants with more elements are not folded, so that shapes and factors are, and weights are not.
_FOLD_AT_MOST = 256
# At least two windows of SegNet's last pooling: torch.export treats a size of 1 as a constant.
_SMALLEST, _LARGEST = 64, 8192


def _remove_dynamo_metadata(program: torch.export.ExportedProgram) -> None:
    """Remove the metadata of torch's own functions: the exporter fails if a node has two."""
    for node in program.graph.nodes:
        metadata = node.meta.get("custom") or {}
        for name in [name for name in metadata if name.startswith("_torchdynamo")]:
            del metadata[name]


def to_onnx(frame: nn.Module, image: Tensor, outputs: list[str], dynamic: bool = False) -> ir.Model:
    """The graph of `frame` for images of the size of `image`, or with `dynamic` of any size."""
    shapes = None
    if dynamic:
        height = torch.export.Dim("height", min=_SMALLEST, max=_LARGEST)
        width = torch.export.Dim("width", min=_SMALLEST, max=_LARGEST)
        shapes = ({0: height, 1: width},)
    with torch.inference_mode(), _quietly():
        # Keep the names that a walk gives its layers.
        with preserve_node_meta(any(isinstance(part, Propagated) for part in frame.modules())):
            # Deferred: torch's solver cannot prove that the crop is within the padded size.
            program = torch.export.export(
                frame,
                (image,),
                dynamic_shapes=shapes,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        _remove_dynamo_metadata(program)
        exported = torch.onnx.export(
            program,
            input_names=["image"],
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    if exported is None or exported.exported_program is None:
        raise PenumbraError("torch.onnx.export returned no graph")
    model = exported.model
    _name_layers(model, exported.exported_program)
    onnxscript.optimizer.optimize(model, input_size_limit=_FOLD_AT_MOST)
    _measure_after_cast(model)
    _square_by_multiplying(model)
    _stack_phases_as_channels(model)
    _write_out_softmax(model)
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedNodesPass()(model)
    return model


def to_bytes(model: ir.Model) -> bytes:
    """The serialised graph with types and shapes of all values, checked by ONNX."""
    model.producer_name, model.producer_version = "penumbra", penumbra.__version__
    _call_nodes_by_layer(model)
    # The exporter's metadata are larger than small weights and contain local paths.
    passes.ClearMetadataAndDocStringPass()(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the exporter's messages on optional packages and deprecations inside torch."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _name_layers(model: ir.Model, program: torch.export.ExportedProgram) -> None:
    """Write into each node the layer of the model that it comes from."""
    layers = {}
    for node in program.graph.nodes:
        layer = node.meta.get("custom", {}).get("layer")
        if layer is None:  # outside of the walk: the module whose forward created it
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            inside = stack[-1][0] if stack else ""
            layer = f"'{inside}'" if inside else "the frame's pre- or post-processing"
        layers[node.name] = layer
    for node in model.graph:
        origin = re.match(r"%(\w+)", node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
        if origin and origin[1] in layers:
            node.metadata_props[LAYER] = layers[origin[1]]


def _call_nodes_by_layer(model: ir.Model) -> None:
    """Name nodes like `model.decoder.decoder3.0/Conv`, as profilers and parser errors show them."""
    taken: Counter[str] = Counter()
    for node in model.graph:
        layer = re.search(r"layer '([^']+)'", node.metadata_props.get(LAYER, ""))
        name = f"{layer[1] if layer else 'frame'}/{node.op_type}"
        taken[name] += 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"


def _measure_after_cast(model: ir.Model) -> None:
    """Take height and width from the converted image: TensorRT supports only Cast of uint8."""
    (image,) = model.graph.inputs
    cast = next(node for node in model.graph if node.op_type == "Cast" and image in node.inputs)
    measures = [node for node in image.consumers() if node.op_type == "Shape"]
    for node in measures:
        node.replace_input_with(0, cast.outputs[0])
    if measures:
        model.graph.remove(cast)
        model.graph.insert_before(model.graph[0], cast)


def _square_by_multiplying(model: ir.Model) -> None:
    """Pow(x, 2) as Mul(x, x), since a general power is many times slower."""
    for node in model.graph:
        if node.op_type == "Pow":
            base, exponent = _input(node, 0), _input(node, 1)
            power = ir.convenience.get_const_tensor(exponent)
            if power is not None and power.size == 1 and float(power.numpy().item()) == 2:
                _replace(node, "Mul", [base, base])


def _write_out_softmax(model: ir.Model) -> None:
    """Softmax over channels as elementary operations.

    ONNX Runtime transposes the channels to the end for its Softmax, and back. On segnet-street at
    480x360, one thread, a frame takes 0.93 of the time there, and 0.96 in OpenVINO.
    """
    for node in model.graph:
        if node.op_type != "Softmax":
            continue
        x, name = _input(node, 0), node.outputs[0].name
        shape = x.shape
        if shape is None:
            continue
        place = node.attributes.get_int("axis", -1) % len(shape)
        reduced = ir.Shape([1 if n == place else extent for n, extent in enumerate(shape)])
        axis = ir.Value(name=f"{name}_axis", type=ir.TensorType(ir.DataType.INT64))
        axis.const_value, axis.shape = ir.tensor([place], name=axis.name), ir.Shape([1])
        model.graph.register_initializer(axis)
        # The largest is subtracted first, so that no exponential overflows.
        largest = _before(node, "ReduceMax", [x, axis], reduced)
        powers = _before(node, "Exp", [_before(node, "Sub", [x, largest], shape)], shape)
        _replace(node, "Div", [powers, _before(node, "ReduceSum", [powers, axis], reduced)])


def _stack_phases_as_channels(model: ir.Model) -> None:
    """Unpooling without five-dimensional values.

    A pixel shuffle of four stacked images is Unsqueeze (four times), Concat, Reshape, DepthToSpace.
    With the images as blocks of channels, Concat and DepthToSpace (in DCR order) are enough.
    """
    for node in model.graph:
        if node.op_type != "DepthToSpace" or node.attributes.get_string("mode", "DCR") != "CRD":
            continue
        reshape = _input(node, 0).producer()
        if reshape is None or reshape.op_type != "Reshape":
            continue
        concat = _input(reshape, 0).producer()
        if concat is None or concat.op_type != "Concat" or concat.attributes.get_int("axis") != 2:
            continue
        size = node.attributes.get_int("blocksize")
        phases = [_unsqueezed(value, 2) for value in concat.inputs]
        images = [phase for phase in phases if phase is not None]
        if len(images) != size**2 or len(images) != len(phases):
            continue
        joined = ir.node("Concat", images, {"axis": 1}, metadata_props=dict(node.metadata_props))
        name = f"{node.outputs[0].name}_phases"
        _describe(joined.outputs[0], name, node.outputs[0].dtype, reshape.outputs[0].shape)
        model.graph.insert_before(node, joined)
        _replace(node, "DepthToSpace", joined.outputs, {"blocksize": size, "mode": "DCR"})


def _unsqueezed(value: ir.Value | None, axis: int) -> ir.Value | None:
    """The input of the Unsqueeze at `axis` that `value` comes from; None if there is none."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "Unsqueeze":
        return None
    axes = ir.convenience.get_const_tensor(_input(node, 1))
    return _input(node, 0) if axes is not None and axes.numpy().tolist() == [axis] else None


def _before(node: ir.Node, op_type: str, inputs: Sequence[ir.Value], shape: ir.Shape) -> ir.Value:
    """Insert an operation before `node`; its output has the type of the node's."""
    new = ir.node(op_type, inputs, metadata_props=dict(node.metadata_props))
    output = node.outputs[0]
    _describe(new.outputs[0], f"{output.name}_{op_type}", output.dtype, shape)
    graph_of(node).insert_before(node, new)
    return new.outputs[0]


def _replace(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value],
    attributes: dict[str, int | str] | None = None,
) -> None:
    """Replace a node with a single output by another one of the same names."""
    new = ir.node(op_type, inputs, attributes, metadata_props=dict(node.metadata_props))
    new.name = node.name
    old, value = node.outputs[0], new.outputs[0]
    _describe(value, old.name, old.dtype, old.shape)
    ir.convenience.replace_nodes_and_values(graph_of(node), node, [node], [new], [old], [value])


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that a node belongs to."""
    if not isinstance(node.graph, ir.Graph):
        raise PenumbraError(f"the node {node.name!r} belongs to no graph")
    return node.graph


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise PenumbraError(f"the node {node.name!r} ({node.op_type}) lacks its input {index}")
    return value


def _describe(
    value: ir.Value, name: str | None, dtype: ir.DataType | None, shape: ir.Shape | None
) -> None:
    value.name, value.shape = name, shape
    if dtype is not None:
        value.dtype = dtype
