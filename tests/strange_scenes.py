"""A bundle that emits statistics, and a model of familiarity whose scores are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import tiny_bundles
from onnx import TensorProto, helper, numpy_helper

from penumbra.bundle import Bundle
from penumbra.vehicle.monitor.familiarity import Familiarity

NAME = "statistics"


def with_statistics(folder: Path, weights: float = 1.0, **options) -> Bundle:
    """A tiny segmentation bundle whose statistics are the mean of each channel, 0 to 1."""
    bundle = tiny_bundles.segmentation(folder, **options)
    graph = onnx.load(bundle.model_file)
    graph.graph.initializer.append(numpy_helper.from_array(np.array([0, 2, 3]), "all_pixels"))
    graph.graph.initializer.append(numpy_helper.from_array(np.float32(weights), "times"))
    graph.graph.node.append(
        helper.make_node("ReduceMean", ["planes", "all_pixels"], ["means"], keepdims=0)
    )
    graph.graph.node.append(helper.make_node("Mul", ["means", "times"], [NAME]))
    graph.graph.output.append(helper.make_tensor_value_info(NAME, TensorProto.FLOAT, [3]))
    entry = {"name": NAME, "dtype": "float32", "shape": [3], "meaning": "means", "unit": "1"}
    bundle.manifest["outputs"].append({**entry, "optional": False, "role": NAME})
    return tiny_bundles.write_model(folder, bundle, graph.SerializeToString())


def familiarity(centre: float = 0.0) -> Familiarity:
    """Of three statistics; one ordinary frame in a hundred is 0.1 from the centre."""
    return Familiarity(
        centre=np.full(3, centre),
        scale=np.ones(3),
        basis=np.zeros((3, 0)),
        weights=np.zeros(0),
        rest=1.0,
        distances=np.array([0.01, 0.1]),
        tail=np.array([1.0, 0.01]),
        decay=2.0,
    )
