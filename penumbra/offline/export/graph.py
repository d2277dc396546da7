"""From a module to an ONNX graph that is as small as it can be and knows where its nodes stem from.

Squared weights are not stored: they stay `Mul(W, W)` of the stored weight, which every runtime
computes once when it loads the graph.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator

import onnx
import onnx_ir as ir
import onnxscript.optimizer
import torch
from onnx_ir.passes import common as passes
from torch import Tensor, nn
from torch.fx.traceback import preserve_node_meta

import penumbra
from penumbra.propagation import Propagated

# The exporter's own, so that nothing is converted; TensorRT 10.0 reads up to 20, 8.6 up to 19.
OPSET = 18
# The layer of the model that a node was made by, in a node's metadata.
LAYER = "penumbra.layer"
# Constants with more elements are not folded: shapes and factors are, weights are not.
_FOLD_AT_MOST = 256
# A dynamic size is at least two windows of SegNet's last pooling: torch.export makes 1 a constant.
_SMALLEST, _LARGEST = 64, 8192


def _without_notes_of_torch(program: torch.export.ExportedProgram) -> None:
    """torch notes which of its own functions made a node, and stumbles over two such notes."""
    for node in program.graph.nodes:
        notes = node.meta.get("custom") or {}
        for name in [name for name in notes if name.startswith("_torchdynamo")]:
            del notes[name]


def to_onnx(frame: nn.Module, image: Tensor, outputs: list[str], dynamic: bool = False) -> ir.Model:
    """The graph of `frame` for images like `image`, or with `dynamic` for any height and width."""
    shapes = None
    if dynamic:
        height = torch.export.Dim("height", min=_SMALLEST, max=_LARGEST)
        width = torch.export.Dim("width", min=_SMALLEST, max=_LARGEST)
        shapes = ({0: height, 1: width},)
    with torch.inference_mode(), _quietly():
        # Where a walk has named its layers, keep the names.
        with preserve_node_meta(any(isinstance(part, Propagated) for part in frame.modules())):
            # Deferred: that cropping leaves no more than padding made is true for every size, but
            # not seen by torch's solver.
            program = torch.export.export(
                frame,
                (image,),
                dynamic_shapes=shapes,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        _without_notes_of_torch(program)
        exported = torch.onnx.export(
            program,
            input_names=["image"],
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
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
    """The file, checked by ONNX's own rules; types and shapes of all values are written into it."""
    model.producer_name, model.producer_version = "penumbra", penumbra.__version__
    _call_nodes_by_layer(model)
    # The exporter's notes are larger than small weights, and tell of the machine they were made on.
    passes.ClearMetadataAndDocStringPass()(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not installed and on torch's insides."""
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
    """Write into each node the layer of the model that it came from."""
    layers = {}
    for node in program.graph.nodes:
        layer = node.meta.get("custom", {}).get("layer")
        if layer is None:  # not inside the walk: the module whose forward made it
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            inside = stack[-1][0] if stack else ""
            layer = f"'{inside}'" if inside else "the frame's pre- or post-processing"
        layers[node.name] = layer
    for node in model.graph:
        origin = re.match(r"%(\w+)", node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
        if origin and origin[1] in layers:
            node.metadata_props[LAYER] = layers[origin[1]]


def _call_nodes_by_layer(model: ir.Model) -> None:
    """`model.decoder.decoder3.0/Conv`: the names that a profiler and a parser's error will show."""
    taken: Counter[str] = Counter()
    for node in model.graph:
        layer = re.search(r"layer '([^']+)'", node.metadata_props.get(LAYER, ""))
        name = f"{layer[1] if layer else 'frame'}/{node.op_type}"
        taken[name] += 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"


def _measure_after_cast(model: ir.Model) -> None:
    """Ask the converted image for its height and width: of uint8, TensorRT knows Cast alone."""
    (image,) = model.graph.inputs
    cast = next(node for node in model.graph if node.op_type == "Cast" and image in node.inputs)
    measures = [node for node in image.consumers() if node.op_type == "Shape"]
    for node in measures:
        node.replace_input_with(0, cast.outputs[0])
    if measures:
        model.graph.remove(cast)
        model.graph.insert_before(model.graph[0], cast)


def _square_by_multiplying(model: ir.Model) -> None:
    """Pow(x, 2) as Mul(x, x): a general power is many times slower."""
    for node in model.graph:
        if node.op_type == "Pow":
            power = ir.convenience.get_const_tensor(node.inputs[1])
            if power is not None and power.size == 1 and float(power.numpy().item()) == 2:
                _replace(node, "Mul", [node.inputs[0], node.inputs[0]])


def _write_out_softmax(model: ir.Model) -> None:
    """Softmax over channels in its own steps, which the runtimes do as they do all others.

    ONNX Runtime brings the channels to the end for its Softmax, and back. On segnet-street at
    480x360, one thread, written out: a whole frame in 0.93 of the time there, 0.96 in OpenVINO.
    """
    for node in model.graph:
        if node.op_type != "Softmax":
            continue
        (x,), name = node.inputs, node.outputs[0].name
        place = node.attributes.get_int("axis", -1) % len(x.shape)
        reduced = ir.Shape([1 if n == place else extent for n, extent in enumerate(x.shape)])
        axis = ir.Value(name=f"{name}_axis", type=ir.TensorType(ir.DataType.INT64))
        axis.const_value, axis.shape = ir.tensor([place], name=axis.name), ir.Shape([1])
        model.graph.register_initializer(axis)
        # The largest is taken off first, so that no exponential leaves the range of the numbers.
        largest = _before(node, "ReduceMax", [x, axis], reduced)
        powers = _before(node, "Exp", [_before(node, "Sub", [x, largest], x.shape)], x.shape)
        _replace(node, "Div", [powers, _before(node, "ReduceSum", [powers, axis], reduced)])


def _stack_phases_as_channels(model: ir.Model) -> None:
    """Unpooling without five-dimensional values.

    A pixel shuffle of four stacked images is Unsqueeze (four times), Concat, Reshape, DepthToSpace.
    With the images as blocks of channels, Concat and DepthToSpace (in its other order) do the same.
    """
    for node in model.graph:
        if node.op_type != "DepthToSpace" or node.attributes.get_string("mode", "DCR") != "CRD":
            continue
        reshape = node.inputs[0].producer()
        concat = reshape.inputs[0].producer() if reshape and reshape.op_type == "Reshape" else None
        if concat is None or concat.op_type != "Concat" or concat.attributes.get_int("axis") != 2:
            continue
        stacked = [value.producer() for value in concat.inputs]
        size = node.attributes.get_int("blocksize")
        if len(stacked) != size**2 or not all(_is_unsqueeze_at(parent, 2) for parent in stacked):
            continue
        phases = [parent.inputs[0] for parent in stacked]
        joined = ir.node("Concat", phases, {"axis": 1}, metadata_props=dict(node.metadata_props))
        joined.outputs[0].name = f"{node.outputs[0].name}_phases"
        joined.outputs[0].dtype = node.outputs[0].dtype
        joined.outputs[0].shape = reshape.outputs[0].shape
        model.graph.insert_before(node, joined)
        _replace(node, "DepthToSpace", joined.outputs, {"blocksize": size, "mode": "DCR"})


def _is_unsqueeze_at(node: ir.Node | None, axis: int) -> bool:
    if node is None or node.op_type != "Unsqueeze":
        return False
    axes = ir.convenience.get_const_tensor(node.inputs[1])
    return axes is not None and axes.numpy().tolist() == [axis]


def _before(node: ir.Node, op_type: str, inputs: list[ir.Value], shape: ir.Shape) -> ir.Value:
    """A step on the way to `node`, with values of its type."""
    new = ir.node(op_type, inputs, metadata_props=dict(node.metadata_props))
    value = new.outputs[0]
    value.name = f"{node.outputs[0].name}_{op_type}"
    value.dtype, value.shape = node.outputs[0].dtype, shape
    node.graph.insert_before(node, new)
    return value


def _replace(
    node: ir.Node, op_type: str, inputs: list[ir.Value], attributes: dict | None = None
) -> None:
    """Put another node in the place of one with a single output, under the same names."""
    new = ir.node(op_type, inputs, attributes, metadata_props=dict(node.metadata_props))
    new.name = node.name
    old, value = node.outputs[0], new.outputs[0]
    value.name, value.dtype, value.shape = old.name, old.dtype, old.shape
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [new], [old], [value])
