"""Likelihoods in closed form and by sampling; the stacked formula and the propagated matrix."""

import math

import pytest
import torch

from penumbra.lab.experiments.regression.prediction import (
    Gaussian,
    Mixture,
    dropout_samples,
    propagated,
    propagated_stack,
)
from penumbra.lab.experiments.regression.stacked_networks import NetworkStack
from penumbra.propagation.montecarlo import monte_carlo

SPLITS, POINTS, FEATURES, HIDDEN, ROWS = 2, 3, 4, 12, 30


@pytest.fixture(scope="module")
def stack():
    generator = torch.Generator().manual_seed(3)
    w1, b1, w2, b2 = (
        torch.randn(SPLITS, POINTS, *shape, generator=generator) * 0.5
        for shape in ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN,), ())
    )
    return NetworkStack(
        w1, b1, w2, b2, torch.tensor([0.01, 0.1, 0.3]).expand(SPLITS, -1).contiguous()
    )


@pytest.fixture(scope="module")
def x():
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(4))


def test_coverage_counts_the_noise_of_the_target():
    gaussian = Gaussian(torch.zeros(4).double(), torch.tensor([0.75, 0.75, 0.0, 0.0]).double())
    # σ is 1 with variance and 1/τ = 0.25, and 0.5 with 1/τ alone: 0.6, 1.8, 1.2 and 3 of them.
    found = gaussian.coverage(torch.tensor([0.6, -1.8, 0.6, -1.5]).double(), tau=4.0)
    assert found == [0.25, 0.25, 0.5, 0.75]


def test_closed_form_is_what_sampling_the_gaussian_tends_to():
    gaussian = Gaussian(
        torch.tensor([0.0, 1.0, -2.0]).double(), torch.tensor([1.0, 0.2, 3.0]).double()
    )
    y, tau, samples = torch.tensor([0.5, 1.0, 0.0]).double(), 2.0, 200_000
    sampled = gaussian.sampled_log_likelihood(y, tau, samples, seed=0)
    # The likelihood is a mean of terms of relative variance below 4: four standard errors.
    tolerance = 4 * math.sqrt(4 / samples)
    torch.testing.assert_close(sampled, gaussian.log_likelihood(y, tau), rtol=0, atol=tolerance)


def test_closed_form_is_a_normal_density():
    density = torch.distributions.Normal(torch.tensor(1.5).double(), math.sqrt(0.3 + 1 / 4))
    found = Gaussian(torch.tensor([1.5]).double(), torch.tensor([0.3]).double())
    y = torch.tensor([2.2]).double()
    torch.testing.assert_close(found.log_likelihood(y, 4.0), density.log_prob(y))


def test_scaling_a_gaussian_is_scaling_its_samples():
    one = Gaussian(torch.tensor([2.0]), torch.tensor([9.0])).scaled(10.0, -1.0)
    assert one.mean.item() == 19.0
    assert one.variance.item() == 900.0


def test_mixture_in_slices_is_gal_s_formula_on_all_samples():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(57, 5, generator=generator, dtype=torch.float64) ** 3 + 40
    y, tau = torch.full((5,), 40.5, dtype=torch.float64), 3.0
    mixture = Mixture(y, tau)
    for part in drawn.split(10):
        mixture.add(part)
    terms = torch.exp(-0.5 * tau * (y - drawn) ** 2) * math.sqrt(tau / (2 * math.pi))
    torch.testing.assert_close(mixture.log_likelihood(), terms.mean(0).log())
    torch.testing.assert_close(mixture.moments().mean, drawn.mean(0))
    torch.testing.assert_close(mixture.moments().variance, drawn.var(0))
    deviation = drawn - drawn.mean(0)
    kurtosis = (deviation**4).mean(0) / (deviation**2).mean(0) ** 2
    torch.testing.assert_close(mixture.kurtosis(), kurtosis)


def test_one_formula_for_all_points_is_the_propagated_covariance(stack, x):
    for split in range(SPLITS):
        together = propagated_stack(stack, split, x)
        for point in range(POINTS):
            alone = propagated(stack.network(split, point), x, "jacobian")
            # Both in float32, summed in another order.
            torch.testing.assert_close(together.mean[point], alone.mean, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                together.variance[point], alone.variance, rtol=1e-4, atol=1e-6
            )


def test_slices_of_rows_change_nothing(stack, x, monkeypatch):
    whole = propagated(stack.network(0, 1), x, "moment")
    monkeypatch.setattr("penumbra.lab.experiments.regression.prediction._ELEMENTS", 7 * HIDDEN**2)
    sliced = propagated(stack.network(0, 1), x, "moment")
    torch.testing.assert_close(sliced.variance, whole.variance, rtol=1e-5, atol=1e-7)


def test_draws_are_passes_of_the_network_with_dropout(stack, x):
    samples = 20_000
    drawn = torch.cat(list(dropout_samples(stack, 1, 2, x, samples, seed=0)))
    assert drawn.shape == (samples, ROWS)
    reference = monte_carlo(stack.network(1, 2), x, samples=samples)
    # Two independent estimates of 30 means: four and a half of their joint standard errors.
    error = (2 * reference.variance[:, 0] / samples).sqrt()
    assert ((drawn.mean(0) - reference.mean[:, 0]).abs() < 4.5 * error).all()
    # A variance's relative standard error is sqrt((kurtosis - 1) / samples), here below 1.5 %.
    torch.testing.assert_close(drawn.var(0), reference.variance[:, 0], rtol=0.07, atol=0)
    again = torch.cat(list(dropout_samples(stack, 1, 2, x, 100, seed=0)))
    assert torch.equal(again[:5], torch.cat(list(dropout_samples(stack, 1, 2, x, 100, seed=0)))[:5])
    assert not torch.equal(again, torch.cat(list(dropout_samples(stack, 1, 2, x, 100, seed=1))))
