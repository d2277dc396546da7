"""SegNet: shapes, dropout, input sizes, tracing, export, and the model file."""

from __future__ import annotations

import copy
import json

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from penumbra.errors import PenumbraError
from penumbra.offline.models import load_model, pooling, read_header, save_model
from penumbra.offline.models.network import MEAN, STD, normalise
from penumbra.offline.models.segnet import Probabilities, SegNet

CLASSES = ("road", "sky", "car")


def small(dropout="encdec", rate=0.2, seed=0, width=1 / 16) -> SegNet:
    """A thin network with batch-norm statistics that are not the initial ones."""
    torch.manual_seed(seed)
    model = SegNet(CLASSES, width=width, dropout=dropout, rate=rate)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return model.eval()


def test_full_width_has_the_published_channels():
    model = SegNet([str(n) for n in range(11)])
    shapes = [(m.in_channels, m.out_channels) for m in model.modules() if isinstance(m, nn.Conv2d)]
    vgg16 = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    encoder = list(zip([3, *vgg16[:-1]], vgg16, strict=True))
    # The decoder is the encoder backwards, but for the classifier in place of the image.
    decoder = [(out, into) for into, out in reversed(encoder[1:])] + [(64, 11)]
    assert shapes == encoder + decoder
    assert all(m.kernel_size == (3, 3) for m in model.modules() if isinstance(m, nn.Conv2d))


def plain_reference(model: SegNet, image: torch.Tensor) -> torch.Tensor:
    """SegNet once more, written down with torch's own pooling and the model's layers."""
    x, kept = image, []
    for block in model.encoder.values():
        x, indices = nn.MaxPool2d(2, return_indices=True)(block(x))
        kept.append(indices)
    for block in model.decoder.values():
        x = block(nn.MaxUnpool2d(2)(x, kept.pop()))
    return model.classifier(x)


@pytest.fixture
def like_torch(monkeypatch):
    """Torch's own pooling knows no margin for ties."""
    monkeypatch.setattr(pooling, "MARGIN", 0.0)


@torch.inference_mode()
def test_decoder_unpools_with_the_indices_of_its_encoder(like_torch):
    model, image = small(), torch.randn(2, 3, 64, 96)
    assert torch.equal(model(image), plain_reference(model, image))


@pytest.mark.parametrize("size", [(360, 480), (375, 1242), (33, 31), (1, 1)])
@torch.inference_mode()
def test_any_size_is_padded_by_its_edge_and_cropped_back(size, like_torch):
    model, image = small(), torch.randn(1, 3, *size)
    height, width = size
    padded = F.pad(image, (0, -width % 32, 0, -height % 32), mode="replicate")
    assert torch.equal(model(image), plain_reference(model, padded)[..., :height, :width])


PLACES_OF = {
    "none": [],
    "class": ["decoder1"],
    "encdec": ["encoder3", "encoder4", "encoder5", "decoder5", "decoder4", "decoder3"],
}


@pytest.mark.parametrize("dropout", ["none", "class", "encdec", ["encoder1", "decoder2"]])
def test_dropout_placement(dropout):
    model = small(dropout, rate=0.3)
    wanted = PLACES_OF[dropout] if isinstance(dropout, str) else dropout
    passed = []
    watched = {**model.encoder, **model.decoder}
    for name, block in watched.items():
        block.register_forward_hook(lambda *_, name=name: passed.append(name))
    for place, layer in model.dropout.items():
        assert type(layer) is nn.Dropout and layer.p == 0.3
        layer.register_forward_hook(lambda *_, place=place: passed.append(f"drop {place}"))
    model(torch.randn(1, 3, 32, 32))
    expected = []
    for name in watched:
        expected += [name] + ([f"drop {name}"] if name in wanted else [])
    assert passed == expected


def test_dropout_of_an_encoder_acts_on_the_pooled_map():
    """Noise that starts behind the pooling starts on a quarter of the pixels."""
    model, shapes = small(["encoder3"]), []
    model.dropout["encoder3"].register_forward_hook(lambda _, x, y: shapes.append(x[0].shape[-2:]))
    model(torch.randn(1, 3, 64, 32))
    assert shapes == [(8, 4)]


def test_weights_are_the_same_for_every_placement():
    source = small("encdec")
    target = SegNet(CLASSES, width=1 / 16, dropout="class")
    target.load_state_dict(source.state_dict())


def test_an_unknown_place_is_named_with_the_known_ones():
    with pytest.raises(PenumbraError, match=r"'decoder9'.*encdec.*decoder1"):
        SegNet(CLASSES, dropout=["encoder1", "decoder9"])


@torch.inference_mode()
def test_a_torch_fx_trace_works_at_other_sizes():
    model = small()
    traced = torch.fx.symbolic_trace(model)
    for size in ((64, 64), (45, 70)):
        image = torch.randn(1, 3, *size)
        assert torch.equal(traced(image), model(image))


def test_onnx_graph_equals_the_module_at_any_size(tmp_path):
    model, file = small(), tmp_path / "segnet.onnx"
    dynamic = ({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    example = (torch.randn(1, 3, 64, 96),)
    torch.onnx.export(model, example, dynamo=True, dynamic_shapes=dynamic, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file)
    name = session.get_inputs()[0].name
    for size in ((64, 96), (75, 121)):
        image = torch.randn(1, 3, *size)
        with torch.inference_mode():
            expected = model(image).numpy()
        result = session.run(None, {name: image.numpy()})[0]
        # Batch norm is folded into the convolutions: 26 layers of float32 rounding (measured 2e-6
        # of the largest score). No pooling choice may flip, hence the maximum over all pixels.
        assert result.shape == expected.shape
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


@torch.inference_mode()
def test_probabilities_are_the_softmax_over_classes():
    model, image = small(), torch.randn(1, 3, 40, 40)
    result = Probabilities(model)(image)
    torch.testing.assert_close(result.sum(dim=1), torch.ones(1, 40, 40))
    assert torch.equal(result.argmax(1), model(image).argmax(1))


def test_normalise_uses_the_statistics_channel_by_channel():
    image = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    expected = (image.numpy() - np.array(MEAN)) / np.array(STD)
    result = normalise(image, MEAN, STD).numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)  # float32 of values below 3


def test_a_saved_model_is_loaded_unchanged(tmp_path):
    model = small(["encoder4", "decoder1"], rate=0.35)
    file = save_model(model, tmp_path / "model", {"step": 3})
    for path in (tmp_path / "model", file):
        again = load_model(path)
        assert again.config == model.config and not again.training
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
    assert read_header(file).provenance == {"step": 3}
    assert json.loads(json.dumps(again.config)) == again.config


def test_channels_last_weights_are_saved_too(tmp_path):
    model = small().to(memory_format=torch.channels_last)
    again = load_model(save_model(model, tmp_path).parent)
    assert torch.equal(again.classifier.weight, model.classifier.weight)


def test_weights_of_half_precision_are_loaded_in_single(tmp_path):
    model = small()
    whole = save_model(model, tmp_path / "whole")
    half = save_model(copy.deepcopy(model).half(), tmp_path / "half")
    assert half.stat().st_size < 0.7 * whole.stat().st_size
    again = load_model(half)
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    for key, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=1e-3, atol=1e-6, msg=key)


def test_a_broken_or_foreign_file_is_refused_by_name(tmp_path):
    file = save_model(small(), tmp_path / "cut")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(PenumbraError, match=r"cut/weights\.safetensors is not a valid"):
        load_model(file)
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(PenumbraError, match=r"foreign\.safetensors has no Penumbra header"):
        load_model(tmp_path / "foreign.safetensors")
    with pytest.raises(PenumbraError, match="no model at"):
        load_model(tmp_path / "nowhere")
