"""The SegNet experiment on small random networks: all of it, resumed, and known figures."""

import json
from functools import partial

import numpy as np
import pytest

from penumbra.lab.experiments import segnet
from penumbra.lab.experiments.images import segmentation
from penumbra.lab.experiments.images.networks import OURS, load_network
from penumbra.lab.experiments.images.runtime import runtime
from penumbra.lab.experiments.images.sampling_comparison import MethodScores, VarianceDifferences
from penumbra.lab.experiments.images.segmentation import Segmentation
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.offline.metrics.segmentation import IGNORE


@pytest.fixture
def small(monkeypatch, small_bundle):
    """The experiment in seconds."""
    bundles = {place: small_bundle(place) for place in ("class", "encdec")}
    for name, value in (("BUNDLES", bundles), ("SAMPLES", 6), ("EVERY", 2), ("SHOWN", (0, 1)),
                        ("PIXELS", 50), ("FEW", (2, 3))):  # fmt: skip
        monkeypatch.setattr(segnet, name, value)
    monkeypatch.setattr(segnet, "runtime", partial(runtime, counts=(2, 6), rounds=1))
    monkeypatch.setattr(segnet, "softmax_error", partial(segnet.softmax_error, samples=100))
    return bundles


def test_measures_resumes_and_describes(small, small_data, tmp_path, monkeypatch):
    setting = ExperimentSetting(small_data, tmp_path / "segnet")
    result = segnet.measure(setting)
    assert json.loads(json.dumps(result)) == result
    assert result["all_frames"]["frames"] == 4
    for place in small:
        found = result[place]
        assert found["frames"] == 2
        assert set(found["accuracy"]) == {"deterministic", "mc", OURS}
        assert all(len(shares) == 10 for shares in found["misclassified"].values())
        # The mean of the tenths is the share of wrong labels: of 2 x 2,816 pixels each has a tenth.
        wrong = 1 - found["accuracy"][OURS]["global_accuracy"]
        assert np.mean(found["misclassified"][OURS]) == pytest.approx(wrong, abs=2e-3)
    text = segnet.table(result)
    assert "| paper: its own, ENCDEC | 233 | 86.1 | 76.4 | 54.1 |" in text
    assert "93.7" in text
    assert "| 2.39 |" not in text  # 50 samples were not timed
    assert len(segnet.draw(result).axes) == 4
    assert segnet.panel(setting, result).axes

    def refuse(*_, **__):
        raise AssertionError("sampled again")

    monkeypatch.setattr(segmentation, "monte_carlo", refuse)
    again = segnet.measure(setting)
    for figures in (result, again):
        del figures["runtime"]
    assert again == result
    with pytest.raises(AssertionError, match="sampled again"):
        segnet.measure(ExperimentSetting(small_data, tmp_path / "segnet", seed=1))


def test_sampled_maps_are_those_of_monte_carlo(small, small_data, tmp_path):
    network = load_network(small["encdec"])
    frame = segmentation.read(segmentation.frames(small_data / "camvid", 1)[0])
    x = network.input(frame.image)
    _, p = segmentation.monte_carlo(network.sampled, x, samples=6, seed=3)
    for _ in range(2):  # computed, then read
        setting = ExperimentSetting(small_data, tmp_path, seed=3)
        found, score_std = segmentation.sampled(setting, network, frame, 6)
        np.testing.assert_array_equal(found.labels, p.mean[0].argmax(0).numpy())
        # Half precision has 11 bits.
        np.testing.assert_allclose(found.class_std, p.std[0].numpy(), rtol=2**-11, atol=1e-7)
        assert (np.diff(score_std) >= 0).all()
    assert found.std.shape == frame.label.shape
    assert IGNORE in frame.label  # CamVid's void
    assert 11 not in frame.label


def segmented(std, labels=0):
    std = np.asarray(std, np.float32)
    return Segmentation(np.full(std.shape[1:], labels, np.uint8), std)


def test_differences_of_variance_and_of_standard_deviation():
    differences = VarianceDifferences()
    differences.add(segmented([[[1.0]], [[0.0]]]), segmented([[[2.0]], [[1.0]]]))
    differences.add(segmented([[[3.0]], [[0.0]]]), segmented([[[0.0]], [[3.0]]]))
    found = differences.figures()
    assert found["variance"] == pytest.approx((3 + 1 + 9 + 9) / (4 + 1 + 9))
    assert found["variance_ratio"] == pytest.approx((1 + 9) / (4 + 1 + 9))
    assert found["std"] == pytest.approx((1.0 + 0) / (1.5 + 1.5))
    assert found["std_ratio"] == pytest.approx((0.5 + 1.5) / (1.5 + 1.5))


def test_wrong_labels_by_tenths_of_all_frames_together():
    """A sure frame that is right, an unsure one that is wrong; the unknown does not count."""
    judged = MethodScores()
    judged.add(np.zeros((5, 4), np.uint8), segmented(np.full((2, 5, 4), 0.1)))
    truth = np.ones((5, 8), np.uint8)
    truth[:, 4:] = IGNORE
    judged.add(truth, segmented(np.full((2, 5, 8), 0.2)))
    assert judged.misclassified() == [0] * 5 + [1] * 5
    assert judged.confusion.summary()["global_accuracy"] == 0.5
