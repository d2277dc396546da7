"""Corruptions follow their formulas and are reproducible."""

import numpy as np
import pytest
from exported_networks import street

from penumbra.lab.experiments.distribution_shift.corruptions import (
    CORRUPTIONS,
    SIGMA,
    dark,
    fog,
    noise,
)

HEIGHT, WIDTH = 48, 64


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_keeps_the_form_and_is_reproducible(name):
    image = street(HEIGHT, WIDTH)
    before = image.copy()
    once, again = (CORRUPTIONS[name](image, np.random.default_rng(1)) for _ in range(2))
    assert once.dtype == np.uint8 and once.shape == image.shape
    assert np.array_equal(once, again) and np.array_equal(image, before)
    assert not np.array_equal(once, image)


def test_fog_grows_towards_the_horizon():
    random = np.random.default_rng(0)
    black, white = (fog(np.full((100, 2, 3), v, np.uint8), random) for v in (0, 255))
    contrast = (white.astype(float) - black)[:, 0, 0] / 255
    # exp(-0.15) in the lowest row, exp(-0.15 x 12) at and above the horizon; rounded to 1/255.
    assert contrast[-1] == pytest.approx(np.exp(-0.15), abs=0.005)
    np.testing.assert_allclose(contrast[:46], np.exp(-1.8), atol=0.005)
    assert np.all(np.diff(contrast) >= -0.005)
    assert black[0, 0, 0] == pytest.approx(215 * (1 - np.exp(-1.8)), abs=1)


def test_dark_leaves_a_share_of_the_light():
    found = dark(np.full((2, 2, 3), 200, np.uint8), np.random.default_rng(0))
    # By the gamma: the light of 200/255 is 0.586, of which 8 % are 0.0469, which is shown as 63.4.
    assert np.all(found == 63)


def test_noise_is_as_strong_as_it_says():
    grey = np.full((200, 200, 3), 128, np.uint8)
    found = noise(grey, np.random.default_rng(0)).astype(float) - 128
    # 120,000 draws: the standard deviation is known to 0.2 %, its mean to 0.04.
    assert found.std() == pytest.approx(SIGMA, rel=0.01)
    assert abs(found.mean()) < 0.2
