"""Monodepth: shapes, dropout, propagation and export."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.errors import PenumbraError
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.monodepth import LARGEST, Monodepth
from penumbra.propagation import propagate
from penumbra.propagation.montecarlo import monte_carlo

FORMS = ["vgg", "resnet50"]
MULTIPLE = {"vgg": 128, "resnet50": 64}


def small(encoder="vgg", **options) -> Monodepth:
    torch.manual_seed(0)
    return Monodepth(encoder, width=1 / 32, **options).eval()


@pytest.mark.parametrize("encoder", FORMS)
@torch.inference_mode()
def test_training_gives_four_scales_of_both_images(encoder):
    model = small(encoder).train()
    disparities = model(torch.randn(2, 3, 128, 256))
    assert [tuple(d.shape) for d in disparities] == [
        (2, 2, 128 // scale, 256 // scale) for scale in (1, 2, 4, 8)
    ]
    for disparity in disparities:
        assert disparity.min() > 0 and disparity.max() < LARGEST


@pytest.mark.parametrize("encoder", FORMS)
@torch.inference_mode()
def test_evaluation_is_the_finest_left_disparity(encoder):
    model, image = small(encoder, dropout="none"), torch.randn(2, 3, 128, 256)
    everything = model.train()(image)  # without dropout and batch norm, the same computation
    assert torch.equal(model.eval()(image), everything[0][:, :1])


def test_the_published_networks_at_full_width():
    """Weight for weight the size of the authors' code, which prints 31,600,072 and 58,452,008.

    Their ResNet50 projects every shortcut; here, as in ResNet, those that keep their shape are left
    alone: 1, 2, 4 and 1 of 256, 512, 1024 and 2048 channels.
    """
    with torch.device("meta"):
        sizes = {form: sum(p.numel() for p in Monodepth(form).parameters()) for form in FORMS}
    assert sizes["vgg"] == 31_600_072
    spared = sum(n * c * (c + 1) for n, c in ((1, 256), (2, 512), (4, 1024), (1, 2048)))
    assert sizes["resnet50"] + spared == 58_452_008


@pytest.mark.parametrize("encoder", FORMS)
@pytest.mark.parametrize("size", [(188, 620), (33, 31), (1, 1)])
@torch.inference_mode()
def test_any_size_is_padded_by_its_edge_and_cropped_back(encoder, size):
    model, image = small(encoder), torch.randn(1, 3, *size)
    (height, width), multiple = size, MULTIPLE[encoder]
    padded = F.pad(image, (0, -width % multiple, 0, -height % multiple), mode="replicate")
    # The sigmoid behind the cropping rounds differently in the last bit for another memory layout.
    expected = model(padded)[..., :height, :width]
    torch.testing.assert_close(model(image), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_one_dropout_before_the_last_convolution_of_the_finest_scale(batch_norm):
    model = small(rate=0.3, batch_norm=batch_norm)
    order = []
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Dropout)):
            module.register_forward_hook(lambda m, x, y, name=name: order.append((name, m)))
    model(torch.randn(1, 3, 128, 128))
    dropouts = [module for _, module in order if isinstance(module, nn.Dropout)]
    assert len(dropouts) == 1 and dropouts[0].p == 0.3
    assert [name for name, _ in order][-2:] == ["dropout", "heads.disparity1"]


def test_the_weights_are_the_same_with_and_without_dropout():
    small(dropout="none").load_state_dict(small().state_dict())


def test_unknown_forms_are_named():
    with pytest.raises(PenumbraError, match=r"'alexnet': use vgg or resnet50"):
        Monodepth("alexnet")
    with pytest.raises(PenumbraError, match=r"'class': use final or none"):
        Monodepth(dropout="class")


def test_a_saved_model_is_loaded_unchanged(tmp_path):
    depth = {"baseline_m": 0.12, "focal_per_width": 0.9, "max_depth_m": 30.0}
    model = small("resnet50", rate=0.35, size=(64, 128), depth=depth, batch_norm=True)
    again = load_model(save_model(model, tmp_path))
    assert again.config == model.config == json.loads(json.dumps(model.config))
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


@pytest.mark.parametrize("encoder", FORMS)
def test_gradients_reach_every_weight(encoder):
    model = small(encoder, batch_norm=True).train()
    sum(d.sum() for d in model(torch.randn(2, 3, 128, 128))).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def excited(encoder: str) -> Monodepth:
    """A random network whose disparities vary: its last weights are those of a trained one."""
    model = small(encoder, rate=0.5, batch_norm=True)
    model.train()
    with torch.no_grad():
        for _ in range(20):  # statistics for the batch norms
            model(torch.randn(2, 3, 128, 128))
        model.eval()
        nn.init.normal_(model.heads["disparity1"].weight, std=0.05)
    return model


@pytest.mark.parametrize("encoder", FORMS)
def test_propagated_disparity_against_sampling(encoder):
    """One dropout, one convolution, one sigmoid.

    Up to the sigmoid the propagated moments are exact; its input is a sum of 72 products with
    Bernoulli variables, which the rule takes as Gaussian. So the error has two parts: sampling,
    1/√n σ of the mean and √(2/n) of the variance, and the Gaussian approximation. Measured with
    20,000 samples, that costs nothing in the mean and 1.1 % of the variance; twice that is allowed.
    """
    samples = 2000
    model, image = excited(encoder), torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        found = propagate(model)(image)
    reference = monte_carlo(model, image, samples=samples, seed=3)
    assert found.mean.shape == reference.mean.shape == (1, 1, 64, 64)
    std = reference.variance.sqrt()
    shift = (found.mean - reference.mean).abs() / std
    assert shift.mean() < samples**-0.5
    relative = (found.variance - reference.variance).abs() / reference.variance
    assert relative.mean() < (2 / samples) ** 0.5 + 0.022
    assert abs(found.variance.sum() / reference.variance.sum() - 1) < 0.022


def test_noise_reaches_one_convolution_only():
    """What makes it cheap: skips, upsampling and all other convolutions stay exact."""
    graph = propagate(small()).model.graph
    reached = {node for node in graph.nodes if node.target == "dropout"}
    for node in graph.nodes:
        if reached & set(node.all_input_nodes):
            reached.add(node)
    layers = {node.target for node in reached if node.op == "call_module"}
    assert layers >= {"dropout", "heads.disparity1"}
    assert not any(name.startswith(("encoder", "decoder", "upsample")) for name in layers)


def exported(model: nn.Module, file) -> onnxruntime.InferenceSession:
    dynamic = ({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    example = (torch.randn(1, 3, 128, 256),)
    torch.onnx.export(model, example, dynamo=True, dynamic_shapes=dynamic, verbose=False).save(file)
    return onnxruntime.InferenceSession(file)


SIZES = ((128, 256), (94, 310))


@pytest.mark.slow
def test_onnx_graph_equals_the_module_at_any_size(tmp_path):
    model = excited("resnet50")
    session = exported(model, tmp_path / "monodepth.onnx")
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        with torch.inference_mode():
            expected = model(image).numpy()
        (result,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
        assert result.shape == expected.shape
        # Rounding of some 70 float32 layers, batch norms folded.
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


class MeanAndVariance(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.walked = propagate(model)

    def forward(self, image):
        moments = self.walked(image)
        return moments.mean, moments.variance


@pytest.mark.slow
def test_the_propagated_graph_exports_too(tmp_path):
    model = MeanAndVariance(excited("vgg")).eval()
    session = exported(model, tmp_path / "propagated.onnx")
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        result = session.run(None, {session.get_inputs()[0].name: image.numpy()})
        with torch.inference_mode():
            for mine, theirs in zip(model(image), result, strict=True):
                # As above; the variance is a difference of squares, ten times less exact.
                assert np.abs(mine.numpy() - theirs).max() <= 1e-4 * np.abs(mine.numpy()).max()
