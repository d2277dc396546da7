"""Class weights and the loss of segmentation against hand-computed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.training.outliers import OUTLIER
from penumbra.offline.training.segmentation_losses import frequency_weights, segmentation_loss


def test_median_frequency_weights_of_a_case_counted_by_hand():
    first = np.array([[0, 0, 0, 1]], np.uint8)
    second = np.array([[0, 0, 2, IGNORE]], np.uint8)
    # Frequencies where present: 5/7, 1/4, 1/3; class 3 never occurs. Median: 1/3.
    expected = np.array([(1 / 3) / (5 / 7), (1 / 3) / (1 / 4), 1.0, 1.0])
    np.testing.assert_allclose(frequency_weights([first, second], 4, 1.0), expected, rtol=1e-6)
    np.testing.assert_allclose(
        frequency_weights([first, second], 4, 0.5), np.sqrt(expected), rtol=1e-6
    )
    np.testing.assert_array_equal(frequency_weights([first, second], 4, 0.0), np.ones(4))


def test_without_outliers_it_is_the_plain_loss():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5), dtype=torch.uint8)
    labels[0, 0] = IGNORE
    weights = torch.tensor([0.5, 1.0, 2.0])
    expected = F.cross_entropy(logits, labels.long(), weights, ignore_index=IGNORE)
    assert segmentation_loss(logits, labels, weights).item() == pytest.approx(expected.item())


def test_the_loss_of_an_outlier_is_minimal_for_the_uniform_distribution():
    labels = torch.zeros(1, 1, 2, dtype=torch.uint8)
    labels[..., 1] = OUTLIER
    logits = torch.zeros(1, 4, 1, 2)
    logits[0, 0, 0, 0] = 50.0  # the known pixel is certain and right: its loss is zero
    # Half of the pixels, each with log 4.
    lowest = segmentation_loss(logits, labels, torch.ones(4)).item()
    assert lowest == pytest.approx(0.5 * math.log(4))
    logits[0, 2, 0, 1] = 1.0
    assert segmentation_loss(logits, labels, torch.ones(4)).item() > lowest
