"""The exact likelihood against all masks of a tiny network, and against sampling."""

import itertools
import math

import pytest
import torch

from penumbra.lab.experiments.regression.enumeration import (
    dropped_inputs_needed,
    enumerated_moments,
    exact_log_likelihood,
)
from penumbra.lab.experiments.regression.prediction import Mixture
from penumbra.lab.experiments.regression.stacked_networks import DropoutNetwork
from penumbra.propagation.montecarlo import monte_carlo

RATE, TAU = 0.2, 5.0


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return DropoutNetwork(3, 4, RATE).double().eval()


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(6, generator=generator, dtype=torch.float64)


@torch.no_grad()
def over_all_masks(model, x, y, inputs):
    """The likelihood over all hidden masks, and over the input masks in `inputs`."""
    total = torch.zeros(len(x), dtype=torch.float64)
    for first in inputs:
        for second in itertools.product((0.0, 1.0), repeat=4):
            kept = sum(first) + sum(second)
            weight = RATE ** (7 - kept) * (1 - RATE) ** kept
            masked = x * torch.tensor(first, dtype=torch.float64) / (1 - RATE)
            hidden = model[1](masked).relu() * torch.tensor(second, dtype=torch.float64)
            predicted = model[4](hidden / (1 - RATE))[:, 0]
            total += weight * torch.exp(-0.5 * TAU * (y - predicted) ** 2)
    return total * math.sqrt(TAU / (2 * math.pi))


@torch.no_grad()
def test_with_all_input_masks_it_is_the_sum_over_all_masks(model, rows):
    x, y = rows
    expected = over_all_masks(model, x, y, itertools.product((0.0, 1.0), repeat=3)).log()
    found = exact_log_likelihood(model, x, y, TAU, most=3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)  # the noise's cut-off is 7e-10


@torch.no_grad()
def test_moments_over_all_input_masks_are_those_of_sampling(model, rows):
    x, _ = rows
    found = enumerated_moments(model, x, most=3)
    reference = monte_carlo(model, x, samples=200_000)
    # 200,000 samples: four standard errors of a mean, and 2 % (six errors) of a variance.
    error = (reference.variance[:, 0] / 200_000).sqrt()
    assert ((found.mean - reference.mean[:, 0]).abs() < 4 * error).all()
    torch.testing.assert_close(found.variance, reference.variance[:, 0], rtol=0.02, atol=0)


@torch.no_grad()
def test_single_drops_are_enough_at_small_rates(model, rows):
    x, _ = rows
    for layer in (model[0], model[3]):
        layer.p = 0.005
    found, all_masks = enumerated_moments(model, x), enumerated_moments(model, x, most=3)
    for layer in (model[0], model[3]):
        layer.p = RATE
    # What is left out has a probability of 7e-5 against the 1.5e-2 that make up the variance.
    torch.testing.assert_close(found.variance, all_masks.variance, rtol=0.03, atol=0)


@torch.no_grad()
def test_the_remaining_masks_are_given_the_gaussian(model, rows):
    x, y = rows
    single = [m for m in itertools.product((0.0, 1.0), repeat=3) if sum(m) >= 2]
    known = over_all_masks(model, x, y, single)
    found = exact_log_likelihood(model, x, y, TAU).exp()
    left = 1 - (1 - RATE) ** 3 - 3 * RATE * (1 - RATE) ** 2
    assert (found > known).all()
    assert (found - known <= left * math.sqrt(TAU / (2 * math.pi)) + 1e-9).all()


@torch.no_grad()
def test_far_away_it_is_small_and_finite(model, rows):
    x, _ = rows
    far = exact_log_likelihood(model, x, torch.full((6,), 12.0, dtype=torch.float64), 500.0)
    assert (far < -5).all()
    assert far.isfinite().all()


@torch.no_grad()
def test_sampling_tends_to_it(model, rows):
    x, y = rows
    torch.manual_seed(2)
    mixture = Mixture(y, TAU)
    for _ in range(20):
        drawn = model.train()(x.repeat(5_000, 1)).view(5_000, 6)
        mixture.add(drawn)
    model.eval()
    # 100,000 terms whose relative variance is below 10: four standard errors.
    tolerance = 4 * math.sqrt(10 / 100_000)
    exact = exact_log_likelihood(model, x, y, TAU, most=3)
    torch.testing.assert_close(mixture.log_likelihood(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rate", "features", "most"), [(0.005, 16, 1), (0.05, 13, 3), (0.5, 3, 3)])
def test_so_many_drops_leave_less_than_a_hundredth_of_the_masks(rate, features, most):
    def left(count):
        drops = range(count + 1)
        return 1 - sum(
            math.comb(features, k) * rate**k * (1 - rate) ** (features - k) for k in drops
        )

    assert dropped_inputs_needed(rate, features) == most
    assert left(most) <= 0.01 < left(most - 1)
