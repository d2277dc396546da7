"""Faults on the lens: dirt, water drops, tape. They are out of focus, so their edges are soft."""

from __future__ import annotations

import cv2
import numpy as np

from penumbra.offline.faults.published import to_uint8

# Tape and leaves as they are sold and fall: black, silver, beige, brown (BGR).
TAPES = ((18, 18, 18), (150, 150, 150), (140, 180, 205), (45, 65, 95))
COVER_NOISE = 1.5  # grey levels, of the sensor behind a cover


def dirt(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Splashes of mud, brown and nearly opaque, until `share` of the image is covered."""
    height, width = image.shape[:2]
    cover = np.zeros((height, width), np.uint8)
    while cover.mean() < share:
        middle = rng.uniform((0, 0), (width, height))
        size = rng.uniform(0.03, 0.1) * height
        for _ in range(5):  # a splash is five overlapping ellipses
            x, y = (middle + rng.normal(0, 0.6 * size, 2)).astype(int).tolist()
            axes = np.maximum(1, rng.uniform(0.4, 1, 2) * size).astype(int).tolist()
            cv2.ellipse(cover, (x, y), axes, rng.uniform(0, 180), 0, 360, 1, -1)
    mud = np.array([40, 58, 78]) * rng.uniform(0.4, 1.1)
    colour = np.broadcast_to(mud, image.shape)
    opacity = rng.uniform(0.85, 1.0) * _softened(cover, 0.012 * height)
    return _laid_over(image, colour, opacity, rng)


def drops(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Drops of water: each is a small lens that shows a blurred, inverted view of the scene."""
    height, width = image.shape[:2]
    cover = np.zeros((height, width), np.uint8)
    inside = cv2.GaussianBlur(image, (0, 0), 0.03 * height)[::-1]
    shown = image.astype(np.float32)
    while cover.mean() < share:
        radius = max(2, int(rng.uniform(0.03, 0.09) * height))
        x, y = rng.integers((0, 0), (width, height)).tolist()
        drop = np.zeros((height, width), np.uint8)
        cv2.ellipse(drop, (x, y), (radius, int(1.2 * radius)), 0, 0, 360, 1, -1)
        cover |= drop
        # The rim is darker than the middle; light is refracted away from the lens there.
        rim = cv2.GaussianBlur(drop.astype(np.float32), (0, 0), 0.3 * radius)
        alpha = _softened(drop, 0.006 * height)[..., None]
        shown += alpha * (inside * (0.55 + 0.5 * rim[..., None]) - shown)
    return to_uint8(shown)


def tape(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """One opaque rectangle of one colour over `share` of the image."""
    height, width = image.shape[:2]
    aspect = rng.uniform(0.5, 2.0)
    h = min(height, np.sqrt(share * height * width / aspect))
    w = min(width, share * height * width / h)
    top, left = rng.uniform(0, height - h), rng.uniform(0, width - w)
    cover = np.zeros((height, width), np.uint8)
    cover[round(top) : round(top + h), round(left) : round(left + w)] = 1
    colour = np.broadcast_to(np.array(TAPES[rng.integers(len(TAPES))], np.float64), image.shape)
    return _laid_over(image, colour, _softened(cover, 0.01 * height), rng)


def _softened(cover: np.ndarray, std: float) -> np.ndarray:
    return cv2.GaussianBlur(cover.astype(np.float32), (0, 0), max(0.5, std))


def _laid_over(
    image: np.ndarray, colour: np.ndarray, opacity: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    opacity = opacity[..., None]
    noise = rng.normal(0, COVER_NOISE, image.shape)
    return to_uint8(image * (1 - opacity) + (colour + noise) * opacity)
