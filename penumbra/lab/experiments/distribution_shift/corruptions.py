"""Pictures as no training has seen them: in fog, in the dark, and noisy.

Each change takes an RGB `uint8` picture and a generator, and returns a new one of the same size.
What is drawn comes from the generator alone; fog and dark draw nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

AIR = 215.0  # the grey of fog itself, 0 to 255
HORIZON = 0.45  # share of the height at which a flat road ends
FARTHEST = 12.0  # distances, in units of that of the picture's lowest row
THICKNESS = 0.15  # of the fog, for each such unit
LIGHT = 0.08  # share of the light that is left in the dark
GAMMA = 2.2
SIGMA = 15.0  # of the noise, of 255


def fog(picture: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """Light I becomes I t + A (1 - t) with t = exp(-β d), by Koschmieder's law.

    The distance d of a pixel is that of a flat road in its row, d = (H - h) / (v - h) below the
    horizon h, and `FARTHEST` at and above it: t is 0.86 in the lowest row and 0.17 in the sky.
    """
    height = picture.shape[0]
    below = np.maximum(np.arange(1, height + 1) - HORIZON * height, 1e-9)
    distance = np.minimum((1 - HORIZON) * height / below, FARTHEST)
    seen = np.exp(-THICKNESS * distance)[:, None, None]
    return _eight_bits(picture * seen + AIR * (1 - seen))


def dark(picture: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """`LIGHT` times the light at the same exposure: values v become v LIGHT^(1/γ), a third."""
    return _eight_bits(picture * LIGHT ** (1 / GAMMA))


def noise(picture: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Gaussian noise of standard deviation `SIGMA` on every pixel and channel, then cut off."""
    return _eight_bits(picture + random.normal(0, SIGMA, picture.shape))


CHANGES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "fog": fog,
    "dark": dark,
    "noise": noise,
}


def _eight_bits(values: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)
