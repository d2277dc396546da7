"""Random views of a stereo pair: zoom, mirroring with swapped images, light."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from penumbra.offline.datasets.augmentation import jitter
from penumbra.offline.datasets.stereo_matching import UNKNOWN

_LIGHT = 1.8  # strength of the jitter: stronger than in segmentation, for there are few real pairs


@dataclass
class StereoSample:
    """RGB images (uint8, H x W x 3) and their known disparities (float32, H x W)."""

    left: np.ndarray
    right: np.ndarray
    known: np.ndarray
    known_right: np.ndarray


def random_stereo_view(
    sample: StereoSample,
    size: tuple[int, int],
    zoom: tuple[float, float],
    grey: float,
    random: np.random.Generator,
) -> StereoSample:
    """The same crop of both images, scaled to (height, width) `size`.

    A crop of 1/zoom of the width makes disparities, as fractions of the width, zoom times as large,
    like a longer lens. Mirrored, the right image becomes the left one. Both images get the same
    jitter, and with probability `grey` both lose their colour.
    """
    height, width = size
    scale = np.exp(random.uniform(np.log(zoom[0]), np.log(zoom[1])))
    place = random.random(2)
    mirrored = random.random() < 0.5
    rows, columns = sample.left.shape[:2]
    # From the view's pixel centres to the source's: x = (x' + ½) step - ½ + start.
    step_x, step_y = columns / scale / width, rows / scale / height
    left, top = place * (columns - columns / scale, rows - rows / scale)
    back = np.array([[step_x, 0, step_x / 2 - 0.5 + left], [0, step_y, step_y / 2 - 0.5 + top]])

    def cut(image: np.ndarray, how: int) -> np.ndarray:
        view = cv2.warpAffine(
            image, back, (width, height), flags=how | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )  # fmt: skip
        return cv2.flip(view, 1) if mirrored else view

    def scaled(known: np.ndarray) -> np.ndarray:
        view = cut(known, cv2.INTER_NEAREST)
        return np.where(view > UNKNOWN / 2, view * np.float32(scale), view)

    images = [cut(sample.left, cv2.INTER_LINEAR), cut(sample.right, cv2.INTER_LINEAR)]
    known = [scaled(sample.known), scaled(sample.known_right)]
    if mirrored:
        images.reverse()
        known.reverse()
    both = jitter(np.vstack(images), random, _LIGHT)
    if random.random() < grey:
        both = cv2.cvtColor(cv2.cvtColor(both, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return StereoSample(both[:height], both[height:], *known)
