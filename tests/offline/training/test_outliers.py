"""Pasted outliers, and their use in training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from penumbra.cli.main import main
from penumbra.offline.models import read_header
from penumbra.offline.training.outliers import OUTLIER, paste_outlier


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_image_and_label_change_only_in_the_pasted_shape(seed):
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


def test_training_with_outliers(blocks, tmp_path):
    words = "--width 0.0625 --crop 64x40 --batch 2 --steps 2 --outliers 1 --threads 1"
    where = ["--data", str(blocks), "--run", str(tmp_path / "run")]
    assert main(["train", "segnet", *where, *words.split()]) == 0
    assert read_header(tmp_path / "run" / "last").provenance["options"]["outliers"] == 1
