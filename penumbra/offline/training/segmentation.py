"""Training of a segmentation network on labelled images in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.augmentation import jitter, random_warp, warped
from penumbra.offline.datasets.camvid import LabelledImages, load_camvid
from penumbra.offline.evaluation.segmentation import confusion_of, logits_predictor
from penumbra.offline.models import load_model
from penumbra.offline.models.network import Network, normalised_for
from penumbra.offline.models.segnet import SegNet
from penumbra.offline.training.copy_paste import RareObjects
from penumbra.offline.training.outliers import paste_outlier
from penumbra.offline.training.segmentation_losses import frequency_weights, segmentation_loss
from penumbra.offline.training.settings import SegNetOptions
from penumbra.offline.training.soft_labels import (
    distillation_loss,
    load_soft_labels,
    set_certain,
    warped_soft_labels,
)
from penumbra.offline.training.task import ViewDataset
from penumbra.options import least_and_most, width_and_height


@dataclass
class RandomViews(ViewDataset):
    """Random crops of labelled images: image, labels and, with a teacher, soft labels.

    `rare` are objects to paste, `paste` of them into each frame; a share `outliers` of the crops
    has a pasted outlier; `soft` are the teacher's soft labels of all frames.
    """

    data: LabelledImages
    size: tuple[int, int]
    scales: tuple[float, float]
    seed: int
    outliers: float = 0.0
    paste: int = 0
    rare: RareObjects | None = None
    soft: list[np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, ...]:
        epoch, index = key
        random = np.random.default_rng((self.seed, epoch, index))
        image, label = self.data.images[index], self.data.labels[index]
        soft = self.soft[index] if self.soft else None
        if self.rare and self.paste:
            image, label = image.copy(), label.copy()
            soft = None if soft is None else soft.copy()
            for _ in range(self.paste):
                pasted = self.rare.paste(image, label, random)
                if pasted and soft is not None:
                    set_certain(soft, *pasted)
        warp = random_warp(image.shape, self.size, self.scales, random)
        view, marks = warped(image, label, warp, self.size)
        view = jitter(view, random)
        if self.outliers and random.random() < self.outliers:
            view, marks = paste_outlier(view, marks, random)
        if soft is None:
            return view, marks
        return view, marks, warped_soft_labels(soft, image.shape, warp, self.size)


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
    paste: int = 0
    soft: list[np.ndarray] | None = None
    teacher_weight: float = 0.5
    temperature: float = 2.0
    metric: str = "mean_iou"

    def __post_init__(self) -> None:
        weights = frequency_weights(self.train.labels, len(self.train.classes), 1.0)
        self.rare = RareObjects(self.train, weights) if self.paste else None
        self.weights = torch.from_numpy(weights**self.balance)

    def data(self) -> ViewDataset:
        """Random crops of the training split."""
        return RandomViews(
            self.train,
            self.size,
            self.scales,
            self.seed,
            self.outliers,
            self.paste,
            self.rare,
            self.soft,
        )

    def loss(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Weighted cross-entropy of a batch, and the divergence from the teacher."""
        images, labels, *soft = batch
        logits = model(normalised_for(self.model, images)).float()
        weights = self.weights.to(logits.device)
        loss = segmentation_loss(logits, labels, weights)
        if not soft:
            return loss
        taught = distillation_loss(logits, labels, soft[0], weights, self.temperature)
        return (1 - self.teacher_weight) * loss + self.teacher_weight * taught

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
        options.paste,
        load_soft_labels(Path(options.teacher), train) if options.teacher else None,
        options.teacher_weight,
        options.temperature,
    )
