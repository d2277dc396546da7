"""Noise for models without any, comparison with sampling, warnings."""

import pytest
import torch
from torch import nn

from penumbra.propagation import PropagationError, add_dropout, compare, monte_carlo, propagate
from penumbra.propagation.gain_fitting import with_gains

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.decoder = nn.Module()
        self.decoder.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU())
            for _ in range(3)
        )
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x = self.encoder(x)
        for block in self.decoder.blocks:
            x = block(x)
        return self.head(x)


PLACES = {
    "head": ["head"],
    "decoder": ["decoder.blocks.0.2", "decoder.blocks.1.2", "decoder.blocks.2.2", "head"],
    "encoder.0": ["encoder.0"],
}


@pytest.mark.parametrize("where", PLACES)
def test_dropout_is_put_in_front_of_layers(where):
    model = Segmenter().eval()
    noisy = add_dropout(model, 0.2, where)
    assert not any(isinstance(m, nn.Dropout) for m in model.modules())
    found = [name for name, m in noisy.named_modules() if isinstance(m, nn.Dropout)]
    assert found == [f"{name}.dropout" for name in PLACES[where]]
    assert not any(m.training for m in noisy.modules())
    with torch.no_grad():
        torch.testing.assert_close(noisy(X), model(X))
        assert (propagate(noisy)(X).variance > 0).any()
    assert (monte_carlo(noisy, X, samples=10).variance > 0).any()


def test_weights_keep_their_names():
    model, other = Segmenter().eval(), Segmenter().eval()
    torch.nn.init.ones_(other.head.weight)
    noisy = add_dropout(model, 0.2, "decoder")
    assert noisy.state_dict().keys() == model.state_dict().keys()
    noisy.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(noisy(X), other(X))
    assert noisy.head.weight is noisy.head.layer.weight and noisy.head.in_channels == 4


@pytest.mark.parametrize(
    ("model", "rate", "where", "reason"),
    [
        (Segmenter(), 0.0, "head", "above 0 and below 1"),
        (Segmenter(), 0.2, "hed", "no layer 'hed'.*'head'"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), 0.2, "decoder", "no part called decoder"),
        (nn.Sequential(nn.ReLU()), 0.2, "head", "no affine layer"),
    ],
)
def test_what_it_cannot_do_is_said(model, rate, where, reason):
    with pytest.raises(PropagationError, match=reason):
        add_dropout(model, rate, where)


def test_comparison_with_sampling():
    noisy = add_dropout(Segmenter().eval(), 0.2)
    found = compare(noisy, X, samples=1000)
    # One dropout before the last layer: exact, so that the error is that of sampling, of which
    # a Bernoulli's kurtosis makes somewhat more than a Gaussian's.
    assert found.error < 2.5 * found.sampling_error
    assert abs(found.ratio - 1) < 0.03
    assert found.mean_error < 0.1
    assert found.noise == ("layer 'head.dropout' (nn.Dropout)",)
    assert "ratio 1.0" in str(found) or "ratio 0.9" in str(found)


def test_dropouts_in_a_row_warn_unless_there_are_gains():
    noisy = add_dropout(Segmenter().eval(), 0.2, "decoder")
    walk = propagate(noisy)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="4 dropouts stand in a row"):
            walk(X)
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            walk(X)  # once is enough
            gains = {"head.layer": torch.ones(2, 4, 1, 1)}
            with_gains(propagate(noisy), gains)(X)
            propagate(add_dropout(Segmenter().eval(), 0.2))(X)


@pytest.mark.parametrize("last", [nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1)])
def test_channels_that_are_mixed_and_spread_warn(last):
    model = nn.Sequential(nn.Dropout2d(0.2), nn.Conv2d(3, 4, 1), last).eval()
    with pytest.warns(UserWarning, match="coherent=True"):
        propagate(model)(X)
