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
        source = self.data.images[chosen.frame]
        cut, mask, top = self._cut_out(chosen)
        if random.random() < 0.5:
            cut, mask = cut[:, ::-1], mask[:, ::-1]
        height, width = label.shape
        room = max(1, round(_SHIFT * height))
        top += height - source.shape[0] + int(random.integers(-room, room + 1))
        top = int(np.clip(top, 0, max(0, height - mask.shape[0])))
        left = int(random.integers(max(1, width - mask.shape[1] + 1)))
        cut, mask = cut[: height - top, : width - left], mask[: height - top, : width - left]
        place = np.s_[top : top + mask.shape[0], left : left + mask.shape[1]]
        light = np.clip(image.mean() / max(1.0, source.mean()), 0.6, 1.6)
        alpha = cv2.GaussianBlur(mask.astype(np.float32), (3, 3), 0)[..., None]
        mixed = image[place] * (1 - alpha) + np.minimum(cut * light, 255) * alpha
        image[place] = mixed.astype(np.uint8)
        inside = np.zeros(label.shape, bool)
        inside[place] = mask > 0
        label[inside] = chosen.number
        return inside, chosen.number

    def _cut_out(self, chosen: RareObject) -> tuple[np.ndarray, np.ndarray, int]:
        """The pixels of an object's box, its mask in it, and the box's first row.

        The box has one more pixel on each side, for the soft edge.
        """
        top, left = max(chosen.top - 1, 0), max(chosen.left - 1, 0)
        box = np.s_[top : chosen.top + chosen.height + 1, left : chosen.left + chosen.width + 1]
        mask = (self.data.labels[chosen.frame][box] == chosen.number).astype(np.uint8)
        return self.data.images[chosen.frame][box], mask, top
