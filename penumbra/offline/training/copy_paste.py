"""Copy-paste (Ghiasi et al. 2021): objects of rare classes from other frames of the training split.

Rare classes are those below the median frequency; in CamVid poles, signs, fences, pedestrians and
bicyclists. An object keeps its height above the lower edge, so that its size fits the perspective.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np

from penumbra.offline.datasets.camvid import LabelledImages

_LEAST, _MOST = 40, 15_000  # pixels of an object
_SHIFT = 0.03  # largest vertical shift, as a share of the height


class RareObject(NamedTuple):
    """A connected region of a rare class: its frame, its class and its box."""

    frame: int
    number: int
    left: int
    top: int
    width: int
    height: int


class RareObjects:
    """The objects of `data` whose class has a weight above 1 in `weights` (median frequency)."""

    def __init__(self, data: LabelledImages, weights: np.ndarray) -> None:
        self.data = data
        self.by_class: list[list[RareObject]] = []
        for number in np.flatnonzero(weights > 1):
            found = []
            for frame, label in enumerate(data.labels):
                mask = (label == number).astype(np.uint8)
                _, _, boxes, _ = cv2.connectedComponentsWithStats(mask)
                for left, top, width, height, pixels in boxes[1:].tolist():
                    if _LEAST <= pixels <= _MOST:
                        found.append(RareObject(frame, int(number), left, top, width, height))
            if found:
                self.by_class.append(found)

    def paste(
        self, image: np.ndarray, label: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, int] | None:
        """Paste a random object into `image` and `label`, in place.

        Every rare class is equally probable. Returns the mask of what was pasted and its class;
        None if there is no object.
        """
        if not self.by_class:
            return None
        objects = self.by_class[random.integers(len(self.by_class))]
        chosen = objects[random.integers(len(objects))]
        source, marks = self.data.images[chosen.frame], self.data.labels[chosen.frame]
        # One more pixel on each side, for the soft edge.
        box = np.s_[
            max(chosen.top - 1, 0) : chosen.top + chosen.height + 1,
            max(chosen.left - 1, 0) : chosen.left + chosen.width + 1,
        ]
        cut, mask = source[box], (marks[box] == chosen.number).astype(np.uint8)
        if random.random() < 0.5:
            cut, mask = cut[:, ::-1], mask[:, ::-1]
        height, width = label.shape
        room = max(1, round(_SHIFT * height))
        lower = box[0].start + (height - source.shape[0]) + int(random.integers(-room, room + 1))
        top = int(np.clip(lower, 0, max(0, height - mask.shape[0])))
        left = int(random.integers(max(1, width - mask.shape[1] + 1)))
        rows, columns = (
            slice(start, min(start + length, most))
            for start, length, most in zip((top, left), mask.shape, (height, width), strict=True)
        )
        fits = np.s_[: rows.stop - rows.start, : columns.stop - columns.start]
        light = np.clip(image.mean() / max(1.0, source.mean()), 0.6, 1.6)
        alpha = cv2.GaussianBlur(mask[fits].astype(np.float32), (3, 3), 0)[..., None]
        mixed = image[rows, columns] * (1 - alpha) + np.minimum(cut[fits] * light, 255) * alpha
        image[rows, columns] = mixed.astype(np.uint8)
        inside = np.zeros(label.shape, bool)
        inside[rows, columns] = mask[fits] > 0
        label[inside] = chosen.number
        return inside, chosen.number
