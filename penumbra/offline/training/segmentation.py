"""Training and judging a segmentation network on labelled images held in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid import LabelledImages, load_camvid
from penumbra.offline.metrics.segmentation import Confusion, Reliability
from penumbra.offline.models import load_model
from penumbra.offline.models.segnet import Probabilities, SegNet, normalise
from penumbra.offline.training.augmentation import random_view
from penumbra.offline.training.losses import frequency_weights, segmentation_loss
from penumbra.offline.training.outliers import paste_outlier
from penumbra.offline.training.settings import SegNetOptions
from penumbra.options import least_and_most, width_and_height

# From uint8 RGB images (N x H x W x 3) to class scores or probabilities (N x classes x H x W).
Predictor = Callable[[Tensor], Tensor]


class RandomViews(Dataset):
    """Augmented crops; item `(epoch, index)` is always the same one, whoever asks and when.

    That makes a resumed run see what the killed one would have seen, with any number of workers.
    """

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
    """What the training loop needs to know of semantic segmentation."""

    model: nn.Module
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

    def data(self) -> Dataset:
        return RandomViews(self.train, self.size, self.scales, self.seed, self.outliers)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        logits = model(normalised_for(self.model, images))
        return segmentation_loss(logits.float(), labels, self.weights.to(logits.device))

    def validate(self, model: nn.Module) -> dict[str, float]:
        return confusion_of(deterministic(model), self.validation).summary()


def segnet_task(options: SegNetOptions, seed: int) -> SegmentationTask:
    """SegNet on CamVid, as the command line asks for it."""
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


def normalised_for(model: nn.Module, images: Tensor) -> Tensor:
    """`images` on the model's device, with its pixel statistics, in the fast memory layout."""
    device = next(model.parameters()).device
    x = normalise(images.to(device), model.config["mean"], model.config["std"])
    return x.contiguous(memory_format=torch.channels_last)


def deterministic(model: nn.Module) -> Predictor:
    """The plain forward pass with dropout off."""
    return lambda images: model(normalised_for(model, images))


def predictor(
    model: nn.Module, method: str, samples: int, seed: int, walk: nn.Module | None = None
) -> Predictor:
    """Class probabilities by one plain pass, by sampling, or by one propagated pass.

    `walk`, if given, is what propagates: its last output are the moments of the probabilities.
    """
    probabilities = Probabilities(model)
    if method == "deterministic":
        return lambda images: probabilities(normalised_for(model, images))
    if method == "propagated":
        from penumbra.propagation import propagate

        propagated = walk or propagate(probabilities)

        def predict(images: Tensor) -> Tensor:
            outputs = propagated(normalised_for(model, images))
            return (outputs[-1] if isinstance(outputs, tuple) else outputs).mean

        return predict
    from penumbra.propagation.montecarlo import monte_carlo

    return lambda images: (
        monte_carlo(probabilities, normalised_for(model, images), samples=samples, seed=seed).mean
    )


@torch.inference_mode()
def confusion_of(
    predict: Predictor,
    data: LabelledImages,
    progress: Callable = iter,
    reliability: Reliability | None = None,
) -> Confusion:
    """Predict every image at its own size and count; `progress` may wrap the loop in a bar.

    `reliability`, if given, is told of every pixel as well: `predict` gives probabilities then.
    """
    confusion = Confusion(len(data.classes))
    for index in progress(range(len(data))):
        scores = predict(torch.from_numpy(data.images[index])[None])
        highest, labels = (part[0].cpu().numpy() for part in scores.max(dim=1))
        confusion.add(data.labels[index], labels)
        if reliability is not None:
            reliability.add(data.labels[index], labels, highest)
    return confusion
