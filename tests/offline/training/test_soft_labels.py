"""A teacher's soft labels: reading, following the view, their loss."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.augmentation import random_warp, warped
from penumbra.offline.datasets.camvid import load_camvid
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.models import read_header
from penumbra.offline.training.outliers import OUTLIER
from penumbra.offline.training.soft_labels import (
    distillation_loss,
    load_soft_labels,
    set_certain,
    warped_soft_labels,
)

CERTAIN = 255


def certain(label: np.ndarray, classes: int = 11) -> np.ndarray:
    """Soft labels that agree with `label`; without a class all are equally probable."""
    soft = np.where(np.arange(classes) == label[..., None], 0, CERTAIN)
    soft[label >= classes] = 0
    return soft.astype(np.uint8)


def write_soft_labels(data: Path, folder: Path, every: int = 1) -> Path:
    folder.mkdir(parents=True)
    frames = load_camvid(data, "train")
    for name, label in zip(frames.names, frames.labels, strict=True):
        np.save(folder / f"{name}.npy", certain(label)[::every, ::every])
    return folder


@pytest.mark.parametrize("ratio", [1, 2])
def test_soft_labels_follow_the_view(ratio):
    random = np.random.default_rng(0)
    label = np.kron(random.integers(0, 11, (6, 8)), np.ones((16, 16))).astype(np.uint8)
    soft = certain(label)[::ratio, ::ratio]
    image = np.repeat(label[..., None], 3, axis=2)
    for _ in range(10):
        warp = random_warp(image.shape, (48, 64), (0.6, 1.5), random)
        _, marks = warped(image, label, warp, (48, 64))
        view = warped_soft_labels(soft, image.shape, warp, (48, 64))
        assert view.shape == (11, 48, 64)
        inside = marks != IGNORE
        # Different at borders of blocks only, where soft labels are interpolated.
        assert (view.argmin(0) == marks)[inside].mean() > 0.95


def test_an_object_is_certain_where_it_was_pasted():
    soft = np.full((4, 6, 11), 100, np.uint8)
    inside = np.zeros((8, 12), bool)
    inside[2:4, 4:8] = True
    set_certain(soft, inside, 9)
    expected = np.full((4, 6, 11), 100)
    expected[1, 2:4] = CERTAIN
    expected[1, 2:4, 9] = 0
    np.testing.assert_array_equal(soft, expected)


def test_the_loss_of_a_case_computed_by_hand():
    # Two classes, teacher 1 : e⁻², network 1 : 1; at temperature 2 the teacher has 1 : e⁻¹.
    soft = torch.tensor([0, 32], dtype=torch.uint8).view(1, 2, 1, 1)
    labels = torch.zeros(1, 1, 1, dtype=torch.uint8)
    p = 1 / (1 + math.exp(-1))
    expected = 4 * (p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5))
    loss = distillation_loss(torch.zeros(1, 2, 1, 1), labels, soft, torch.ones(2), 2.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    agreeing = torch.tensor([5.0, 3.0]).view(1, 2, 1, 1)
    assert distillation_loss(agreeing, labels, soft, torch.ones(2), 2.0).item() == pytest.approx(
        0, abs=1e-6
    )


def test_pixels_count_by_the_weight_of_their_class_and_not_without_one():
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 1, 4)
    soft = torch.randint(0, 60, (1, 3, 1, 4), dtype=torch.uint8)
    weights = torch.tensor([1.0, 5.0, 2.0])

    def alone(place: int, number: int) -> float:
        label = torch.full((1, 1, 4), IGNORE, dtype=torch.uint8)
        label[..., place] = number
        return distillation_loss(logits, label, soft, weights, 2.0).item()

    labels = torch.tensor([[[1, 2, IGNORE, OUTLIER]]], dtype=torch.uint8)
    expected = (5 * alone(0, 1) + 2 * alone(1, 2)) / 7
    both = distillation_loss(logits, labels, soft, weights, 2.0).item()
    assert both == pytest.approx(expected, rel=1e-5)
    nothing = torch.full((1, 1, 4), IGNORE, dtype=torch.uint8)
    assert distillation_loss(logits, nothing, soft, weights, 2.0).item() == 0.0


def test_withheld_classes_are_left_out(blocks, tmp_path):
    folder = write_soft_labels(blocks, tmp_path / "soft")
    data = load_camvid(blocks, "train", ["pole", "car"])
    for soft, label in zip(load_soft_labels(folder, data), data.labels, strict=True):
        assert soft.shape == (*label.shape, 9)
        known = label != IGNORE
        np.testing.assert_array_equal(soft.argmin(2)[known], label[known])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (np.zeros((4, 4, 11), np.float32), "must be uint8"),
        (np.zeros((4, 4, 12), np.uint8), "must be uint8"),
        (np.zeros((7, 5, 11), np.uint8), "does not divide"),
    ],
)
def test_a_wrong_file_is_named(blocks, tmp_path, content, message):
    folder = write_soft_labels(blocks, tmp_path / "soft")
    (folder / "train2.npy").unlink()
    if content is not None:
        np.save(folder / "train2.npy", content)
    with pytest.raises(PenumbraError, match=rf"train2\.npy.*{message}"):
        load_soft_labels(folder, load_camvid(blocks, "train"))


def test_the_command_trains_with_a_teacher(blocks, tmp_path):
    folder = write_soft_labels(blocks, tmp_path / "soft", every=2)
    words = "--width 0.0625 --crop 64x32 --batch 2 --steps 2 --threads 1 --optimizer muon --paste 1"
    run = ["train", "segnet", "--data", str(blocks), "--teacher", str(folder), *words.split()]
    weights = []
    for share in ("0.5", "0"):
        place = tmp_path / f"run{share}"
        assert main([*run, "--run", str(place), "--teacher-weight", share]) == 0
        header = read_header(place / "last")
        assert header.provenance["options"]["teacher"] == "soft"  # a name, no path
        weights.append((place / "last" / "weights.safetensors").read_bytes())
    assert weights[0] != weights[1]
