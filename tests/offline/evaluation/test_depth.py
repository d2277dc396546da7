"""Evaluation of depth networks, and the exported bundle against it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from penumbra.bundle import DepthSpec
from penumbra.cli.main import main
from penumbra.offline.datasets.kitti import find_measured, read_depth
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.evaluation.depth import depth_errors_of, depth_predictor
from penumbra.offline.export import ExportOptions, export_bundle
from penumbra.offline.metrics.coverage import Coverage
from penumbra.offline.metrics.depth import judged_pixels
from penumbra.offline.models import save_model
from penumbra.offline.models.monodepth import Monodepth
from penumbra.offline.models.segnet import SegNet
from penumbra.offline.training.depth import disparity_of
from penumbra.vehicle.geometry import depth_of
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig

SCALE = DepthSpec(baseline_m=0.54, focal_per_width=721.5 / 1242, max_depth_m=80.0)


@pytest.mark.slow
def test_evaluation_of_all_three_predictions_and_the_baseline(street_pairs, tmp_path, capsys):
    torch.manual_seed(0)
    checkpoint = str(save_model(Monodepth(width=1 / 32, size=(128, 384)), tmp_path))
    common = ["evaluate", "monodepth", checkpoint, "--data", str(street_pairs), "--json"]
    found = {}
    for method in ("deterministic", "monte-carlo", "propagated"):
        words = [*common, "--method", method, "--limit", "2", "--samples", "20"]
        assert main(words) == 0
        found[method] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert found[method]["frames"] == 2 and found[method]["method"] == method
    # An untrained network has little variance, so the three means are close, and not the same.
    figures = [found[method]["abs_rel"] for method in found]
    assert len(set(figures)) == 3
    np.testing.assert_allclose(figures, figures[0], rtol=0.05)
    assert "coverage" not in found["deterministic"]
    assert found["propagated"]["gains"] is False
    covered = [
        [row["observed"] for row in found[method]["coverage"]]
        for method in ("monte-carlo", "propagated")
    ]
    # Errors of an untrained network are many times its σ, so few are within, by either's.
    assert all(0 <= low <= high < 0.5 for low, *_, high in covered)
    np.testing.assert_allclose(*covered, atol=0.05)
    assert main([*common, "--limit", "3", "--baseline", str(street_pairs)]) == 0
    result = json.loads(capsys.readouterr().out)
    baseline = result["baseline"]
    assert baseline["pairs"] == 10 and 0 < baseline["abs_rel"] < 1
    assert result["better_by"] == pytest.approx(1 - result["abs_rel"] / baseline["abs_rel"])
    assert main([*common[:-1], "--limit", "1", "--baseline", str(street_pairs)]) == 0
    table = capsys.readouterr().out
    assert "abs rel" in table and "median depth" in table
    assert main([*common[:-1], "--limit", "1", "--method", "propagated"]) == 0
    table = capsys.readouterr().out
    assert "±1.960 σ            95.0%" in table and "epistemic" in table


def test_a_perfect_prediction_has_no_error(street_pairs):
    """Through the whole way: file, disparity, metres with the frame's own focal length."""
    recordings = find_measured(street_pairs)[:2]
    truths = {
        read_rgb_image(r.left).tobytes(): disparity_of(read_depth(r.depth), r, SCALE)
        for r in recordings
    }
    errors = depth_errors_of(
        lambda image: (truths[image.tobytes()], None), recordings, SCALE
    ).summary()
    # The calibration file and SCALE say 0.54 m and 0.580918… with six digits.
    assert errors["abs_rel"] < 1e-5 and errors["a1"] == 1.0


def test_coverage_of_the_disparity_at_the_evaluated_pixels(street_pairs):
    """Errors of half a σ in the left half of the image and of 1.8 σ in the right one.

    Against the files' own depth: the rig of `SCALE` is that of the calibration files.
    """
    recordings = find_measured(street_pairs)[:2]
    truths, left, right = {}, 0, 0
    for recording in recordings:
        depth = read_depth(recording.depth)
        judged, half = judged_pixels(depth), depth.shape[1] // 2
        left, right = left + judged[:, :half].sum(), right + judged[:, half:].sum()
        disparity = disparity_of(depth, recording, SCALE)
        truths[read_rgb_image(recording.left).tobytes()] = disparity

    def predict(image):
        truth = truths[image.tobytes()]
        std = np.float32(0.1) * np.abs(truth)
        errors = np.full_like(truth, 0.5)
        errors[:, truth.shape[1] // 2 :] = -1.8
        return truth + errors * std, std

    coverage = Coverage()
    depth_errors_of(predict, recordings, SCALE, coverage=coverage)
    assert coverage.count == left + right and left > 0 and right > 0
    found = [row["observed"] for row in coverage.summary()]
    # ±0.674, ±1 and ±1.645 σ hold the left half; ±1.96 σ holds all.
    assert found == [left / (left + right)] * 3 + [1]


def test_a_segnet_is_not_evaluated_as_depth(street_pairs, tmp_path, capsys):
    checkpoint = save_model(SegNet(["a", "b"], width=1 / 16), tmp_path)
    words = ["evaluate", "monodepth", str(checkpoint), "--data", str(street_pairs)]
    assert main(words) == 2
    assert "is not a Monodepth" in capsys.readouterr().err


@pytest.mark.slow
def test_the_bundle_gives_the_evaluated_prediction(street_pairs, tmp_path):
    """The exported bundle, run by the pipeline, against the propagated prediction in PyTorch."""
    torch.manual_seed(0)
    model = Monodepth(width=1 / 32, size=(128, 384)).eval()
    torch.nn.init.normal_(model.heads["disparity1"].weight, std=0.05)
    options = ExportOptions(116, 384, channel_order="rgb")
    bundle = export_bundle(save_model(model, tmp_path / "model"), tmp_path / "bundle", options)
    recording = find_measured(street_pairs)[0]
    image, camera = read_rgb_image(recording.left), recording.calibration.camera
    expected, std = depth_predictor(model, "propagated")(image)
    with Pipeline(bundle, PipelineConfig(runner="onnxruntime")) as pipeline:
        result = pipeline.process(image, camera)
    # float32 through some 30 layers
    np.testing.assert_allclose(result.disparity, expected, rtol=1e-4)
    np.testing.assert_allclose(result.disparity_std, std, rtol=1e-3)
    scale = DepthSpec(**model.config["depth"])
    metres, _, _ = depth_of(expected, np.float32(0), scale, camera)
    np.testing.assert_allclose(result.prediction, metres, rtol=1e-4)
    assert (result.uncertainty > 0).all()
