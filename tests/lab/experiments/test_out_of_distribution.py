"""The experiment on images outside the training distribution, in small."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from exported_networks import street

from penumbra.lab.experiments import out_of_distribution
from penumbra.lab.experiments.distribution_shift.corruptions import CORRUPTIONS
from penumbra.lab.experiments.distribution_shift.image_groups import LabelledImage
from penumbra.lab.experiments.distribution_shift.statistics import ERRORS, SHIFTED
from penumbra.lab.experiments.distribution_shift.uncertainty_maps import (
    MANY,
    OURS,
    SAMPLED,
    SampledNetwork,
)
from penumbra.lab.experiments.out_of_distribution import CLEAN, draw, measure, table, verdicts
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.offline.datasets.camvid_classes import CLASSES, VOID
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.export.walk import walk_of_bundle
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.network import normalise
from penumbra.offline.models.segnet import SegNet
from penumbra.verification.reference import References

HEIGHT, WIDTH = 48, 64
WITHHELD = ("pedestrian", "bicyclist")


def test_a_verdict_for_all_that_was_measured():
    good = {SHIFTED: {OURS: 0.71, SAMPLED: 0.715}, ERRORS: {OURS: 0.9, SAMPLED: 0.8}}
    assert verdicts({**good, "ratio": 1.4}) == {SHIFTED: True, ERRORS: True, "ratio": True}
    worse = {SHIFTED: {OURS: 0.70, SAMPLED: 0.715}, "ratio": 1.6}
    assert verdicts(worse) == {SHIFTED: False, "ratio": False}
    assert not verdicts({"ratio": 0.6})["ratio"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two labelled frames, three photographs, and networks with all classes and without some."""
    folder = tmp_path_factory.mktemp("shift")
    random = np.random.default_rng(0)
    for name in ("test", "testannot"):
        (folder / "data" / "camvid" / name).mkdir(parents=True)
    for number in range(2):
        image = street(HEIGHT, WIDTH, number)
        cv2.imwrite(str(folder / "data" / "camvid" / "test" / f"{number}.png"), image)
        labels = random.integers(0, VOID + 1, (6, 8)).astype(np.uint8)
        labels = cv2.resize(labels, (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)
        cv2.imwrite(str(folder / "data" / "camvid" / "testannot" / f"{number}.png"), labels)
    (folder / "data" / "ood_indoor").mkdir()
    for number in range(3):
        image = street(40, 90, 10 + number)
        cv2.imwrite(str(folder / "data" / "ood_indoor" / f"{number}.jpg"), image)
    torch.manual_seed(0)
    for name, classes in (("all", CLASSES), ("fewer", [c for c in CLASSES if c not in WITHHELD])):
        save_model(SegNet(classes, width=1 / 16, dropout="class", rate=0.3).eval(), folder / name)
        export_bundle(folder / name, folder / f"{name}-bundle", ExportOptions())
    return folder


@pytest.fixture
def small(place, monkeypatch, tmp_path):
    """The experiment with these networks, two frames and few samples."""
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(out_of_distribution, "BUNDLES", {"class": str(place / "all-bundle")})
    monkeypatch.setattr(out_of_distribution, "HELD_OUT", str(place / "fewer-bundle"))
    for name, value in (("FRAMES", 2), ("EVERY", 1), ("FEW", 8), ("MANY", 10)):
        monkeypatch.setattr(out_of_distribution, name, value)
    return ExperimentSetting(place / "data", tmp_path / "out", seed=1)


@pytest.mark.slow
def test_all_kinds_are_measured_described_and_drawn(small, place, tmp_path):
    result = measure(small)
    json.dumps(result)
    (found,) = result["networks"].values()
    assert list(found) == [CLEAN, *CORRUPTIONS, "indoor"] and result["absent"] == []
    assert set(found[CLEAN]) == {"std", "ratio", "ratios", "right", "errors"}
    assert set(found["indoor"]) == {"std", "ratio", "ratios", SHIFTED}
    assert set(result["withheld"]) == {"std", "ratio", "ratios", SHIFTED}
    text = table(result)
    assert text.count("\n| ") == 1 + 5 + 1  # the line below the head, five kinds, the withheld
    assert "withheld classes" in text and "OOD pixels" in text
    assert [axes.get_title() for axes in draw(result).axes] == [
        "OOD pixels detected", "wrong labels detected", "size of the uncertainty",
    ]  # fmt: skip
    # Samples are cached, so that a run can be resumed: 5 groups and the withheld, twice 2.
    files = list((tmp_path / "cache" / "references").iterdir())
    assert len(files) == (5 + 1) * 2 * 2
    times = {file: file.stat().st_mtime_ns for file in files}
    assert measure(small) == result
    assert times == {file: file.stat().st_mtime_ns for file in files}


@pytest.mark.slow
def test_missing_groups_are_left_out_and_named(small, place, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "camvid").symlink_to(place / "data" / "camvid")
    monkeypatch.setattr(out_of_distribution, "HELD_OUT", "segnet-that-is-nowhere")
    result = measure(ExperimentSetting(tmp_path / "data", tmp_path, seed=1))
    (found,) = result["networks"].values()
    assert "indoor" not in found and "withheld" not in result
    text = table(result)
    assert "no ood_indoor/ beside" in text and "segnet-that-is-nowhere is missing" in text
    draw(result)


@pytest.mark.slow
def test_maps_are_those_of_the_bundle_and_of_independent_samples(small, place):
    name = str(place / "fewer-bundle")
    image = street(HEIGHT, WIDTH, 5)
    labels = np.tile(np.arange(VOID + 1, dtype=np.uint8), (HEIGHT, WIDTH))[:, :WIDTH]
    network = SampledNetwork(name, few=8, many=10, seed=3)
    maps = network.maps(LabelledImage(image, labels))
    bundle = network.bundle
    model = load_model(bundle.weights_file)
    x = normalise(torch.from_numpy(image)[None], model.config["mean"], model.config["std"])
    with torch.inference_mode():
        _, expected = walk_of_bundle(bundle, model)(x)
    np.testing.assert_allclose(maps.std[OURS], expected.std[0].mean(0), rtol=1e-4)
    assert np.array_equal(maps.labels[OURS], expected.mean[0].argmax(0))
    bgr = np.ascontiguousarray(image[..., ::-1])  # as the bundle takes it
    assert bundle.input.channel_order == "bgr"
    few, many = References(bundle, 8, 6).of(bgr), References(bundle, 10, 7).of(bgr)
    assert np.array_equal(maps.std[SAMPLED], few.std)
    assert np.array_equal(maps.labels[SAMPLED], few.prediction)
    assert np.array_equal(maps.std[MANY], many.std)
    kept = [c for c in CLASSES if c not in WITHHELD]
    numbers = [kept.index(c) if c in kept else IGNORE for c in CLASSES] + [IGNORE]
    assert np.array_equal(maps.truth, np.array(numbers)[labels])
