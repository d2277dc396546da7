"""CamVid (Brostow et al. 2009) in the 11-class split that SegNet was published with.

Layout: `train/ val/ test/` contain the images, `trainannot/ valannot/ testannot/` the labels, one
single-channel PNG with the name of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file
from penumbra.offline.datasets.camvid_classes import CLASSES, VOID
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.metrics.segmentation import IGNORE

SPLITS = ("train", "val", "test")
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass
class LabelledImages:
    """Images (RGB, `uint8`, H x W x 3) and labels (`uint8`, H x W: class number or `IGNORE`)."""

    classes: tuple[str, ...]
    images: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # one line per skipped file

    def __len__(self) -> int:
        return len(self.images)

    def truncate(self, count: int | None) -> None:
        """Keep the first `count` frames (None: all)."""
        for part in (self.images, self.labels, self.names):
            del part[count if count is not None else len(part) :]


def load_camvid(
    folder: Path, split: str, withhold: Sequence[str] = (), skip_bad: bool = False
) -> LabelledImages:
    """All frames of a split, in memory (0.7 MB each).

    Classes in `withhold` are removed from the numbering and their pixels become `IGNORE`. A frame
    that is unreadable or has an unknown label is an error, or with `skip_bad` a line in `skipped`.
    """
    table, classes = _numbering(withhold)
    data = LabelledImages(classes)
    for path in images_of(Path(folder), split):
        try:
            image = read_rgb_image(path)
            label = table[read_label(Path(folder) / f"{split}annot" / f"{path.stem}.png", image)]
        except PenumbraError as error:
            if not skip_bad:
                raise PenumbraError(f"{error} (--skip-bad skips such frames)") from error
            data.skipped.append(str(error))
            continue
        data.images.append(image)
        data.labels.append(label)
        data.names.append(path.stem)
    if not data.images:
        raise PenumbraError(f"no usable frame in {Path(folder) / split}: all were skipped")
    return data


def read_label(path: Path, image: np.ndarray) -> np.ndarray:
    """The labels of `image` in CamVid's numbering; PenumbraError if the file is invalid."""
    label = read_image_file(path, cv2.IMREAD_UNCHANGED)
    if label.ndim != 2 or label.dtype != np.uint8:
        raise PenumbraError(f"{path} is not a single-channel 8-bit label image")
    if label.shape != image.shape[:2]:
        raise PenumbraError(
            f"{path} is {label.shape[1]}x{label.shape[0]}, its image "
            f"{image.shape[1]}x{image.shape[0]}: they must have the same size"
        )
    if label.max() > VOID:
        raise PenumbraError(
            f"{path} contains the unknown label {label.max()}: CamVid's run from 0 to {VOID} (void)"
        )
    return label


def images_of(folder: Path, split: str) -> list[Path]:
    """The images of a split, sorted by name."""
    place = folder / split
    if not place.is_dir():
        raise PenumbraError(f"no folder {place}: give the folder that contains {', '.join(SPLITS)}")
    found = sorted(path for path in place.iterdir() if path.suffix.lower() in _IMAGE_SUFFIXES)
    if not found:
        raise PenumbraError(f"no image (JPEG or PNG) in {place}")
    return found


def _numbering(withhold: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """A lookup table from CamVid's labels to the new ones, and the remaining classes."""
    for name in withhold:
        if name not in CLASSES:
            raise PenumbraError(
                f"cannot withhold {name!r}: CamVid's classes are {', '.join(CLASSES)}"
            )
    kept = tuple(name for name in CLASSES if name not in withhold)
    table = np.full(256, IGNORE, dtype=np.uint8)
    for number, name in enumerate(kept):
        table[CLASSES.index(name)] = number
    return table, kept
