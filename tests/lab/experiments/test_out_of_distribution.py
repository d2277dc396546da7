"""Pictures that are changed as described, figures by their definitions, and the whole in small."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from exported_networks import street

from penumbra.lab.experiments import out_of_distribution
from penumbra.lab.experiments.distribution_shift.corruptions import CHANGES, SIGMA, dark, fog, noise
from penumbra.lab.experiments.distribution_shift.figures import figures, withheld
from penumbra.lab.experiments.distribution_shift.maps import (
    MANY,
    OURS,
    SAMPLED,
    Maps,
    Picture,
    SampledNetwork,
)
from penumbra.lab.experiments.out_of_distribution import CLEAN, draw, holds, measure, table
from penumbra.lab.experiments.reporting import Setting
from penumbra.offline.datasets.camvid import CLASSES
from penumbra.offline.datasets.camvid_classes import VOID
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.export.walk import walk_of_bundle
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.segnet import SegNet, normalise
from penumbra.verification.reference import References

HEIGHT, WIDTH = 48, 64
WITHHELD = ("pedestrian", "bicyclist")


# --- changes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_of_the_same_form_and_the_same_each_time(name):
    picture = street(HEIGHT, WIDTH)
    before = picture.copy()
    once, again = (CHANGES[name](picture, np.random.default_rng(1)) for _ in range(2))
    assert once.dtype == np.uint8 and once.shape == picture.shape
    assert np.array_equal(once, again) and np.array_equal(picture, before)
    assert not np.array_equal(once, picture)


def test_fog_grows_towards_the_horizon():
    random = np.random.default_rng(0)
    black, white = (fog(np.full((100, 2, 3), v, np.uint8), random) for v in (0, 255))
    contrast = (white.astype(float) - black)[:, 0, 0] / 255
    # exp(-0.15) in the lowest row, exp(-0.15 x 12) at and above the horizon; rounded to 1/255.
    assert contrast[-1] == pytest.approx(np.exp(-0.15), abs=0.005)
    np.testing.assert_allclose(contrast[:46], np.exp(-1.8), atol=0.005)
    assert np.all(np.diff(contrast) >= -0.005)
    assert black[0, 0, 0] == pytest.approx(215 * (1 - np.exp(-1.8)), abs=1)


def test_dark_leaves_a_share_of_the_light():
    found = dark(np.full((2, 2, 3), 200, np.uint8), np.random.default_rng(0))
    # By the gamma: the light of 200/255 is 0.586, of which 8 % are 0.0469, which is shown as 63.4.
    assert np.all(found == 63)


def test_noise_is_as_strong_as_it_says():
    grey = np.full((200, 200, 3), 128, np.uint8)
    found = noise(grey, np.random.default_rng(0)).astype(float) - 128
    # 120,000 draws: the standard deviation is known to 0.2 %, its mean to 0.04.
    assert found.std() == pytest.approx(SIGMA, rel=0.01)
    assert abs(found.mean()) < 0.2


# --- figures --------------------------------------------------------------------------------------


def auroc(scores, positive):
    """P(positive > negative) + P(equal) / 2 over all pairs."""
    high, low = scores[positive][:, None], scores[~positive][None]
    return float(np.mean((high > low) + 0.5 * (high == low)))


def drawn(random, brighter=0.0, labelled=True):
    """Maps of a picture of 12 x 10 pixels with many equal values."""
    shape = 12, 10
    stds = {name: np.round(random.random(shape) + brighter, 1) + 0.1
            for name in (OURS, SAMPLED, MANY)}  # fmt: skip
    truth = random.integers(0, 3, shape).astype(np.uint8)
    truth[random.random(shape) < 0.1] = IGNORE
    labels = {name: random.integers(0, 3, shape).astype(np.uint8) for name in (OURS, SAMPLED)}
    return Maps(labels, stds, truth if labelled else None)


def test_figures_are_of_all_pictures_of_a_kind():
    random = np.random.default_rng(2)
    ordinary, strange = [drawn(random) for _ in range(3)], [drawn(random, 0.3) for _ in range(2)]
    found = figures(strange, ordinary)
    for method in (OURS, SAMPLED):
        maps = [np.stack([m.std[method] for m in part]).ravel() for part in (strange, ordinary)]
        positive = np.arange(5 * 120) < 2 * 120
        assert found["strange"][method] == pytest.approx(auroc(np.concatenate(maps), positive))
        known = [m.truth != IGNORE for m in strange]
        wrong = [(m.labels[method] != m.truth)[k] for m, k in zip(strange, known, strict=True)]
        scores = [m.std[method][k] for m, k in zip(strange, known, strict=True)]
        assert found["errors"][method] == pytest.approx(
            auroc(np.concatenate(scores), np.concatenate(wrong))
        )
        assert found["right"][method] == pytest.approx(1 - np.concatenate(wrong).mean())
    ours, many = (np.stack([m.std[name] for m in strange]) for name in (OURS, MANY))
    assert found["std"] == pytest.approx(many.mean())
    assert found["ratio"] == pytest.approx(ours.mean() / many.mean())
    assert found["ratios"] == pytest.approx(list(ours.mean((1, 2)) / many.mean((1, 2))))


def test_without_labels_no_errors_and_among_themselves_nothing_strange():
    random = np.random.default_rng(3)
    assert "strange" not in figures([drawn(random)], None)
    assert not {"errors", "right"} & set(figures([drawn(random, labelled=False)], [drawn(random)]))


def test_withheld_classes_stand_against_known_ones_and_void_against_nothing():
    labels = np.array([[0, 1, CLASSES.index("pedestrian"), VOID]], np.uint8)
    truth = np.array([[0, 1, IGNORE, IGNORE]], np.uint8)
    std = {OURS: np.array([[0.1, 0.4, 0.3, 9.0]]), SAMPLED: np.array([[0.1, 0.2, 0.3, 0.0]])}
    maps = Maps({}, std | {MANY: np.array([[0.1, 0.4, 0.2, 9.0]])}, truth)
    empty = Maps({}, {name: value[:, :2] for name, value in maps.std.items()}, truth[:, :2])
    image = np.zeros((1, 4, 3), np.uint8)
    found = withheld([Picture(image, labels), Picture(image[:, :2], labels[:, :2])], [maps, empty])
    assert found["strange"] == {OURS: 0.5, SAMPLED: 1.0}
    assert found["ratios"] == pytest.approx([1.5])
    assert found["std"] == pytest.approx(0.2)


def test_a_verdict_for_all_that_was_measured():
    good = {"strange": {OURS: 0.71, SAMPLED: 0.715}, "errors": {OURS: 0.9, SAMPLED: 0.8}}
    assert holds({**good, "ratio": 1.4}) == {"strange": True, "errors": True, "ratio": True}
    worse = {"strange": {OURS: 0.70, SAMPLED: 0.715}, "ratio": 1.6}
    assert holds(worse) == {"strange": False, "ratio": False}
    assert not holds({"ratio": 0.6})["ratio"]


# --- the whole, in small --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two labelled frames, three photographs, and networks with all classes and without some."""
    folder = tmp_path_factory.mktemp("strange")
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
        picture = street(40, 90, 10 + number)
        cv2.imwrite(str(folder / "data" / "ood_indoor" / f"{number}.jpg"), picture)
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
    return Setting(place / "data", tmp_path / "out", seed=1)


@pytest.mark.slow
def test_all_kinds_are_measured_described_and_drawn(small, place, tmp_path):
    result = measure(small)
    json.dumps(result)
    (found,) = result["networks"].values()
    assert list(found) == [CLEAN, *CHANGES, "indoor"] and result["absent"] == []
    assert set(found[CLEAN]) == {"std", "ratio", "ratios", "right", "errors"}
    assert set(found["indoor"]) == {"std", "ratio", "ratios", "strange"}
    assert set(result["withheld"]) == {"std", "ratio", "ratios", "strange"}
    text = table(result)
    assert text.count("\n| ") == 1 + 5 + 1  # the line below the head, five kinds, the withheld
    assert "withheld classes" in text and "strange pixels" in text
    assert [axes.get_title() for axes in draw(result).axes] == [
        "strange pixels found", "wrong labels found", "size of the uncertainty",
    ]  # fmt: skip
    # What was sampled is kept, so that going on costs nothing: 5 kinds and the withheld, twice 2.
    files = list((tmp_path / "cache" / "references").iterdir())
    assert len(files) == (5 + 1) * 2 * 2
    times = {file: file.stat().st_mtime_ns for file in files}
    assert measure(small) == result
    assert times == {file: file.stat().st_mtime_ns for file in files}


@pytest.mark.slow
def test_what_is_not_there_is_left_out_and_said(small, place, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "camvid").symlink_to(place / "data" / "camvid")
    monkeypatch.setattr(out_of_distribution, "HELD_OUT", "segnet-that-is-nowhere")
    result = measure(Setting(tmp_path / "data", tmp_path, seed=1))
    (found,) = result["networks"].values()
    assert "indoor" not in found and "withheld" not in result
    text = table(result)
    assert "there is no ood_indoor/" in text and "segnet-that-is-nowhere is not there" in text
    draw(result)


@pytest.mark.slow
def test_maps_are_those_of_the_bundle_and_of_independent_samples(small, place):
    name = str(place / "fewer-bundle")
    image = street(HEIGHT, WIDTH, 5)
    labels = np.tile(np.arange(VOID + 1, dtype=np.uint8), (HEIGHT, WIDTH))[:, :WIDTH]
    network = SampledNetwork(name, few=8, many=10, seed=3)
    maps = network.of(Picture(image, labels))
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
