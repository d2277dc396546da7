"""Coverage of errors whose share within ±zσ is known."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest

from penumbra.offline.metrics.coverage import SHARES, Coverage, coverage_table

COUNT = 200_000


def observed(error, std):
    coverage = Coverage()
    coverage.add(error, std)
    return [row["observed"] for row in coverage.summary()]


@pytest.fixture(scope="module")
def drawn():
    """Gaussian errors of either sign, each with a standard deviation of its own."""
    random = np.random.default_rng(3)
    std = random.uniform(0.1, 10, COUNT)
    return random.normal(0, std), std


@pytest.mark.parametrize("stated", [1.0, 0.5, 2.0])
def test_coverage_of_gaussian_errors(stated, drawn):
    """σ as it is, or said to be half or twice as large: P(|e| ≤ z s σ) = erf(z s / √2)."""
    error, std = drawn
    found = observed(error, stated * std)
    sigmas = [row["sigmas"] for row in Coverage().summary()]
    expected = [erf(sigma * stated / sqrt(2)) for sigma in sigmas]
    # A share of 200,000 has a standard error of at most 0.0011: four of them.
    np.testing.assert_allclose(found, expected, atol=0.0045)
    if stated == 1:
        np.testing.assert_allclose(found, SHARES, atol=0.0045)


def test_a_case_counted_by_hand():
    # In units of σ: 0, 0.5, 0.9, 1.1, 1.7, 3; borders at 0.674, 1, 1.645 and 1.96.
    error = np.array([0, -1, 1.8, -2.2, 3.4, 6], np.float32)
    assert observed(error, np.full(6, 2, np.float32)) == [2 / 6, 3 / 6, 4 / 6, 5 / 6]


def test_zero_uncertainty_covers_zero_errors_only():
    assert observed(np.array([0.0, 1e-9]), np.zeros(2)) == [0.5] * 4


def test_parts_add_up_and_no_data_is_nan(drawn):
    error, std = (values[:1000] for values in drawn)
    parts = Coverage()
    for part in (slice(0, 300), slice(300, 1000)):
        parts.add(error[part], std[part])
    assert [row["observed"] for row in parts.summary()] == observed(error, std)
    assert all(np.isnan(row["observed"]) for row in Coverage().summary())


def test_the_table_has_a_column_for_each_method():
    coverage = Coverage()
    coverage.add(np.array([0.1, 1.2]), np.ones(2))
    lines = coverage_table({"ours": coverage.summary(), "MC": Coverage().summary()}).splitlines()
    assert lines[0].split() == ["errors", "within", "nominal", "ours", "MC"]
    assert lines[2].split() == ["±1.000", "σ", "68.3%", "50.0%", "nan%"]
    assert len(lines) == 1 + len(SHARES)
