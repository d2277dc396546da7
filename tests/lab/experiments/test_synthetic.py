"""The paper's synthetic experiment: exact propagation, approached by sampling as 1/sqrt(n)."""

import pytest
import torch
from torch import nn

from penumbra.lab.experiments import synthetic
from penumbra.lab.timing import torch_threads
from penumbra.propagation import propagate
from penumbra.propagation.montecarlo import monte_carlo


@pytest.fixture(scope="module")
def model():
    # Matrices this small gain nothing from a second thread, and lose much on a busy machine.
    with torch_threads(1):
        return synthetic.train(seed=0)


def test_standard_deviations_agree_within_sampling_error(model):
    x = torch.linspace(-10, 30, 81)[:, None]
    samples = 20_000
    propagated = propagate(model)(x)
    reference = monte_carlo(model, x, samples=samples)
    deviation = monte_carlo(
        nn.Sequential(model, _SquaredDeviation(propagated.mean.detach())).eval(), x, samples=samples
    )
    standard_error = (deviation.variance / samples).sqrt()
    # 81 neighbouring outputs share the hidden units, so 4 standard errors hold for all of them.
    assert ((propagated.variance - deviation.mean).abs() < 4 * standard_error).all()
    torch.testing.assert_close(propagated.std.double(), reference.std, rtol=0.03, atol=0)


class _SquaredDeviation(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.mean = mean

    def forward(self, y):
        return (y - self.mean) ** 2


def test_sampling_converges_to_propagation_as_one_over_the_square_root(model):
    x = torch.linspace(-10, 30, 21)[:, None]
    result = synthetic.convergence(model, x)
    assert result.samples[0] == 10
    assert result.samples[-1] == 100_000
    assert -0.55 < result.slope < -0.45
    # A standard deviation estimated from n samples is off by about 0.8/sqrt(2n), relatively.
    expected = 0.8 / (2 * result.samples) ** 0.5
    assert (result.difference < 3 * expected).all()


@torch.no_grad()
def test_uncertainty_grows_outside_of_the_training_interval(model):
    x = torch.linspace(1, 19, 50)[:, None]
    inside = propagate(model)(x).std.mean()
    for outside in (torch.linspace(-20, -10, 50), torch.linspace(30, 40, 50)):
        assert propagate(model)(outside[:, None]).std.mean() > 2 * inside
    assert (model(x) - torch.sin(x)).square().mean().sqrt() < synthetic.NOISE / 2
