"""Losses of segmentation: weighted cross-entropy, and the uniform distribution on outliers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.training.outliers import OUTLIER


def frequency_weights(labels: Iterable[np.ndarray], classes: int, balance: float) -> np.ndarray:
    """Median-frequency balancing (Eigen and Fergus 2015): `(median / f_c) ** balance`.

    f_c is the number of pixels of class c divided by the pixels of the images that contain it.
    `balance` 1 is that of the paper, which favours rare classes at the expense of global accuracy;
    0 is plain cross-entropy. A class that never occurs has weight 1.
    """
    pixels = np.zeros(classes)
    pixels_where_present = np.zeros(classes)
    for label in labels:
        counts = np.bincount(label[label != IGNORE].ravel(), minlength=classes)
        pixels += counts
        pixels_where_present[counts > 0] += counts.sum()
    present = pixels > 0
    frequency = pixels[present] / pixels_where_present[present]
    weights = np.ones(classes)
    weights[present] = (np.median(frequency) / frequency) ** balance
    return weights.astype(np.float32)


def segmentation_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy; the target of `OUTLIER` pixels is the uniform distribution.

    Their loss is -mean_k log p_k, which is minimal if all classes are equally probable, with the
    weight of a class of median frequency.
    """
    outlier = labels == OUTLIER
    known = labels.masked_fill(outlier, IGNORE).long()
    loss = F.cross_entropy(logits, known, weights, ignore_index=IGNORE)
    if not bool(outlier.any()):
        return loss
    uniform = -F.log_softmax(logits, dim=1).mean(dim=1)
    share = outlier.sum() / (labels != IGNORE).sum()
    return loss + share * torch.where(outlier, uniform, 0).sum() / outlier.sum()
