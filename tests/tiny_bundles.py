"""Bundles small enough to run and build in a moment, with graphs whose results are known.

The segmentation graph is a fixed 3x3 convolution and a softmax over four classes; the depth graph
takes its disparity from the brightness of a pixel. Both read a camera's `uint8` image as
exported networks do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, checker, helper, numpy_helper

from penumbra.bundle import Bundle, Thresholds, write_bundle

CLASSES = ("road", "sky", "car", "tree")
OPSET, IR_VERSION = 20, 10  # what TensorRT 10.3 and ONNX Runtime 1.20 still read
BASELINE_M, FOCAL_PER_WIDTH, MAX_DEPTH_M = 0.5, 0.8, 80.0
ROLES = {
    "labels": "prediction",
    "disparity": "prediction",
    "uncertainty": "uncertainty",
    "confidence": "confidence",
    "frame_score": "score",
}


def segmentation(
    folder: Path, height: int | None = 36, width: int | None = 48, **changes
) -> Bundle:
    """Outputs labels, uncertainty, confidence, frame_score and, optional, entropy."""
    size = [height or "height", width or "width"]
    weights = np.random.default_rng(0).normal(0, 0.3, (len(CLASSES), 3, 3, 3)).astype(np.float32)
    constants = {
        "weights": weights,
        "scale": np.float32(1 / 255),
        "first": np.array([0]),
        "classes": np.array([1]),
    }
    nodes = [
        *_read_image("planes"),
        _node("Conv", "planes weights", "logits", pads=[1, 1, 1, 1]),
        _node("Softmax", "logits", "p", axis=1),
        _node("ArgMax", "p", "best", axis=1, keepdims=0),
        _node("Squeeze", "best first", "best_map"),
        _node("Cast", "best_map", "labels", to=TensorProto.UINT8),
        _node("ReduceMax", "p classes", "top", keepdims=0),
        _node("Squeeze", "top first", "confidence"),
        _node("Mul", "p p", "p_squared"),
        _node("Sub", "p p_squared", "variance"),
        _node("Sqrt", "variance", "std"),
        _node("ReduceMean", "std classes", "mean_std", keepdims=0),
        _node("Squeeze", "mean_std first", "uncertainty"),
        _node("ReduceMean", "uncertainty", "frame_score", keepdims=0),
        _node("Log", "p", "log_p"),
        _node("Mul", "p log_p", "p_log_p"),
        _node("ReduceSum", "p_log_p classes", "negative", keepdims=0),
        _node("Squeeze", "negative first", "negative_map"),
        _node("Neg", "negative_map", "entropy"),
    ]
    outputs = {
        "labels": ("uint8", size, False),
        "uncertainty": ("float32", size, False),
        "confidence": ("float32", size, False),
        "frame_score": ("float32", [], False),
        "entropy": ("float32", size, True),
    }
    classes = [{"name": name, "colour": [20 * n, 0, 0]} for n, name in enumerate(CLASSES)]
    manifest = {"task": "segmentation", "classes": classes, "depth": None, **changes}
    return _write(folder, nodes, constants, size, outputs, manifest)


def depth(folder: Path, height: int | None = 36, width: int | None = 48, **changes) -> Bundle:
    """Disparity is a hundredth of the mean brightness (0 to 255), its std a tenth of that."""
    size = [height or "height", width or "width"]
    constants = {
        "scale": np.float32(0.01),
        "tenth": np.float32(0.1),
        "axes": np.array([0, 1]),
        "first": np.array([0]),
    }
    nodes = [
        *_read_image("planes"),
        _node("ReduceMean", "planes axes", "disparity", keepdims=0),
        _node("Mul", "disparity tenth", "uncertainty"),
        _node("ReduceMean", "uncertainty", "frame_score", keepdims=0),
    ]
    outputs = {
        "disparity": ("float32", size, False),
        "uncertainty": ("float32", size, False),
        "frame_score": ("float32", [], False),
    }
    scale = {
        "baseline_m": BASELINE_M,
        "focal_per_width": FOCAL_PER_WIDTH,
        "max_depth_m": MAX_DEPTH_M,
    }
    manifest = {"task": "depth", "classes": [], "depth": scale, **changes}
    return _write(folder, nodes, constants, size, outputs, manifest)


def endless(folder: Path, **changes) -> Bundle:
    """A segmentation graph with a loop that never ends in front of its labels."""
    model = segmentation(folder, **changes)
    graph = onnx.load(model.model_file)
    body = helper.make_graph(
        [_node("Identity", "go", "go_on"), _node("Add", "value one_inside", "next")],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
        ],
        [numpy_helper.from_array(np.float32(1), "one_inside")],
    )
    loop = helper.make_node("Loop", ["rounds", "yes", "scale"], ["spun"], body=body)
    graph.graph.initializer.append(numpy_helper.from_array(np.int64(2**62), "rounds"))
    graph.graph.initializer.append(numpy_helper.from_array(np.bool_(True), "yes"))
    graph.graph.node.insert(0, loop)
    for node in graph.graph.node:
        if node.op_type == "Mul" and "scale" in node.input:
            node.input[list(node.input).index("scale")] = "spun"
    return write_model(folder, model, graph.SerializeToString())


def image(height: int = 36, width: int = 48, seed: int = 0) -> np.ndarray:
    """An image of noise."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_model(folder: Path, bundle: Bundle, model: bytes) -> Bundle:
    """The same bundle with another graph, checksums and all."""
    manifest = {k: v for k, v in bundle.manifest.items() if k not in ("schema", "files")}
    return write_bundle(folder, manifest, {"model.onnx": model, "weights.safetensors": b"none"})


def _node(operator: str, inputs: str, output: str, **attributes):
    return helper.make_node(operator, inputs.split(), [output], name=f"make_{output}", **attributes)


def _read_image(planes: str) -> list:
    return [
        _node("Cast", "image", "image_float", to=TensorProto.FLOAT),
        _node("Mul", "image_float scale", "image_scaled"),
        _node("Transpose", "image_scaled", "image_planes", perm=[2, 0, 1]),
        _node("Unsqueeze", "image_planes first", planes),
    ]


def _write(folder, nodes, constants, size, outputs, changes) -> Bundle:
    types = {"uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, [*size, 3])],
        [helper.make_tensor_value_info(n, types[t], shape) for n, (t, shape, _) in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    checker.check_model(model, full_check=True)
    height, width = (extent if isinstance(extent, int) else None for extent in size)
    if thresholds := changes.pop("thresholds", None):
        changes["alerts"] = Thresholds(**thresholds).entry()
    manifest = {
        "name": folder.name,
        "licence": None,
        "model": {"entry_point": "tiny", "reference": None, "arguments": {}},
        "rules": {"relu": "moment", "softmax": "jacobian", "variance": "diagonal"},
        "precision": "fp32",
        "input": {
            "name": "image",
            "height": height,
            "width": width,
            "channel_order": "bgr",
            "working_size": None,
        },
        "outputs": [
            {
                "name": name,
                "dtype": kind,
                "shape": [extent if isinstance(extent, int) else None for extent in shape],
                "meaning": name,
                "unit": "1",
                "optional": optional,
                "role": ROLES.get(name, "map"),
            }
            for name, (kind, shape, optional) in outputs.items()
        ],
        "gains": None,
        "alerts": None,
        "tolerances": None,
        "provenance": {
            "command": "tests/tiny_bundles.py",
            "version": "0",
            "seed": 0,
            "data": None,
            "created": "2026-01-01T00:00:00+00:00",
            "torch": "none",
        },
        **changes,
    }
    files = {"model.onnx": model.SerializeToString(), "weights.safetensors": b"none"}
    return write_bundle(folder, manifest, files)
