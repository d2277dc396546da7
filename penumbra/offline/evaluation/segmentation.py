"""Evaluation of a segmentation network on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from penumbra.offline.datasets.camvid import LabelledImages
from penumbra.offline.metrics.segmentation import Confusion, Reliability
from penumbra.offline.models.network import Network, normalised_for
from penumbra.offline.models.segnet import Probabilities
from penumbra.propagation import monte_carlo, propagate

SegmentationPredictor = Callable[[Tensor], Tensor]
"""From RGB images (uint8, N x H x W x 3) to scores or probabilities (N x classes x H x W)."""


def logits_predictor(model: Network) -> SegmentationPredictor:
    """The class scores of the deterministic forward pass."""
    return lambda images: model(normalised_for(model, images))


def probability_predictor(
    model: Network, method: str, samples: int, seed: int, walk: nn.Module | None = None
) -> SegmentationPredictor:
    """Class probabilities by the `method` deterministic, monte-carlo or propagated.

    `walk` is the propagated model (None: `propagate` with the default rules). If it has several
    outputs, the last ones are the moments of the probabilities.
    """
    probabilities = Probabilities(model)
    if method == "deterministic":
        return lambda images: probabilities(normalised_for(model, images))
    if method == "propagated":
        propagated = walk or propagate(probabilities)

        def predict(images: Tensor) -> Tensor:
            outputs = propagated(normalised_for(model, images))
            return (outputs[-1] if isinstance(outputs, tuple) else outputs).mean

        return predict
    return lambda images: (
        monte_carlo(probabilities, normalised_for(model, images), samples=samples, seed=seed).mean
    )


@torch.inference_mode()
def confusion_of(
    predict: SegmentationPredictor,
    data: LabelledImages,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    reliability: Reliability | None = None,
) -> Confusion:
    """Predict every image at its own size and count; `progress` may wrap the loop in a bar.

    `reliability`, if given, collects all pixels as well; `predict` must return probabilities then.
    """
    confusion = Confusion(len(data.classes))
    for index in progress(range(len(data))):
        scores = predict(torch.from_numpy(data.images[index])[None])
        highest, labels = (part[0].cpu().numpy() for part in scores.max(dim=1))
        confusion.add(data.labels[index], labels)
        if reliability is not None:
            reliability.add(data.labels[index], labels, highest)
    return confusion
