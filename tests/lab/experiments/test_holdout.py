"""The hold-out experiment on small random networks, and its table for a known result."""

import json

import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.lab.experiments import holdout
from penumbra.lab.experiments.images.networks import load_network
from penumbra.lab.experiments.images.segmentation import frames, propagated, read, sampled
from penumbra.lab.experiments.reporting.reproduction import reproduce
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.metrics.detection import Detection

WITHHELD = ("pedestrian", "bicyclist")


@pytest.fixture
def small(monkeypatch, small_bundle):
    kept = [name for name in CLASSES if name not in WITHHELD]
    bundles = {"without": small_bundle("encdec", kept), "all": small_bundle("encdec")}
    for name, value in (("BUNDLES", bundles), ("SAMPLES", 4), ("EVERY", 1), ("SAMPLED", 2),
                        ("SHOWN", 1)):  # fmt: skip
        monkeypatch.setattr(holdout, name, value)
    return bundles


def test_measures_and_describes(small, small_data, tmp_path):
    setting = ExperimentSetting(small_data, tmp_path / "holdout")
    result = holdout.measure(setting)
    assert json.loads(json.dumps(result)) == result
    assert holdout.measure(setting) == result
    assert (result["frames"], result["sampled_frames"]) == (4, 2)
    assert result["withheld"] == list(WITHHELD)
    # Every frame has a block of 256 pixels of each class, and one that is unknown.
    assert set(result["pixels"].values()) == {4 * 256}
    assert result["share"] == pytest.approx(2 / 11)
    assert set(result["detection"]) == set(holdout.SCORES)
    text = holdout.table(result)
    assert all(f"| **{name}** |" in text for name in WITHHELD)
    assert len(holdout.draw(result).axes) == 2
    assert holdout.panel(setting, result).axes


def test_figures_are_those_of_their_definition(small, small_data, tmp_path):
    setting = ExperimentSetting(small_data, tmp_path)
    result = holdout.measure(setting)
    network, knowing = load_network(small["without"]), load_network(small["all"])
    found = [read(path) for path in frames(small_data / "camvid", 1)]
    maps = [propagated(knowing, "ours", frame)[0].std for frame in found]
    own = [propagated(knowing, "ours", frame)[0].labels for frame in found]
    for number, name in enumerate(CLASSES):
        there = [std[frame.label == number] for frame, std in zip(found, maps, strict=True)]
        # Sums of float32 maps in double precision.
        assert result["uncertainty"]["all"][name] == pytest.approx(
            np.concatenate(there).mean(), rel=1e-5
        )
        right = [std[(frame.label == number) & (labels == number)]
                 for frame, std, labels in zip(found, maps, own, strict=True)]  # fmt: skip
        assert result["right"][name] == sum(map(len, right))
        if result["right"][name]:
            assert result["uncertainty_where_right"]["all"][name] == pytest.approx(
                np.concatenate(right).mean(), rel=1e-5
            )
    assert any(result["right"].values())
    drawn = [sampled(setting, knowing, frame, 4)[0].std[frame.label == 0] for frame in found[::2]]
    assert result["uncertainty_by_sampling"]["all"][CLASSES[0]] == pytest.approx(
        np.concatenate(drawn).mean(), rel=1e-5
    )
    chosen = found[::2]
    labels = np.stack([frame.label for frame in chosen])
    known = labels != 255
    for name, score in (
        ("mc", lambda frame: sampled(setting, network, frame, 4)[0].std),
        ("max_logit", lambda frame: -propagated(network, "ours", frame)[1]["max_logit"]),
        ("max_softmax", lambda frame: -propagated(network, "ours", frame)[1]["confidence"]),
    ):
        scores = np.stack([score(frame) for frame in chosen])
        expected = Detection.of(scores[known], labels[known] >= 9)
        # 1 - p makes ties of the surest pixels, in float32, that -p does not have.
        assert result["detection"][name]["auroc"] == pytest.approx(expected.auroc, abs=1e-4)


def test_withheld_classes_have_the_largest_increase_or_not():
    every = dict.fromkeys(CLASSES, 0.1) | {"sky": None}
    without = dict.fromkeys(CLASSES, 0.11) | {"bicyclist": 0.3, "pedestrian": 0.2, "sky": None}
    figures = {"auroc": 0.8, "average_precision": 0.1, "fpr95": 0.5}
    result = {
        "samples": 50, "frames": 47, "sampled_frames": 16, "share": 0.01,
        "withheld": list(WITHHELD), "variance": {"without": "diagonal", "all": "calibrated"},
        "uncertainty": {"all": every, "without": without},
        "uncertainty_where_right": {"all": every, "without": without},
        "uncertainty_by_sampling": {"all": every, "without": without},
        "pixels": dict.fromkeys(CLASSES, 100), "right": dict.fromkeys(CLASSES, 40),
        "detection": dict.fromkeys(holdout.SCORES, figures),
    }  # fmt: skip
    order = holdout.increases(result)
    assert list(order)[:2] == ["bicyclist", "pedestrian"]
    assert order["bicyclist"] == pytest.approx(2.0)
    assert "As in the paper, the 2 classes" in holdout.table(result)
    assert "the first table is meaningless" in holdout.table(result)
    result["variance"]["without"] = "calibrated"
    assert "both networks have gains" in holdout.table(result)
    without["fence"] = 0.25
    assert "here, the 2 classes with the largest increase are bicyclist and fence" in (
        holdout.table(result)
    )


def test_a_missing_bundle_is_reported_first(small, small_data, tmp_path, monkeypatch):
    monkeypatch.setitem(holdout.BUNDLES, "without", "no-such-bundle")
    with pytest.raises(PenumbraError, match="holdout needs the bundle no-such-bundle: train"):
        reproduce(["holdout"], small_data, tmp_path)


def test_a_bundle_with_all_classes_is_refused(small, small_data, tmp_path, monkeypatch):
    monkeypatch.setitem(holdout.BUNDLES, "without", small["all"])
    with pytest.raises(PenumbraError, match="has all classes of CamVid"):
        holdout.measure(ExperimentSetting(small_data, tmp_path))
