"""Faults of light and colour: exposure, haze, white balance, lamps that pulse."""

from __future__ import annotations

import numpy as np

from penumbra.offline.faults.published import to_uint8

GAMMA = 2.2  # of the encoding: 8-bit images hold light to the power of 1 / GAMMA
READ_NOISE = 1.0  # grey levels
# The street of `haze`: a flat road seen by a camera at this height with a field of view as
# CamVid's, and walls at the farthest distance. The sky is behind as much air as the walls.
CAMERA_HEIGHT = 1.4  # m
FOCAL_PER_WIDTH = 1.0
FARTHEST = 60.0  # m
CONTRAST_AT_VISIBILITY = 0.02  # Koschmieder: contrast is 2 % at the distance of visibility
AIR = 205.0  # grey level of the light that the air scatters


def light_gain(image: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Multiply light, not grey levels; `gains` broadcasts against the image."""
    return to_uint8(image * np.asarray(gains, np.float32) ** (1 / GAMMA))


def exposure(image: np.ndarray, stops: float, rng: np.random.Generator) -> np.ndarray:
    """Light times 2 to the power of `stops`, clipped at white."""
    return light_gain(image, np.array(2.0**stops))


def black(image: np.ndarray, lost: float, rng: np.random.Generator) -> np.ndarray:
    """A lens cap, or a sensor without signal: grey levels times 1 - `lost`, and read noise."""
    noise = rng.normal(0, READ_NOISE, image.shape)
    return to_uint8(image * (1 - lost) + noise)


def white(image: np.ndarray, lost: float, rng: np.random.Generator) -> np.ndarray:
    """A blinded sensor: grey levels `lost` of the way to white, and read noise."""
    noise = rng.normal(0, READ_NOISE, image.shape)
    return to_uint8(image + (255.0 - image) * lost + noise)


def haze(image: np.ndarray, visibility: float, rng: np.random.Generator) -> np.ndarray:
    """Koschmieder: I t + A (1 - t) with the transmission t = exp(-β d), d of a flat street."""
    height, width = image.shape[:2]
    below = np.arange(height) - height / 2  # the horizon is in the middle
    distance = np.full(height, FARTHEST)
    road = below > 0
    distance[road] = np.minimum(FARTHEST, CAMERA_HEIGHT * FOCAL_PER_WIDTH * width / below[road])
    extinction = -np.log(CONTRAST_AT_VISIBILITY) / visibility
    transmission = np.exp(-extinction * distance)[:, None, None]
    return to_uint8(image * transmission + AIR * (1 - transmission))


def colour_cast(image: np.ndarray, gain: float, rng: np.random.Generator) -> np.ndarray:
    """A wrong white balance: red light times `gain`, blue light divided by it, or the reverse."""
    gain = gain if rng.random() < 0.5 else 1 / gain
    return light_gain(image, np.array([1 / gain, 1.0, gain]))


def swapped_channels(image: np.ndarray, _: None, rng: np.random.Generator) -> np.ndarray:
    """Red and blue are exchanged."""
    return np.ascontiguousarray(image[..., ::-1])


def banding(image: np.ndarray, amplitude: float, rng: np.random.Generator) -> np.ndarray:
    """Lamps that pulse while a rolling shutter reads: 6 to 20 bands over the height."""
    height = len(image)
    cycles, phase = rng.uniform(6, 20), rng.uniform(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * cycles * np.arange(height) / height + phase)
    return to_uint8(image * (1 + amplitude * wave)[:, None, None])


def flicker(image: np.ndarray, amplitude: float, rng: np.random.Generator) -> np.ndarray:
    """A frame of a drive under lamps that pulse: its gain has a phase of its own."""
    return to_uint8(image * (1 + amplitude * np.sin(rng.uniform(0, 2 * np.pi))))
