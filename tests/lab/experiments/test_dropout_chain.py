"""The chain of dropout, convolution and ReLU: its stages, and covariances that are known."""

import pytest
import torch
from torch import nn

from penumbra.lab.experiments.dropout_chain import covariances, network


def test_a_stage_for_every_layer_of_the_paper_s_figure():
    model = network.untrained(5, seed=0)
    pieces = network.stages(model)
    assert len(pieces) == len(network.LAYERS) + 1
    ends = [type(piece[-1]) for piece in pieces]
    assert ends == [nn.Dropout, *[nn.ReLU] * 3, nn.Dropout, *[nn.ReLU] * 3, nn.Linear]
    x = torch.randn(2, 3, network.PATCH, network.PATCH)
    assert all(piece(x).shape == (2, 3, 10, 10) for piece in pieces[:-1])
    assert pieces[-1](x).shape == (2, 5)


def test_the_same_seed_gives_the_same_network():
    weights = [network.untrained(5, seed=seed)[0].weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@torch.no_grad()
def test_convolutions_as_matrices_compute_the_same():
    model = network.untrained(5, seed=0)
    x = torch.randn(3, 3, network.PATCH, network.PATCH)
    start = covariances.first_noise(model)
    dense = covariances.dense_from_noise(model, x)
    found = dense(model[:start](x).flatten(1))
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_a_linear_chain_where_everything_is_known(monkeypatch):
    """Two units that hold the same noise: half of what they sum up is off the diagonal."""
    monkeypatch.setattr(covariances, "SAMPLES", 20_000)
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.Conv2d(1, 2, 1), nn.Flatten(),
                          nn.Linear(2, 1)).eval()  # fmt: skip
    for layer in (model[2], model[4]):
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = torch.full((2, 1, 1, 1), 3.0)  # dropout of rate 1/2: variance 9
    pieces = [model[:2], model[:3], model]
    first, second, last = covariances.measure(model, pieces, x, seed=0)
    for stage, variance, diagonal, share in (
        (first, 9, 9, 0),
        (second, 9, 9, 0.5),
        (last, 36, 18, 0),
    ):
        # The sampled variance of a fair coin from 20,000 throws is right to a thousandth.
        assert stage.variance == pytest.approx(variance, rel=5e-3)
        assert stage.diagonal == pytest.approx(diagonal, rel=1e-5)
        assert stage.full == pytest.approx(variance, rel=1e-5)
        assert stage.share == pytest.approx(share, abs=1e-3)
    torch.testing.assert_close(second.matrix, torch.full((2, 2), 9.0), rtol=5e-3, atol=0)


@pytest.mark.data
def test_patches_are_of_the_class_at_their_centre(data_dir, monkeypatch):
    monkeypatch.setattr(network, "_PER_IMAGE", 1)
    x, y, classes = network.patches(data_dir / "camvid", "val", seed=0)
    assert classes == 11
    assert len(x) == len(y) <= 101
    assert x.shape[1:] == (3, 32, 32)
    assert 0 <= y.min() <= y.max() < classes
    sky, road = (x[y == label].mean() for label in (0, 3))
    assert sky > road  # the sky is brighter
