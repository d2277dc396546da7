"""The depth experiment on a small random network, and figures from known errors."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from penumbra.lab.experiments import monodepth
from penumbra.lab.experiments.images import depth
from penumbra.lab.experiments.images.networks import OURS, PAPER, load_network
from penumbra.lab.experiments.images.runtime import runtime
from penumbra.lab.experiments.reporting.setting import ExperimentSetting
from penumbra.propagation.montecarlo import monte_carlo


@pytest.fixture
def small(monkeypatch, small_bundle):
    bundle = small_bundle("monodepth")
    for name, value in (("BUNDLES", {"network": bundle}), ("SAMPLES", 6), ("COUNTS", (2, 6, 20)),
                        ("EVERY", 2)):  # fmt: skip
        monkeypatch.setattr(monodepth, name, value)
    monkeypatch.setattr(monodepth, "runtime", partial(runtime, counts=(2, 6), rounds=1))
    return bundle


def test_measures_resumes_and_describes(small, small_data, tmp_path, monkeypatch):
    setting = ExperimentSetting(small_data, tmp_path / "monodepth")
    result = monodepth.measure(setting)
    assert json.loads(json.dumps(result)) == result
    assert result["frames"] == 2
    differences = result["difference"][OURS]
    assert differences[0] > differences[1] > differences[2]  # the more samples, the nearer to ours
    for found in result["by_error"].values():
        assert (np.diff(found["error"]) >= 0).all()
        assert len(found["std"]) == monodepth.BINS
    assert "| deterministic |" in monodepth.table(result)
    assert len(monodepth.draw(result).axes) == 4  # one of them twice
    assert monodepth.panel(setting, result).axes

    def refuse(*_, **__):
        raise AssertionError("sampled again")

    monkeypatch.setattr(depth, "monte_carlo", refuse)
    again = monodepth.measure(setting)
    for figures in (result, again):
        del figures["runtime"]
    assert again == result


def test_propagated_disparity_is_what_sampling_approaches(small, small_data):
    """One dropout before one convolution, then a sigmoid: moments lose next to nothing."""
    network = load_network(small)
    frame = depth.read(depth.frames(small_data / "kitti/raw", 1)[0])
    reference = monte_carlo(network.sampled, network.input(frame.image), samples=800)
    off = {
        walk: float((depth.propagated(network, walk, frame).variance - reference.variance)
                    .abs().mean() / reference.variance.mean())
        for walk in (OURS, PAPER)
    }  # fmt: skip
    # Chance makes √(4 / 800 π) = 4.0 % of it; a sum over few channels is not quite Gaussian.
    assert off[OURS] < 0.09
    # First order: this random network reaches far into the bends of its sigmoid.
    assert off[PAPER] > 0.5


def frame_of(truth):
    return depth.KittiFrame("toy", np.zeros((*truth.shape, 3), np.uint8), truth, None)


@pytest.fixture
def toy():
    """Depths that are off by known amounts, and a frame whose crop has many pixels."""
    random = np.random.default_rng(0)
    truth = random.uniform(5, 40, (60, 80)).astype(np.float32)
    found = (truth + random.normal(0, 1, truth.shape) * random.uniform(0, 20, truth.shape)).clip(1)
    return frame_of(truth), found.astype(np.float32)


def test_sparsification_is_perfect_where_uncertainty_is_the_error(toy):
    frame, found = toy
    error = np.abs(found.clip(None, 80) - frame.truth)
    by_metres = depth.sparsifications(frame, depth.DepthEstimate(found, error))
    assert by_metres["rmse"].ause == pytest.approx(0, abs=1e-6)
    assert by_metres["rmse"].aurg > 1
    by_share = depth.sparsifications(frame, depth.DepthEstimate(found, error / frame.truth * found))
    assert by_share["abs_rel"].ause == pytest.approx(0, abs=1e-6)
    assert by_share["a1"].aurg > 0.1
    wrong_way = depth.sparsifications(frame, depth.DepthEstimate(found, 1 / (1 + error)))
    assert wrong_way["rmse"].aurg < 0


def test_rmse_of_the_remaining_pixels(toy):
    frame, found = toy
    std = np.random.default_rng(1).random(found.shape).astype(np.float32)
    curve = depth.sparsifications(frame, depth.DepthEstimate(found, std))["rmse"].curve
    pixels = depth.evaluated_pixels(frame)
    error, order = depth.errors(frame, depth.DepthEstimate(found, std)), np.argsort(-std[pixels])
    assert 0 < pixels.sum() < pixels.size
    for step in (0, 10, 49):
        rest = order[step * len(order) // 50 :]
        expected = np.sqrt(np.mean(error[rest].astype(float) ** 2))
        assert curve[step] == pytest.approx(expected, rel=1e-6)


def test_by_error_sorts_pixels_of_all_frames():
    frames = [(np.arange(10.0), np.arange(10.0) * 2), (np.arange(10.0) + 10, np.full(10, 7.0))]
    found = monodepth._by_error(frames)
    assert found["error"] == [0.5 + 2 * n for n in range(10)]
    assert found["std"] == [1, 5, 9, 13, 17, *[7] * 5]


def test_depth_estimate_is_the_node_s(small, small_data):
    network = load_network(small)
    frame = depth.read(depth.frames(small_data / "kitti/raw", 1)[0])
    disparity = depth.deterministic(network, frame)
    constant = type(disparity)(torch.full_like(disparity.mean, 0.02),
                               torch.full_like(disparity.mean, 1e-6))  # fmt: skip
    found = depth.depth_estimate(network, frame, constant)
    scale = network.bundle.depth
    z = scale.focal_per_width * scale.baseline_m / 0.02
    np.testing.assert_allclose(found.depth, z, rtol=1e-5)
    np.testing.assert_allclose(found.std, z * 1e-3 / 0.02, rtol=1e-5)
