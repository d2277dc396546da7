"""Noise that channels or images share, carried through the network, against sampling."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.propagation import monte_carlo, noise, propagate
from penumbra.propagation.registry import diagonal
from penumbra.propagation.rules.stochastic_depth import drop_path_layer

SMOOTH = F.interpolate(
    torch.rand(2, 6, 3, 3, generator=torch.Generator().manual_seed(0)) + 0.5, size=(12, 12),
    mode="bilinear",
)  # fmt: skip
SAMPLES = 4000


class DropPath(nn.Module):
    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if not self.training:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(keep) / keep


@pytest.fixture(autouse=True, scope="module")
def registered():
    noise(DropPath)(drop_path_layer)
    yield
    diagonal._rules.pop(DropPath)
    diagonal._noise.discard(DropPath)


def ratios(model, x, **options):
    with torch.no_grad():
        found = propagate(model.eval(), coherent=True, example=x, **options)(x)
    sampled = monte_carlo(model, x, samples=SAMPLES)
    return found, sampled


AFFINE = {
    "bilinear": lambda: nn.Sequential(
        nn.Dropout2d(0.3), nn.Conv2d(6, 5, 1), nn.Upsample(scale_factor=4, mode="bilinear")
    ),
    "pooled": lambda: nn.Sequential(
        nn.Dropout2d(0.3), nn.Conv2d(6, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "two convolutions": lambda: nn.Sequential(
        nn.Dropout2d(0.3), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 3)
    ),
    "element-wise before": lambda: nn.Sequential(
        nn.Dropout(0.2), nn.Dropout2d(0.3), nn.Conv2d(6, 5, 1), nn.AvgPool2d(2)
    ),
    "path": lambda: nn.Sequential(
        nn.Conv2d(6, 6, 3), DropPath(0.2), nn.Conv2d(6, 4, 3), nn.AdaptiveAvgPool2d(2)
    ),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_networks_are_exact(name):
    torch.manual_seed(0)
    found, sampled = ratios(AFFINE[name](), SMOOTH)
    # Standard errors of √((kurtosis - 1)/n): 2 to 4 % for few channels; five of the smallest.
    torch.testing.assert_close(found.variance.double(), sampled.variance, rtol=0.15, atol=1e-7)


class Residual(nn.Module):
    """Stochastic depth on two branches, activations, a mean over positions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.path, self.head = DropPath(0.2), nn.Linear(6, 4)

    def forward(self, x):
        x = x + self.path(F.relu(self.one(x)))
        x = x + self.path(F.gelu(self.two(x)))
        return self.head(x.mean((2, 3)))


def test_stochastic_depth_behind_activations_and_skips():
    model = Residual()
    found, sampled = ratios(model, SMOOTH)
    ratio = float(found.std.mean() / sampled.std.mean())
    # A Bernoulli is not Gaussian, so that an activation of it is not exact: 10 %.
    assert abs(ratio - 1) < 0.1
    with torch.no_grad(), pytest.warns(UserWarning, match="coherent=True"):
        alone = propagate(model)(SMOOTH)
    assert float(alone.std.mean() / sampled.std.mean()) < 0.5  # what it is for


def test_a_head_with_an_activation():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Dropout2d(0.2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Softmax(1),
    )  # fmt: skip
    found, sampled = ratios(model, SMOOTH)
    assert abs(float(found.std.mean() / sampled.std.mean()) - 1) < 0.1
    torch.testing.assert_close(found.mean.double(), sampled.mean, rtol=0.05, atol=0.01)
