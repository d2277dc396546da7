"""The labels and uncertainty of an image by every method that is compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from penumbra.bundle import load_bundle
from penumbra.lab.experiments.distribution_shift.image_groups import LabelledImage
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.export.walk import walk_of_bundle
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.models import load_model
from penumbra.offline.models.network import normalised_for
from penumbra.share import bundle_folder
from penumbra.verification.reference import References

OURS, SAMPLED, MANY = "ours", "mc", "many"


@dataclass(frozen=True)
class UncertaintyMaps:
    """Results of one image: ours, Monte Carlo with few samples, and its std with many samples."""

    labels: dict[str, np.ndarray]  # by OURS, SAMPLED
    std: dict[str, np.ndarray]  # mean over the classes; by OURS, SAMPLED, MANY
    truth: np.ndarray | None  # by the network's own class numbers

    @property
    def known(self) -> np.ndarray:
        """The mask of labelled pixels whose class the network has; empty without labels."""
        if self.truth is None:
            return np.zeros(self.std[OURS].shape, bool)
        return self.truth != IGNORE


class SampledNetwork:
    """A shipped network, propagated as in its bundle, and sampled `few` and `many` times.

    References caches the samples under PENUMBRA_CACHE, so an interrupted run can be resumed.
    """

    def __init__(self, name: str, few: int, many: int, seed: int) -> None:
        self.bundle = bundle = load_bundle(bundle_folder(name))
        self._model = load_model(bundle.weights_file)
        self._walk = walk_of_bundle(bundle, self._model)
        # Different seeds, so that few and many samples are independent.
        self._few = References(bundle, few, 2 * seed)
        self._many = References(bundle, many, 2 * seed + 1)
        self._is_rgb = bundle.input.channel_order == "rgb"
        self._numbers = _numbers([spec.name for spec in bundle.classes])

    @torch.inference_mode()
    def maps(self, labelled: LabelledImage) -> UncertaintyMaps:
        """All results for one image."""
        x = normalised_for(self._model, torch.from_numpy(labelled.image)[None])
        _, probabilities = self._walk(x)
        image = labelled.image if self._is_rgb else labelled.image[..., ::-1].copy()
        few, many = self._few.of(image), self._many.of(image)
        labels = probabilities.mean[0].argmax(0).numpy().astype(np.uint8)
        std = probabilities.std[0].mean(0).numpy()
        return UncertaintyMaps(
            {OURS: labels, SAMPLED: few.prediction},
            {OURS: std, SAMPLED: few.std, MANY: many.std},
            None if labelled.labels is None else self._numbers[labelled.labels],
        )


def _numbers(classes: list[str]) -> np.ndarray:
    """From CamVid's label numbers to a network's; IGNORE for classes that it does not have."""
    numbers = np.full(256, IGNORE, np.uint8)
    for number, name in enumerate(CLASSES):
        if name in classes:
            numbers[number] = classes.index(name)
    return numbers
