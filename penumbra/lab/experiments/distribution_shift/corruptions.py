"""Corrupted views: fog, darkness, noise.

Each corruption takes an RGB `uint8` image and a random generator, and returns a new image of the
same size. Fog and darkness are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

AIR = 215.0  # the grey of fog itself, 0 to 255
HORIZON = 0.45  # share of the height at which a flat road ends
FARTHEST = 12.0  # distances, in units of that of the lowest row
THICKNESS = 0.15  # of the fog, per unit of distance
LIGHT = 0.08  # share of the light that is left in darkness
GAMMA = 2.2
SIGMA = 15.0  # of the noise, of 255


def fog(image: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """Koschmieder's law: light I becomes I t + A (1 - t) with t = exp(-β d).

    The distance d of a pixel is that of a flat road in its row, d = (H - h) / (v - h) below the
    horizon h, and `FARTHEST` at and above it: t is 0.86 in the lowest row and 0.17 in the sky.
    """
    height = image.shape[0]
    below = np.maximum(np.arange(1, height + 1) - HORIZON * height, 1e-9)
    distance = np.minimum((1 - HORIZON) * height / below, FARTHEST)
    transmission = np.exp(-THICKNESS * distance)[:, None, None]
    return _eight_bits(image * transmission + AIR * (1 - transmission))


def dark(image: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """`LIGHT` times the light at the same exposure: values v become v LIGHT^(1/γ), a third."""
    return _eight_bits(image * LIGHT ** (1 / GAMMA))


def noise(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Gaussian noise of standard deviation `SIGMA` on every pixel and channel, clipped."""
    return _eight_bits(image + random.normal(0, SIGMA, image.shape))


CORRUPTIONS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "fog": fog,
    "dark": dark,
    "noise": noise,
}


def _eight_bits(values: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)
