"""Outlier exposure: random shapes without a class, pasted into training images.

A network that was trained on its classes only is often confident where there is none of them.
Outlier exposure (Hendrycks et al. 2019; for segmentation Chan et al. 2021) trains for the uniform
distribution on such regions. The shapes are random outlines with random patterns, so that none of
the objects that alerts are tested with occurs in training.
"""

from __future__ import annotations

import cv2
import numpy as np

OUTLIER = 254
"""Label of pixels that show an object without a class."""


def paste_outlier(
    image: np.ndarray, label: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A copy with one shape, 0.06 to 0.5 of the image's height, labelled `OUTLIER`."""
    height, width = label.shape
    size = height * np.exp(random.uniform(np.log(0.06), np.log(0.5)))
    centre = random.uniform((0.1 * width, 0.25 * height), (0.9 * width, 0.9 * height))
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [_outline(centre, size, random)], 255, cv2.LINE_8)
    inside = mask > 0
    pattern = _pattern(height, width, size, random)
    # Soft edges half of the time, so that the network does not learn to detect hard ones.
    alpha: np.ndarray = mask.astype(np.float32)[..., None] / 255
    if random.random() < 0.5:
        alpha = cv2.GaussianBlur(alpha, (5, 5), 0)[..., None]
    light = float(np.clip(image.mean() / 110, 0.5, 1.4))  # as bright as the image
    mixed = image * (1 - alpha) + np.clip(pattern * light, 0, 255) * alpha
    marked = label.copy()
    marked[inside] = OUTLIER
    return mixed.astype(np.uint8), marked


def _outline(centre: np.ndarray, size: float, random: np.random.Generator) -> np.ndarray:
    """A star-shaped polygon, from round to ragged, stretched and rotated."""
    count = int(random.integers(3, 28))
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    radius = (
        size / 2 * (1 + random.uniform(0, 0.45) * random.standard_normal(count).clip(-1.5, 1.5))
    )
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * radius[:, None]
    points *= np.exp(random.uniform(-0.5, 0.5, 2))
    turn = random.uniform(0, 2 * np.pi)
    points = points @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return np.round(points + centre).astype(np.int32)


def _pattern(height: int, width: int, size: float, random: np.random.Generator) -> np.ndarray:
    """Two colours blended by waves or blotches, or a plain one, with shading; `float32`."""
    first, second = random.uniform(0, 255, (2, 3))
    faded = random.random()  # from full colours to greys
    first, second = (c * (1 - faded) + c.mean() * faded for c in (first, second))
    kind = random.integers(4)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    if kind == 0:  # plain
        share = np.full((height, width), 0.0, np.float32)
    elif kind == 1:  # stripes or checks
        wave = 2 * np.pi / (size * random.uniform(0.08, 0.6))
        turn = random.uniform(0, np.pi)
        share = np.sin((x * np.cos(turn) + y * np.sin(turn)) * wave)
        if random.random() < 0.5:
            share = share * np.sin((y * np.cos(turn) - x * np.sin(turn)) * wave)
        share = (share > 0).astype(np.float32) if random.random() < 0.6 else share / 2 + 0.5
    else:  # blotches, from fine to coarse
        cell = max(1, round(size * random.uniform(0.02, 0.4)))
        grid = random.random((height // cell + 2, width // cell + 2)).astype(np.float32)
        smooth = cv2.INTER_CUBIC if kind == 2 else cv2.INTER_NEAREST
        share = cv2.resize(grid, (width, height), interpolation=smooth).clip(0, 1)
    shade = 1 + random.uniform(0, 0.5) * np.sin(
        (x * random.uniform(-1, 1) + y * random.uniform(-1, 1)) * (np.pi / size)
    )
    grain = random.standard_normal((height, width)).astype(np.float32) * random.uniform(0, 10)
    colours = first * (1 - share[..., None]) + second * share[..., None]
    return (colours * shade[..., None] + grain[..., None]).astype(np.float32)
