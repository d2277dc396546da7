"""Sampling that serves as the opponent: correct moments, a prefix computed once, the faster way."""

import numpy as np
import pytest
import torch
from torch import nn

from penumbra.lab.experiments.images.networks import OURS, PAPER, load_network
from penumbra.lab.experiments.images.runtime import FastMonteCarlo, runtime
from penumbra.propagation import propagate


@pytest.fixture
def model():
    """Linear after its dropout, so that propagation is exact; layers before the dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(4, 2, 3), nn.Conv2d(2, 2, 1)
    ).eval()


@pytest.mark.parametrize("at_once", [1, 4, 7])
def test_sampling_has_the_moments_and_computes_the_prefix_once(model, at_once):
    x = torch.rand(1, 3, 12, 12)
    walk = propagate(model[:4])
    sampling, prefixes = FastMonteCarlo(walk.model), []
    sampling.prefix.part.register_forward_hook(lambda *_: prefixes.append(1))
    torch.manual_seed(0)
    samples = 2_000
    found, exact = sampling(x, samples, at_once), walk(x)
    assert len(prefixes) == 1
    error = (exact.variance / samples).sqrt()
    # 128 outputs: the largest of as many standard errors is about 2.7.
    assert ((found.mean - exact.mean).abs() < 4.5 * error).all()
    # Five standard errors of a Gaussian's variance; the sum of a dropped window is nearly one.
    torch.testing.assert_close(
        found.variance, exact.variance, rtol=5 * (2 / samples) ** 0.5, atol=0
    )
    sampling(x + 1, 2)
    assert len(prefixes) == 2  # another image is computed again
    torch.testing.assert_close(walk.model(x), model[:4](x))  # the walk's own dropout stays off


def test_sampling_together_draws_every_pass_anew(model):
    sampling = FastMonteCarlo(propagate(model).model)
    assert sampling(torch.rand(1, 3, 12, 12), 4, at_once=4).variance.min() > 0


def test_runtime_has_every_candidate_and_takes_the_faster_way(small_bundle):
    network = load_network(small_bundle("encdec"))
    x = network.input(np.zeros((48, 64, 3), np.uint8))
    before = torch.random.get_rng_state()
    found = runtime(network, x, counts=(1, 3), rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found["counts"] == [1, 3]
    assert len(found["mc"]) == 2
    assert set(found["ratio"]) == {OURS, PAPER}
    assert found["ratio"][OURS] == pytest.approx(found["mc"][1] / found[OURS])
    assert found["way"] == min(found["tried"], key=found["tried"].get)
