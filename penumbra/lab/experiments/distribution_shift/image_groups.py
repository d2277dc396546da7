"""The images of the experiment: test frames unchanged and corrupted, and indoor photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.lab.experiments.distribution_shift.corruptions import CORRUPTIONS
from penumbra.offline.datasets.camvid import images_of, read_label
from penumbra.offline.datasets.rgb_images import read_rgb_image


@dataclass(frozen=True)
class LabelledImage:
    """An RGB image, and CamVid's label numbers if they are known."""

    image: np.ndarray
    labels: np.ndarray | None


def camvid_frames(folder: Path, every: int, count: int) -> list[LabelledImage]:
    """Up to `count` frames of CamVid's test split, every n-th from the first on."""
    found = []
    for path in images_of(folder, "test")[::every][:count]:
        image = read_rgb_image(path)
        label = read_label(folder / "testannot" / f"{path.stem}.png", image)
        found.append(LabelledImage(image, label))
    return found


def corrupted(frames: Sequence[LabelledImage], seed: int) -> dict[str, list[LabelledImage]]:
    """The frames by corruption; each frame has its own random generator."""
    return {
        kind: [
            LabelledImage(corrupt(frame.image, np.random.default_rng((seed, place))), frame.labels)
            for place, frame in enumerate(frames)
        ]
        for kind, corrupt in CORRUPTIONS.items()
    }


def photographs(folder: Path, count: int, size: tuple[int, int]) -> list[LabelledImage]:
    """Up to `count` images of a folder, evenly spread, scaled to `size` (width, height)."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))
    if not files:
        raise PenumbraError(f"no image (JPEG or PNG) in {folder}")
    places = np.unique(np.arange(count) * len(files) // count)
    scaled = [
        cv2.resize(read_rgb_image(files[place]), size, interpolation=cv2.INTER_AREA)
        for place in places
    ]
    return [LabelledImage(image, None) for image in scaled]
