"""The error of softmax's rules, against an integral and against each other."""

import numpy as np
import pytest
import torch

from penumbra.lab.experiments.images.softmax_error import softmax_error


def test_first_order_of_softmax_fails_with_noise_and_moments_do_not():
    torch.manual_seed(0)
    found = softmax_error(torch.randn(200, 11) * 3, (0.1, 3.0), samples=2_000)
    # The noise of 2,000 samples in a standard deviation is 1.6 %, its mean over classes less.
    assert found["jacobian"]["std"][0] < 0.03
    assert found["jacobian"]["std"][1] > 0.3
    assert found["moment"]["std"][1] < 0.12
    assert found["moment"]["mean"][1] < found["jacobian"]["mean"][1] / 3


def test_first_order_against_an_integral():
    """Two classes with equal scores: p = sigmoid(d), d of variance 2 σ², by quadrature."""
    noise = 1.5
    found = softmax_error(torch.zeros(1, 2), (noise,), samples=20_000)
    d = np.linspace(-12, 12, 4_001) * noise * 2**0.5
    weight = np.exp(-(d**2) / (4 * noise**2))
    p = 1 / (1 + np.exp(-d))
    true = np.sqrt(np.average((p - 0.5) ** 2, weights=weight))
    linear = 0.25 * noise * 2**0.5
    # 20,000 samples: their standard deviation is right to 0.5 %.
    assert found["jacobian"]["ratio"][0] == pytest.approx(linear / true, rel=0.02)
