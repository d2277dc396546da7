"""Figures against their definitions, and the estimated noise of a reference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from penumbra.offline.metrics.agreement import (
    Sparsification,
    StdAgreement,
    attainable,
    by_quantile,
    relative_error,
    sparsification,
    spearman,
)

SIDE = 150


@pytest.fixture
def random():
    return np.random.default_rng(5)


def sampled(std, count, random):
    """Standard deviations estimated from two halves of `count` Gaussian samples, and from all."""
    draws = random.normal(0, std, (2, count // 2, *std.shape))
    halves = tuple(half.std(0, ddof=1) for half in draws)
    return draws.reshape(-1, *std.shape).std(0, ddof=1), halves


def test_known_maps():
    reference, found = np.array([1.0, 3.0]), np.array([2.0, 3.0])
    assert relative_error(found, reference) == pytest.approx(0.25)
    likeness = StdAgreement.of(found, reference, (reference, reference))
    assert likeness.std_ratio == pytest.approx(5 / 4)
    assert likeness.variance_ratio == pytest.approx(13 / 10)
    assert likeness.variance_relative_error == pytest.approx(3 / 10)
    assert likeness.std_relative_error_noise == likeness.variance_relative_error_noise == 0
    assert (likeness.spearman, likeness.spearman_attainable) == pytest.approx((1, 1))


def test_spearman_with_ties(random):
    a = random.integers(0, 5, 400).astype(float)
    b = a + random.integers(0, 4, 400)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert np.isnan(spearman(a, np.ones(400)))


@pytest.mark.parametrize("count", [20, 100, 400])
def test_the_error_of_a_perfect_map_is_the_noise(count, random):
    """The estimate from the halves is what the truth itself misses against the whole.

    SIDE² pixels: both means are known to about one per cent; five leave room for the small
    skewness of a standard deviation of 10 samples.
    """
    truth = random.uniform(0.5, 2.0, (SIDE, SIDE))
    reference, halves = sampled(truth, count, random)
    likeness = StdAgreement.of(truth, reference, halves)
    assert likeness.std_relative_error_noise == pytest.approx(likeness.std_relative_error, rel=0.05)
    assert likeness.variance_relative_error_noise == pytest.approx(
        likeness.variance_relative_error, rel=0.1
    )
    # Spearman and Brown's formula is of values; of ranks it holds to a fifth of what is missing.
    assert 1 - likeness.spearman_attainable == pytest.approx(1 - likeness.spearman, rel=0.2)


def test_attainable_correlation_without_noise():
    assert attainable(1.0) == 1
    assert attainable(0.0) == 0
    assert attainable(-0.3) == 0


def test_sparsification_by_its_definition(random):
    error, uncertainty = random.random(1000), random.random(1000)
    curve = sparsification(error, uncertainty, steps=10)
    for step, value in enumerate(curve):
        left = np.argsort(uncertainty)[: 1000 - 100 * step]
        assert value == pytest.approx(error[left].mean())


def test_quantiles_hold_all_pixels(random):
    error = random.random(1003)
    rates = by_quantile(error, error, bins=10)
    assert np.all(np.diff(rates) > 0)
    assert rates.mean() == pytest.approx(error.mean(), rel=0.01)


def test_perfect_and_random_uncertainty(random):
    error = random.random(2000)
    perfect, chance = Sparsification.of(error, error), Sparsification.of(error, random.random(2000))
    assert perfect.ause == 0
    assert perfect.aurg > 0.2
    # The mean of those left varies by 0.29 / sqrt(left): at most 0.05, for the last 40.
    assert abs(chance.aurg) < 0.02
    assert chance.ause > 0.2
    both = Sparsification.mean([perfect, chance])
    assert both.ause == pytest.approx((perfect.ause + chance.ause) / 2)
