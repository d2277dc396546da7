"""Statistics of groups of images, against their definitions."""

import numpy as np
import pytest

from penumbra.lab.experiments.distribution_shift.image_groups import LabelledImage
from penumbra.lab.experiments.distribution_shift.statistics import (
    SHIFTED,
    group_statistics,
    withheld_statistics,
)
from penumbra.lab.experiments.distribution_shift.uncertainty_maps import (
    MANY,
    OURS,
    SAMPLED,
    UncertaintyMaps,
)
from penumbra.offline.datasets.camvid_classes import CLASSES, VOID
from penumbra.offline.metrics.segmentation import IGNORE


def auroc(scores, positive):
    """P(positive > negative) + P(equal) / 2 over all pairs."""
    high, low = scores[positive][:, None], scores[~positive][None]
    return float(np.mean((high > low) + 0.5 * (high == low)))


def drawn(random, brighter=0.0, labelled=True):
    """Maps of an image of 12 x 10 pixels with many equal values."""
    shape = 12, 10
    stds = {name: np.round(random.random(shape) + brighter, 1) + 0.1
            for name in (OURS, SAMPLED, MANY)}  # fmt: skip
    truth = random.integers(0, 3, shape).astype(np.uint8)
    truth[random.random(shape) < 0.1] = IGNORE
    labels = {name: random.integers(0, 3, shape).astype(np.uint8) for name in (OURS, SAMPLED)}
    return UncertaintyMaps(labels, stds, truth if labelled else None)


def test_statistics_are_of_all_images_of_a_group():
    random = np.random.default_rng(2)
    ordinary, shifted = [drawn(random) for _ in range(3)], [drawn(random, 0.3) for _ in range(2)]
    found = group_statistics(shifted, ordinary)
    for method in (OURS, SAMPLED):
        maps = [np.stack([m.std[method] for m in part]).ravel() for part in (shifted, ordinary)]
        positive = np.arange(5 * 120) < 2 * 120
        assert found[SHIFTED][method] == pytest.approx(auroc(np.concatenate(maps), positive))
        known = [m.truth != IGNORE for m in shifted]
        wrong = [(m.labels[method] != m.truth)[k] for m, k in zip(shifted, known, strict=True)]
        scores = [m.std[method][k] for m, k in zip(shifted, known, strict=True)]
        assert found["errors"][method] == pytest.approx(
            auroc(np.concatenate(scores), np.concatenate(wrong))
        )
        assert found["right"][method] == pytest.approx(1 - np.concatenate(wrong).mean())
    ours, many = (np.stack([m.std[name] for m in shifted]) for name in (OURS, MANY))
    assert found["std"] == pytest.approx(many.mean())
    assert found["ratio"] == pytest.approx(ours.mean() / many.mean())
    assert found["ratios"] == pytest.approx(list(ours.mean((1, 2)) / many.mean((1, 2))))


def test_without_labels_no_errors_and_among_themselves_no_detection():
    random = np.random.default_rng(3)
    assert SHIFTED not in group_statistics([drawn(random)], None)
    assert not {"errors", "right"} & set(
        group_statistics([drawn(random, labelled=False)], [drawn(random)])
    )


def test_withheld_classes_stand_against_known_ones_and_void_against_nothing():
    labels = np.array([[0, 1, CLASSES.index("pedestrian"), VOID]], np.uint8)
    truth = np.array([[0, 1, IGNORE, IGNORE]], np.uint8)
    std = {OURS: np.array([[0.1, 0.4, 0.3, 9.0]]), SAMPLED: np.array([[0.1, 0.2, 0.3, 0.0]])}
    maps = UncertaintyMaps({}, std | {MANY: np.array([[0.1, 0.4, 0.2, 9.0]])}, truth)
    empty = UncertaintyMaps(
        {}, {name: value[:, :2] for name, value in maps.std.items()}, truth[:, :2]
    )
    image = np.zeros((1, 4, 3), np.uint8)
    found = withheld_statistics(
        [LabelledImage(image, labels), LabelledImage(image[:, :2], labels[:, :2])], [maps, empty]
    )
    assert found[SHIFTED] == {OURS: 0.5, SAMPLED: 1.0}
    assert found["ratios"] == pytest.approx([1.5])
    assert found["std"] == pytest.approx(0.2)
