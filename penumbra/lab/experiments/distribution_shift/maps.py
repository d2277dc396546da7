"""Ordinary and strange pictures, and what a network says of each by every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch

from penumbra.bundle import load_bundle
from penumbra.errors import PenumbraError
from penumbra.lab.experiments.distribution_shift.corruptions import CHANGES
from penumbra.offline.datasets.camvid import CLASSES, images_of, read_image, read_label
from penumbra.offline.export.walk import walk_of_bundle
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.models import load_model
from penumbra.offline.training.segmentation import normalised_for
from penumbra.share import bundle_folder
from penumbra.verification.reference import References

OURS, SAMPLED, MANY = "ours", "mc", "many"


@dataclass(frozen=True)
class Picture:
    """An RGB picture, and CamVid's label numbers where they are known."""

    image: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True)
class Maps:
    """What one picture gives: labels and mean standard deviation of ours and of few samples, the
    standard deviation of many, and the truth by the network's own numbers."""

    labels: dict[str, np.ndarray]  # by OURS, SAMPLED
    std: dict[str, np.ndarray]  # by OURS, SAMPLED, MANY
    truth: np.ndarray | None

    @property
    def known(self) -> np.ndarray:
        return self.truth != IGNORE


class SampledNetwork:
    """A shipped network, propagated as its bundle is, and sampled a `few` and `many` times.

    Samples are kept under PENUMBRA_CACHE, picture by picture: an interrupted run goes on.
    """

    def __init__(self, name: str, few: int, many: int, seed: int) -> None:
        self.bundle = bundle = load_bundle(bundle_folder(name))
        self._model = load_model(bundle.weights_file)
        self._walk = walk_of_bundle(bundle, self._model)
        # Seeds of their own, so that nothing is judged by samples that it has itself.
        self._few, self._many = (
            References(bundle, few, 2 * seed),
            References(bundle, many, 2 * seed + 1),
        )
        self._is_rgb = bundle.input.channel_order == "rgb"
        self._numbers = _numbers([spec.name for spec in bundle.classes])

    @torch.inference_mode()
    def of(self, picture: Picture) -> Maps:
        x = normalised_for(self._model, torch.from_numpy(picture.image)[None])
        _, probabilities = self._walk(x)
        seen = picture.image if self._is_rgb else picture.image[..., ::-1].copy()
        few, many = self._few.of(seen), self._many.of(seen)
        labels = probabilities.mean[0].argmax(0).numpy().astype(np.uint8)
        std = probabilities.std[0].mean(0).numpy()
        return Maps(
            {OURS: labels, SAMPLED: few.prediction},
            {OURS: std, SAMPLED: few.std, MANY: many.std},
            None if picture.labels is None else self._numbers[picture.labels],
        )


def _numbers(classes: list[str]) -> np.ndarray:
    """From CamVid's label numbers to a network's; what it has no class for is unknown."""
    numbers = np.full(256, IGNORE, np.uint8)
    for number, name in enumerate(CLASSES):
        if name in classes:
            numbers[number] = classes.index(name)
    return numbers


def frames_of(folder: Path, every: int, count: int) -> list[Picture]:
    """So many frames of CamVid's test split, at even distances from the first on."""
    found = []
    for path in images_of(folder, "test")[::every][:count]:
        image = read_image(path)
        label = read_label(folder / "testannot" / f"{path.stem}.png", image)
        found.append(Picture(image, label))
    return found


def changed(frames: Sequence[Picture], seed: int) -> dict[str, list[Picture]]:
    """By the name of the change; each frame has a generator of its own."""
    return {
        kind: [
            Picture(change(frame.image, np.random.default_rng((seed, place))), frame.labels)
            for place, frame in enumerate(frames)
        ]
        for kind, change in CHANGES.items()
    }


def photographs(folder: Path, count: int, size: tuple[int, int]) -> list[Picture]:
    """So many of a folder, spread evenly, scaled to `size` (width, height)."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))
    if not files:
        raise PenumbraError(f"no picture (JPEG or PNG) in {folder}")
    places = np.unique(np.arange(count) * len(files) // count)
    return [
        Picture(cv2.resize(read_image(files[place]), size, interpolation=cv2.INTER_AREA), None)
        for place in places
    ]
