"""The losses of a segmentation: cross-entropy with class weights; the uniform where no class is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penumbra.offline.metrics.segmentation import IGNORE, OUTLIER


def frequency_weights(labels: Iterable[np.ndarray], classes: int, balance: float) -> np.ndarray:
    """Median-frequency balancing (Eigen and Fergus 2015), softened: `(median / f_c) ** balance`.

    f_c is the class's pixels divided by the pixels of the images it occurs in. `balance` 1 is the
    paper's and lifts rare classes at the price of global accuracy; 0 is plain cross-entropy.
    A class that never occurs gets weight 1 (it never enters the loss).
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
    """Weighted cross-entropy; `OUTLIER` pixels are asked for the uniform distribution instead.

    Of them -mean_k log p_k is counted, which is smallest where all classes are equally probable,
    with the weight of a class of median frequency.
    """
    outlier = labels == OUTLIER
    known = labels.masked_fill(outlier, IGNORE).long()
    loss = F.cross_entropy(logits, known, weights, ignore_index=IGNORE)
    if not bool(outlier.any()):
        return loss
    evenly = -F.log_softmax(logits, dim=1).mean(dim=1)
    share = outlier.sum() / (labels != IGNORE).sum()
    return loss + share * torch.where(outlier, evenly, 0).sum() / outlier.sum()
