"""Training of a segmentation network on labelled images in memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.augmentation import random_view
from penumbra.offline.datasets.camvid import LabelledImages, load_camvid
from penumbra.offline.evaluation.segmentation import confusion_of, logits_predictor
from penumbra.offline.models import load_model
from penumbra.offline.models.network import Network, normalised_for
from penumbra.offline.models.segnet import SegNet
from penumbra.offline.training.outliers import paste_outlier
from penumbra.offline.training.segmentation_losses import frequency_weights, segmentation_loss
from penumbra.offline.training.settings import SegNetOptions
from penumbra.offline.training.task import ViewDataset
from penumbra.options import least_and_most, width_and_height


class RandomViews(ViewDataset):
    """Random crops of labelled images, a share `outliers` of them with a pasted outlier."""

    def __init__(
        self,
        data: LabelledImages,
        size: tuple[int, int],
        scales: tuple[float, float],
        seed: int,
        outliers: float = 0.0,
    ) -> None:
        self.data, self.size, self.scales, self.seed = data, size, scales, seed
        self.outliers = outliers

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        epoch, index = key
        random = np.random.default_rng((self.seed, epoch, index))
        image, label = self.data.images[index], self.data.labels[index]
        view, marks = random_view(image, label, self.size, self.scales, random)
        if self.outliers and random.random() < self.outliers:
            return paste_outlier(view, marks, random)
        return view, marks


@dataclass
class SegmentationTask:
    """Training of semantic segmentation."""

    model: Network
    train: LabelledImages
    validation: LabelledImages
    size: tuple[int, int] = (192, 256)
    scales: tuple[float, float] = (0.55, 1.5)
    balance: float = 0.5
    seed: int = 0
    outliers: float = 0.0
    metric: str = "mean_iou"

    def __post_init__(self) -> None:
        weights = frequency_weights(self.train.labels, len(self.train.classes), self.balance)
        self.weights = torch.from_numpy(weights)

    def data(self) -> ViewDataset:
        """Random crops of the training split."""
        return RandomViews(self.train, self.size, self.scales, self.seed, self.outliers)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Weighted cross-entropy of a batch."""
        images, labels = batch
        logits = model(normalised_for(self.model, images))
        return segmentation_loss(logits.float(), labels, self.weights.to(logits.device))

    def validate(self, model: Network) -> dict[str, float]:
        """Accuracy and IoU on the validation split."""
        return confusion_of(logits_predictor(model), self.validation).summary()


def segnet_task(options: SegNetOptions, seed: int) -> SegmentationTask:
    """SegNet on CamVid, from the options of the command line."""
    if options.data is None:
        raise PenumbraError("--data is missing: give CamVid's folder (with train/, trainannot/ …)")
    width, height = width_and_height(options.crop, "--crop")
    scales = least_and_most(options.scales, "--scales")
    withhold = [name for name in options.withhold.split(",") if name]
    train, validation = (
        load_camvid(Path(options.data), split, withhold, options.skip_bad)
        for split in ("train", "val")
    )
    skipped = train.skipped + validation.skipped
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    if options.skip_bad:
        print(f"skipped {len(skipped)} of {len(train) + len(validation) + len(skipped)} frames")
    model = SegNet(train.classes, options.width, options.dropout, options.dropout_rate)
    if options.init:
        other = load_model(options.init)
        try:
            model.load_state_dict(other.state_dict())
        except RuntimeError as error:
            raise PenumbraError(
                f"--init {options.init} has another width or other classes: {other.config}"
            ) from error
    return SegmentationTask(
        model,
        train,
        validation,
        (height, width),
        scales,
        options.balance,
        seed,
        options.outliers,
    )
