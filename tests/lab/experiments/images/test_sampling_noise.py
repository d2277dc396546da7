"""The closed form of the sampling error, against samples."""

import numpy as np
import pytest

from penumbra.lab.experiments.images.sampling_noise import sampling_error_of_variance


@pytest.mark.parametrize("samples", [2, 5, 50])
def test_sampling_error_is_that_of_samples(samples):
    drawn = np.random.default_rng(0).normal(size=(40_000, samples)).var(1, ddof=1)
    # The mean of 40,000: right to half a percent of the spread of |s² - 1|, at most 1.4 / 200.
    assert sampling_error_of_variance(samples) == pytest.approx(np.abs(drawn - 1).mean(), abs=0.02)
