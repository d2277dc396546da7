"""Scaling of images to the input size of the engine."""

from __future__ import annotations

import cv2
import numpy as np


def fit_to_size(image: np.ndarray, size: tuple[int | None, int | None]) -> np.ndarray:
    """Scale the image to this height and width; None keeps an extent.

    Shrinking averages over pixel areas (`INTER_AREA`), enlarging is bilinear.
    """
    height, width = (wanted or found for wanted, found in zip(size, image.shape[:2], strict=True))
    if image.shape[:2] == (height, width):
        return image
    shrinks = height * width < image.shape[0] * image.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=method)
