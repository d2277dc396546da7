"""The loss of SegNet: cross-entropy with class weights from the classes' frequency."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penumbra.training.metrics import IGNORE


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
