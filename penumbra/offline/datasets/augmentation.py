"""Random views of a labelled image: scale, crop, mirror, light and colour."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from penumbra.offline.metrics.segmentation import IGNORE


def random_view(
    image: np.ndarray,
    label: np.ndarray,
    size: tuple[int, int],
    scales: tuple[float, float],
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """A crop of `size` (height, width) at a random scale and position, mirrored half of the time.

    Where the crop exceeds the scaled image it is black, labelled `IGNORE`.
    """
    view, marks = warped(image, label, random_warp(image.shape, size, scales, random), size)
    return jitter(view, random), marks


def random_warp(
    shape: Sequence[int],
    size: tuple[int, int],
    scales: tuple[float, float],
    random: np.random.Generator,
) -> np.ndarray:
    """A random affine map (2 x 3) from the pixels of an image of `shape` to those of a crop."""
    height, width = size
    scale = np.exp(random.uniform(np.log(scales[0]), np.log(scales[1])))
    room_x, room_y = shape[1] * scale - width, shape[0] * scale - height
    left, top = (random.uniform(min(0.0, room), max(0.0, room)) for room in (room_x, room_y))
    # Maps scaled source pixel centres to the crop: x' = s (x + ½) - ½ - left.
    warp = np.array([[scale, 0, scale / 2 - 0.5 - left], [0, scale, scale / 2 - 0.5 - top]])
    if random.random() < 0.5:
        warp[0] = [-warp[0, 0], 0, width - 1 - warp[0, 2]]
    return warp


def warped(
    image: np.ndarray, label: np.ndarray, warp: np.ndarray, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Image and labels of a crop; outside of the image it is black, labelled `IGNORE`."""
    height, width = size
    view = cv2.warpAffine(image, warp, (width, height), flags=cv2.INTER_LINEAR)
    marks = cv2.warpAffine(
        label, warp, (width, height), flags=cv2.INTER_NEAREST, borderValue=int(IGNORE)
    )
    return view, marks


def jitter(image: np.ndarray, random: np.random.Generator, strength: float = 1.0) -> np.ndarray:
    """Random exposure, contrast, gamma, tint and saturation."""
    levels = np.linspace(0.0, 1.0, 256, dtype=np.float32)
    middle = (
        float(image.mean()) / 255.0
    )  # the pivot of the contrast, so that a dark image stays dark
    exposure, gamma, contrast, saturation = 1.0 + strength * random.uniform(-0.3, 0.3, size=4)
    tint = 1.0 + strength * random.uniform(-0.08, 0.08, size=3)
    curve = ((levels**gamma - middle**gamma) * contrast + middle**gamma) * exposure
    table = np.clip(curve[:, None] * tint * 255.0 + 0.5, 0, 255).astype(np.uint8)
    lit = cv2.LUT(image, table[None])
    grey = cv2.cvtColor(cv2.cvtColor(lit, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(lit, saturation, grey, 1.0 - saturation, 0.0)
