"""Things without a class: pasted where they are marked, and asked for the uniform distribution."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from penumbra.cli.main import main
from penumbra.offline.metrics.segmentation import IGNORE, OUTLIER
from penumbra.offline.models import read_header
from penumbra.offline.training.losses import segmentation_loss
from penumbra.offline.training.outliers import paste_outlier


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_picture_changes_where_it_is_marked_and_the_label_nowhere_else(seed):
    image = np.full((72, 96, 3), 90, np.uint8)
    label = np.random.default_rng(seed).integers(0, 11, (72, 96)).astype(np.uint8)
    pasted, marks = paste_outlier(image, label, np.random.default_rng(seed))
    put = marks == OUTLIER
    assert 0 < put.mean() < 0.6
    np.testing.assert_array_equal(marks[~put], label[~put])
    changed = (pasted != image).any(2)
    # A soft edge reaches two pixels (a 5x5 blur) beyond the mark.
    near = F.max_pool2d(torch.from_numpy(put)[None].float(), 5, 1, 2)[0].numpy() > 0
    assert not (changed & ~near).any()
    again, _ = paste_outlier(image, label, np.random.default_rng(seed))
    np.testing.assert_array_equal(pasted, again)


def test_without_outliers_it_is_the_plain_loss():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5), dtype=torch.uint8)
    labels[0, 0] = IGNORE
    weights = torch.tensor([0.5, 1.0, 2.0])
    expected = F.cross_entropy(logits, labels.long(), weights, ignore_index=IGNORE)
    assert segmentation_loss(logits, labels, weights).item() == pytest.approx(expected.item())


def test_the_uniform_distribution_is_what_an_outlier_is_asked_for():
    labels = torch.zeros(1, 1, 2, dtype=torch.uint8)
    labels[..., 1] = OUTLIER
    logits = torch.zeros(1, 4, 1, 2)
    logits[0, 0, 0, 0] = 50.0  # the known pixel is certain and right: its loss is nothing
    # Half of the pixels, each with log 4.
    lowest = segmentation_loss(logits, labels, torch.ones(4)).item()
    assert lowest == pytest.approx(0.5 * math.log(4))
    logits[0, 2, 0, 1] = 1.0
    assert segmentation_loss(logits, labels, torch.ones(4)).item() > lowest


def test_it_can_be_asked_for_in_training(blocks, tmp_path):
    words = "--width 0.0625 --crop 64x40 --batch 2 --steps 2 --outliers 1 --threads 1"
    where = ["--data", str(blocks), "--run", str(tmp_path / "run")]
    assert main(["train", "segnet", *where, *words.split()]) == 0
    assert read_header(tmp_path / "run" / "last")["provenance"]["options"]["outliers"] == 1
