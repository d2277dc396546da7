"""Images in which the health of a camera can be judged, unlike noise."""

from __future__ import annotations

import cv2
import numpy as np


def scene(seed, height=360, width=480):
    """Shapes of all sizes and directions under a bright sky, with a little sensor noise."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width, 3), 110, np.uint8)
    image[: height // 3] = (225, 215, 205)
    for _ in range(160):
        x, y = rng.integers((0, height // 5), (width, height)).tolist()
        size = rng.uniform(0.01, 0.08, 2) * height
        colour = rng.integers(15, 215, 3).tolist()
        axes = size.astype(int).tolist()
        cv2.ellipse(image, (x, y), axes, rng.uniform(0, 180), 0, 360, colour, -1)
    return np.clip(image + rng.normal(0, 1, image.shape), 0, 255).astype(np.uint8)
