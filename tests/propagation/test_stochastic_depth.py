"""Stochastic depth as noise, found by the names of packages that need not be installed."""

import pytest
import torch
from torch import nn

from penumbra.propagation import Moments, PropagationError, monte_carlo, noise, propagate
from penumbra.propagation.registry import diagonal
from penumbra.propagation.rules.stochastic_depth import drop_path_layer

X = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0))


class OwnDropPath(nn.Module):
    """As it is copied from one repository to the next."""

    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x * x.new_empty(shape).bernoulli_(keep) / keep


class Residual(nn.Module):
    def __init__(self, rate):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.path = nn.Conv2d(4, 4, 3, padding=1), OwnDropPath(rate)

    def forward(self, x):
        return x + self.path(self.body(x))


@pytest.fixture
def registered():
    noise(OwnDropPath)(drop_path_layer)
    yield
    diagonal._rules.pop(OwnDropPath)
    diagonal._noise.discard(OwnDropPath)


@pytest.mark.parametrize("example", [None, X])
def test_an_own_class_is_refused_until_it_is_registered(example):
    with pytest.raises(PropagationError, match="noise only in training mode"):
        propagate(Residual(0.2).eval(), example=example)


@pytest.mark.usefixtures("registered")
def test_the_variance_of_every_element():
    model = Residual(0.2).eval()
    with torch.no_grad():
        found = propagate(model)(X)
        torch.testing.assert_close(found.variance, model.body(X).square() * 0.25)
        uncertain = propagate(model.path)(Moments(X, torch.ones_like(X)))
    torch.testing.assert_close(uncertain.variance, X.square() * 0.25 + 1.25)
    sampled = monte_carlo(model, X, samples=8000)
    # z² of a Bernoulli: four standard errors are 4 √((kurtosis - 1)/n) = 7 %.
    torch.testing.assert_close(found.variance.double(), sampled.variance, rtol=0.07, atol=1e-9)


def test_timm_and_torchvision_as_they_are_installed():
    catalogue = pytest.importorskip("penumbra.lab.experiments.networks.catalogue")
    try:
        catalogue._import_torchvision()
        from timm.layers import DropPath
        from torchvision.ops import StochasticDepth
    except ImportError:
        pytest.skip("timm and torchvision are not installed")
    for layer in (DropPath(0.2), StochasticDepth(0.2, "row")):
        found = propagate(layer.eval())(X)
        torch.testing.assert_close(found.variance, X.square() * 0.25)
    with pytest.raises(PropagationError, match="mode='row'"):
        propagate(StochasticDepth(0.2, "batch").eval())(X)
