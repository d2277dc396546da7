"""Statistics of features in the exported graph: where they are taken, and their values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exported_networks import network, run, street
from torch import nn

from penumbra.errors import PenumbraError
from penumbra.offline.export.taps import ChannelStatistics, add_taps
from penumbra.offline.fitting.familiarity import taps_of
from penumbra.offline.models.network import normalise
from penumbra.propagation import propagate


class Strided(nn.Module):
    """Reduces by a stride, a pooling and an average over the image, which is no tap."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)  # reads the image: no tap either
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.third = nn.Conv2d(6, 5, 3, padding=1)
        self.drop = nn.Dropout(0.2)

    def forward(self, image):
        x = self.second(self.drop(self.first(image)).relu())
        x = nn.functional.max_pool2d(self.third(x).relu(), 2)
        return x * x.mean((2, 3), keepdim=True)


def test_before_each_reduction():
    torch.manual_seed(0)
    model = Strided().eval()
    walk = propagate(model, relu="jacobian")
    assert add_taps(walk) == (8, 10)
    image = torch.randn(1, 3, 64, 96)
    with torch.inference_mode():
        _, (first, second) = walk(image)
        before = model.first(image).relu()
        after = model.third(model.second(before)).relu()
    for found, features in ((first, before), (second, after)):
        expected = torch.cat([features.mean((0, 2, 3)), features.std((0, 2, 3), correction=0)])
        assert torch.allclose(found.mean, expected, atol=1e-5)


def test_named_layers():
    walk = propagate(Strided().eval())
    assert add_taps(walk, names=["second"]) == (12,)
    with pytest.raises(PenumbraError, match="no layer 'fourth'.*first, drop, second, third"):
        add_taps(propagate(Strided().eval()), names=["fourth"])


def test_nearly_constant_channels_keep_their_deviation():
    """1000 ± 0.01 in float32: a difference of squares would have an error of about 0.25."""
    x = torch.full((1, 1, 64, 64), 1000.0)
    x[..., ::2] += 0.02
    assert ChannelStatistics()(x)[1].item() == pytest.approx(0.01, rel=0.02)


@pytest.mark.slow
def test_in_the_exported_graph(exported):
    bundle = exported("class", height=67, width=101)
    assert bundle.outputs[-1].role == "statistics"
    assert taps_of(bundle) == [2 * channels for channels in (8, 16, 32, 64, 64)]
    image = street(67, 101)
    found = run(bundle, image)["statistics"]
    model = network("class")
    rgb = torch.from_numpy(image[..., ::-1].copy())[None]
    expected = []
    with torch.inference_mode():
        x = model.pad(normalise(rgb, model.config["mean"], model.config["std"]))
        for block in model.encoder.values():
            features = block(x)
            expected += [features.mean((0, 2, 3)), features.std((0, 2, 3), correction=0)]
            x, _ = model.pool(features)
    assert found.dtype == np.float32
    assert np.allclose(found, torch.cat(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_without_statistics(exported):
    bundle = exported("class", height=67, width=101, taps=())
    assert "statistics" not in [output.name for output in bundle.outputs]
    assert taps_of(bundle) is None
