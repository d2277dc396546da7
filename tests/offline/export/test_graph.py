"""The exported graph: compact, reproducible, with constants folded."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exported_networks import network, street
from torch import nn

from penumbra.offline.export import ExportOptions, export_graph, make_frame
from penumbra.offline.export.folding import fold_batch_norms
from penumbra.offline.export.graph import to_bytes, to_onnx
from penumbra.offline.models.pooling import MaxPool2x2, MaxUnpool2x2
from penumbra.propagation import Moments, propagate

FIXED = {"height": 67, "width": 101}


def load(bundle) -> onnx.ModelProto:
    return onnx.load(bundle.model_file)


@pytest.mark.slow
def test_input_and_outputs_are_as_the_manifest_says(exported):
    for options in (FIXED, {}):
        bundle = exported("class", **options)
        graph = load(bundle).graph
        (image,) = graph.input
        assert image.name == bundle.input.name
        assert image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
        dims = [d.dim_value or None for d in image.type.tensor_type.shape.dim]
        assert dims == [bundle.input.height, bundle.input.width, 3]
        for value, output in zip(graph.output, bundle.outputs, strict=True):
            tensor = value.type.tensor_type
            assert value.name == output.name
            assert onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) == output.dtype
            assert tuple(d.dim_value or None for d in tensor.shape.dim) == output.shape


@pytest.mark.slow
def test_no_redundant_nodes_in_a_graph_of_fixed_size(exported):
    counts = Counter(node.op_type for node in load(exported("encdec", **FIXED)).graph.node)
    assert counts["Transpose"] == 1  # HWC to CHW
    assert counts["Shape"] == counts["Reshape"] == counts["Expand"] == 0
    assert counts["BatchNormalization"] == 0
    assert counts["Pow"] == 0
    assert counts["Unsqueeze"] <= 1  # the batch
    # 25 layers and the classifier; 18 of the layers and the classifier follow a noise source.
    assert counts["Conv"] == 26 + 19
    assert counts["Erf"] == counts["Exp"] - 1 == 18  # one moment ReLU each, and the softmax
    assert counts["DepthToSpace"] == 10  # five unpoolings, mean and variance
    assert counts["Concat"] == 10 + 6  # unpoolings; the statistics of five taps, and all together


@pytest.mark.slow
def test_squared_weights_are_not_in_the_file(exported):
    """Neither squared nor duplicated: the file is the weights and 0.1 MB of structure."""
    for options in (FIXED, {**FIXED, "precision": "mixed"}):
        bundle = exported("encdec", **options)
        weights = sum(p.numel() for p in network("encdec").parameters()) * 4
        assert bundle.model_file.stat().st_size < weights + 250_000


@pytest.mark.slow
def test_squared_weights_are_constants_once_loaded(exported, tmp_path):
    """In the optimised graph that ONNX Runtime writes."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(
        exported("encdec", **FIXED).model_file, options, providers=["CPUExecutionProvider"]
    )
    graph = onnx.load(tmp_path / "optimised.onnx").graph
    constants = {initializer.name for initializer in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type in ("Conv", "FusedConv")]
    assert len(convolutions) == 45
    assert all(node.input[1] in constants for node in convolutions)


@pytest.mark.slow
def test_nodes_are_named_by_layer_without_local_paths(exported):
    data = exported("encdec", **FIXED).model_file.read_bytes()
    names = {node.name for node in onnx.load_model_from_string(data).graph.node}
    assert "model.decoder.decoder3.3/Conv" in names
    assert {"softmax/Exp", "softmax/Div"} <= names and "softmax/Softmax" not in names
    for trace in (b"/home", b"/root", b"/tmp", b"/work", b"site-packages", b".py"):
        assert trace not in data


@pytest.mark.slow
def test_the_same_model_gives_the_same_file():
    options = ExportOptions(64, 64)
    first, second = (
        export_graph(make_frame(network("class"), "segnet", options), options) for _ in range(2)
    )
    assert first == second


def test_folding_changes_nothing_but_the_number_of_steps():
    # Folded in double precision, too: a kernel that was rounded to float32 can decide a pooling.
    model = copy.deepcopy(network("encdec")).double()
    before = propagate(model)
    after = fold_batch_norms(before)
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected, found = before(x.double()), after(x.double())
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-9, atol=1e-12)
    kinds = [type(module) for module in after.modules()]
    assert nn.BatchNorm2d not in kinds
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_folding_leaves_a_shared_convolution_alone():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Conv2d(3, 3, 1)
            self.norm = nn.BatchNorm2d(3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.norm(self.shared(self.drop(x))) + self.shared(x)

    model = Twice()
    nn.init.uniform_(model.norm.weight, 2, 3)
    propagated = propagate(model.eval())
    x = torch.rand(1, 3, 4, 4)
    expected, found = propagated(x), fold_batch_norms(propagated)(x)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


class Unpooling(nn.Module):
    """Pooling and unpooling of moments, as in SegNet."""

    def __init__(self):
        super().__init__()
        self.pool, self.unpool = MaxPool2x2(), MaxUnpool2x2()

    def forward(self, x):
        pooled, selection = self.pool(x)
        return pooled, self.unpool(pooled, selection)


class MomentsFrame(nn.Module):
    def __init__(self):
        super().__init__()
        self.walk = propagate(Unpooling())

    def forward(self, mean, variance):
        pooled, unpooled = self.walk(Moments(mean, variance))
        return pooled.mean, pooled.variance, unpooled.mean, unpooled.variance


@pytest.mark.parametrize("seed", range(3))
def test_unpooling_in_the_graph_is_exact_with_ties_for_mean_and_variance(seed):
    random = np.random.default_rng(seed)
    mean = np.maximum(random.integers(-2, 2, (1, 6, 8, 10)), 0).astype(np.float32)  # mostly ties
    variance = random.random(mean.shape, dtype=np.float32)
    with torch.inference_mode():
        program = torch.onnx.export(
            MomentsFrame().eval(),
            (torch.zeros(mean.shape), torch.zeros(mean.shape)),
            input_names=["mean", "variance"],
            output_names=["a", "b", "c", "d"],
            dynamo=True,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(None, {"mean": mean, "variance": variance})
    pooled, indices = nn.MaxPool2d(2, return_indices=True)(torch.from_numpy(mean))
    gathered = torch.from_numpy(variance).flatten(2).gather(2, indices.flatten(2))
    gathered = gathered.view_as(pooled)
    unpool = nn.MaxUnpool2d(2)
    expected = (pooled, gathered, unpool(pooled, indices), unpool(gathered, indices))
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array_equal(mine, theirs.numpy())


class Shuffle(nn.Module):
    """uint8 in, four phases shuffled: must be equivalent after the rewriting of unpoolings."""

    def forward(self, image):
        x = image.to(torch.float32).permute(2, 0, 1)[None]
        parts = torch.stack([x, x * 2, x * 3, x * 4], dim=2).flatten(1, 2)
        return nn.functional.pixel_shuffle(parts, 2)


def test_phases_as_channels_are_equivalent():
    image = street(6, 8)
    model = to_onnx(Shuffle(), torch.zeros(6, 8, 3, dtype=torch.uint8), ["out"])
    data = to_bytes(model)
    operators = [node.op_type for node in onnx.load_model_from_string(data).graph.node]
    assert operators.count("Reshape") == 0  # it was rewritten
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": image})
    assert np.array_equal(found, Shuffle()(torch.from_numpy(image)).numpy())
