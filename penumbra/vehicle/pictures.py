"""Images as arrays: fitted to the size that an engine takes."""

from __future__ import annotations

import cv2
import numpy as np


def fit_to_size(image: np.ndarray, size: tuple[int | None, int | None]) -> np.ndarray:
    """The image scaled to the height and width that the engine takes; None takes any.

    Shrinking averages over the pixels that fall together (`INTER_AREA`), enlarging is bilinear.
    """
    height, width = (wanted or found for wanted, found in zip(size, image.shape[:2], strict=True))
    if image.shape[:2] == (height, width):
        return image
    shrinks = height * width < image.shape[0] * image.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=method)
