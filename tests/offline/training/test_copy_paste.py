"""Pasting objects of rare classes."""

from __future__ import annotations

import numpy as np

from penumbra.offline.datasets.camvid import LabelledImages
from penumbra.offline.training.copy_paste import RareObjects
from penumbra.offline.training.segmentation import RandomViews

ROAD, POLE, CAR = 0, 1, 2
WEIGHTS = np.array([0.2, 5.0, 1.0])


def frames() -> LabelledImages:
    """An empty road, and a road with a pole (rare), a speck of one, and a car."""
    data = LabelledImages(("road", "pole", "car"))
    for number in range(2):
        label = np.full((60, 80), ROAD, np.uint8)
        image = np.full((60, 80, 3), 100, np.uint8)
        if number == 1:
            label[10:40, 20:24], label[50, 5] = POLE, POLE
            label[30:50, 40:70] = CAR
            image[label == POLE] = (250, 10, 10)
        data.images.append(image)
        data.labels.append(label)
        data.names.append(str(number))
    return data


def test_only_objects_of_rare_classes_and_of_some_size_are_found():
    (found,) = RareObjects(frames(), WEIGHTS).by_class
    assert found == [(1, POLE, 20, 10, 4, 30)]


def test_an_object_brings_its_pixels_and_its_label_and_keeps_its_height():
    data = frames()
    objects = RareObjects(data, WEIGHTS)
    lefts = set()
    for seed in range(20):
        image, label = data.images[0].copy(), data.labels[0].copy()
        inside, number = objects.paste(image, label, np.random.default_rng(seed))
        assert number == POLE and inside.sum() == 30 * 4
        np.testing.assert_array_equal(label == POLE, inside)
        rows, columns = np.nonzero(inside)
        assert abs(rows.min() - 10) <= 2
        lefts.add(columns.min())
        core = image[rows.min() + 2, columns.min() + 1].astype(int)
        assert core[0] > 180 and core[1] < 60  # the pole's red
        far = np.abs(np.arange(80) - columns.mean()) > 5
        np.testing.assert_array_equal(image[:, far], data.images[0][:, far])
    assert len(lefts) > 8


def test_an_object_is_cut_to_a_smaller_frame():
    objects = RareObjects(frames(), WEIGHTS)
    image, label = np.zeros((20, 3, 3), np.uint8), np.zeros((20, 3), np.uint8)
    inside, _ = objects.paste(image, label, np.random.default_rng(0))
    assert inside.shape == (20, 3) and (label[inside] == POLE).all() and inside.any()


def test_without_rare_objects_nothing_is_pasted():
    data = frames()
    objects = RareObjects(data, np.array([1.0, 1.0, 1.0]))
    image, label = data.images[0].copy(), data.labels[0].copy()
    assert objects.paste(image, label, np.random.default_rng(0)) is None
    np.testing.assert_array_equal(label, data.labels[0])


def test_views_have_more_of_the_rare_class_and_the_frames_stay_as_they_are():
    data = frames()
    before = [label.copy() for label in data.labels]
    soft = [np.zeros((30, 40, 3), np.uint8) for _ in data.labels]
    rare = RareObjects(data, WEIGHTS)
    plain = RandomViews(data, (48, 64), (1.0, 1.0), seed=0)
    pasted = RandomViews(data, (48, 64), (1.0, 1.0), seed=0, paste=2, rare=rare, soft=soft)
    keys = [(epoch, 0) for epoch in range(10)]
    assert sum((plain[key][1] == POLE).sum() for key in keys) == 0
    views = [pasted[key] for key in keys]
    assert sum((marks == POLE).sum() for _, marks, _ in views) > 500
    for _, marks, target in views:  # the teacher is certain of what was pasted
        poles = marks == POLE
        assert not poles.any() or (target[ROAD][poles] > 100).mean() > 0.9
    assert all(np.array_equal(one, two) for one, two in zip(before, data.labels, strict=True))
    assert all((part == 0).all() for part in soft)
    again = pasted[keys[3]]
    assert all(np.array_equal(one, two) for one, two in zip(again, views[3], strict=True))
