"""Scaling of images to the input size of the engine."""

from __future__ import annotations

import math

import cv2
import numpy as np

from penumbra.vehicle.conversions import ConversionError

LARGEST = 5 * 2**17  # pixels of the input of a network without a working size: bounds its memory
LEAST_SIDE = 16  # pixels
MOST_STRETCH = 4.0  # by which an image may be enlarged or distorted


def fit_to_size(image: np.ndarray, size: tuple[int | None, int | None]) -> np.ndarray:
    """Scale the image to this height and width; None keeps an extent.

    Shrinking averages over pixel areas (`INTER_AREA`), enlarging is bilinear. Without a size an
    image over LARGEST pixels is scaled down to it.
    """
    if size == (None, None) and image.shape[0] * image.shape[1] > LARGEST:
        scale = math.sqrt(LARGEST / (image.shape[0] * image.shape[1]))
        size = int(image.shape[0] * scale), int(image.shape[1] * scale)
    height, width = (wanted or found for wanted, found in zip(size, image.shape[:2], strict=True))
    if image.shape[:2] == (height, width):
        return image
    shrinks = height * width < image.shape[0] * image.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=method)


def check_plausible_size(image: np.ndarray, size: tuple[int | None, int | None]) -> None:
    """Refuse an image that is far too small for the network, or of another shape."""
    height, width = image.shape[:2]
    expected = size[0] or height, size[1] or width
    stretch = expected[0] / height, expected[1] / width
    distortion = stretch[0] / stretch[1]
    if (
        min(height, width) < LEAST_SIDE
        or max(stretch) > MOST_STRETCH
        or not 1 / MOST_STRETCH <= distortion <= MOST_STRETCH
    ):
        raise ConversionError(
            "size",
            f"the image has {width}x{height} pixels, and the network expects "
            f"{expected[1]}x{expected[0]}: check the camera driver, or set image_size",
        )
