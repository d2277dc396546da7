"""Depth: figures, augmentation, matching, a training run that resumes, and its evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from penumbra.bundle import DepthSpec
from penumbra.cli.main import main
from penumbra.offline.datasets.camvid import read_image
from penumbra.offline.datasets.kitti import KittiRecording, find_measured, find_pairs, read_depth
from penumbra.offline.metrics.coverage import Coverage
from penumbra.offline.metrics.depth import DepthErrors, judged_pixels
from penumbra.offline.models import load_model, save_model
from penumbra.offline.models.monodepth import Monodepth
from penumbra.offline.scenes.dataset import RenderingPlan, write_scenes
from penumbra.offline.training.depth import StereoViews, disparity_of
from penumbra.offline.training.depth_evaluation import errors_of, predictor
from penumbra.offline.training.state import load_state
from penumbra.offline.training.stereo_losses import UNKNOWN
from penumbra.offline.training.stereo_matching import match, match_both, median_depth

SCALE = DepthSpec(baseline_m=0.54, focal_per_width=721.5 / 1242, max_depth_m=80.0)


@pytest.fixture(scope="module")
def street_pairs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("streets") / "stereo"
    write_scenes(RenderingPlan("stereo", 384, 116), 10, folder, workers=2)
    return folder


# --- figures --------------------------------------------------------------------------------------


def test_figures_by_hand():
    truth = np.zeros((100, 100), np.float32)
    prediction = np.full((100, 100), 10.0, np.float32)
    truth[60, 50:54] = [10, 8, 20, 5]  # errors 0, 2, -10, 5
    truth[10, 50] = 10  # above the crop
    truth[60, 99] = 10  # beside it
    truth[61, 50] = 85  # too far
    errors = DepthErrors()
    errors.add(truth, prediction)
    found = errors.summary()
    assert found["abs_rel"] == pytest.approx((0 + 2 / 8 + 10 / 20 + 5 / 5) / 4)
    assert found["sq_rel"] == pytest.approx((0 + 4 / 8 + 100 / 20 + 25 / 5) / 4)
    assert found["rmse"] == pytest.approx(((0 + 4 + 100 + 25) / 4) ** 0.5)
    logs = np.log([1, 10 / 8, 10 / 20, 10 / 5])
    assert found["rmse_log"] == pytest.approx((logs**2).mean() ** 0.5)
    # Ratios 1, 1.25 (not below 1.25), 2, 2.
    assert (found["a1"], found["a2"], found["a3"]) == (0.25, 0.5, 0.5)


def test_frames_are_averaged_and_empty_ones_do_not_count():
    errors = DepthErrors()
    one = np.full((100, 100), 10.0)
    errors.add(one, one * 1.1)
    errors.add(one, one * 1.3)
    errors.add(np.zeros((100, 100)), one)
    assert errors.summary()["abs_rel"] == pytest.approx(0.2)


def test_the_crop_is_that_of_garg():
    """For KITTI's 375 x 1242 the published code cuts rows 153 to 371 and columns 44 to 1197."""
    rows, columns = np.nonzero(judged_pixels(np.full((375, 1242), 10.0)))
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (153, 371, 44, 1197)


# --- disparity and matching -----------------------------------------------------------------------


def test_matching_finds_the_rendered_disparity(street_pairs):
    pair = find_pairs(street_pairs)[0]
    found = match_both(read_image(pair.left), read_image(pair.right))
    for disparity, file in zip(found, (pair.depth, pair.depth_right), strict=True):
        truth = disparity_of(read_depth(file), pair, SCALE)
        is_match = disparity > 0
        assert is_match.mean() > 0.3
        pixels = np.abs(disparity - truth)[is_match] * truth.shape[1]
        assert np.median(pixels) < 0.5


def test_matches_outside_of_the_other_image_are_unknown():
    random = np.random.default_rng(0)
    wall = cv2.GaussianBlur(random.integers(0, 256, (60, 260), dtype=np.uint8), (3, 3), 0)
    left, right = wall[:, :200].copy(), wall[:, 8:208].copy()  # everything 8 pixels to the left
    disparity = match(left, right)
    assert (disparity[:, :7] == UNKNOWN).all()  # cannot be seen by the right eye
    inner = disparity[5:-5, 12:-5]
    assert np.mean(np.abs(inner * 200 - 8) < 0.2) > 0.95


def test_median_depth_is_taken_pixel_by_pixel(tmp_path):
    """Three walls, at disparities 8, 10 and 16: the median is that at 10, everywhere."""
    random = np.random.default_rng(0)
    pairs = []
    for shift in (8, 16, 10):
        wall = cv2.GaussianBlur(random.integers(0, 256, (64, 260), dtype=np.uint8), (3, 3), 0)
        for name, start in (("left", 0), ("right", shift)):
            cv2.imwrite(str(tmp_path / f"{name}{shift}.png"), wall[:, start : start + 200])
        pairs.append(KittiRecording(tmp_path / f"left{shift}.png", tmp_path / f"right{shift}.png"))
    from penumbra.vehicle.geometry import PinholeCamera

    found = median_depth(pairs, PinholeCamera(100.0, 200), 0.5, most=80.0, size=(64, 200))
    expected = 100 * 0.5 / 10
    assert np.mean(np.abs(found[:, 20:-5] / expected - 1) < 0.03) > 0.9
    assert np.isfinite(found).all()


# --- augmentation ---------------------------------------------------------------------------------


def views(folder: Path, zoom=(1.0, 1.3), grey=0.0, **options) -> StereoViews:
    settings = {"seed": 5, "scale": SCALE, "with_known": True, "with_hints": False} | options
    return StereoViews(find_pairs(folder), (128, 384), zoom, grey, **settings)


@pytest.mark.parametrize("epoch", range(6))
def test_an_augmented_pair_is_still_a_stereo_pair(street_pairs, epoch):
    """Zoomed, mirrored or not: known disparity rebuilds either image from the other."""
    left, right, known = views(street_pairs)[epoch, 2]
    assert left.shape == right.shape == (128, 384, 3) and known.shape == (2, 128, 384)
    x, y = np.meshgrid(np.arange(384, dtype=np.float32), np.arange(128, dtype=np.float32))
    for image, other, disparity, sign in ((left, right, known[0], -1), (right, left, known[1], 1)):
        moved = x + sign * np.maximum(disparity, 0) * 384
        rebuilt = cv2.remap(other, moved, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        inside = (moved > 0) & (moved < 383) & (disparity > UNKNOWN / 2)
        assert inside.mean() > 0.7

        def error(guess, image=image, inside=inside):
            return np.median(np.abs(guess.astype(int) - image)[inside])

        # Half of the pixels to within sensor noise (2 grey levels in each eye) and resampling.
        assert error(rebuilt) <= 6
        near = inside & (disparity * 384 > 6)  # where it makes a difference at all
        assert error(rebuilt, inside=near) < 0.7 * error(other, inside=near)


def test_an_item_is_the_same_whenever_it_is_asked_for(street_pairs):
    one, two = views(street_pairs), views(street_pairs)
    two[0, 0]  # what was asked before does not matter
    for first, second in zip(one[3, 1], two[3, 1], strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(one[3, 1][0], one[4, 1][0])


def test_grey_takes_the_colour_of_both(street_pairs):
    left, right, _ = views(street_pairs, grey=1.0)[0, 0]
    for image in (left, right):
        assert (image == image[..., :1]).all()


def test_without_truth_nothing_is_known_unless_it_is_matched(street_pairs, tmp_path):
    for place in ("left", "right"):
        (tmp_path / place).symlink_to(street_pairs / place)
    *_, known = views(tmp_path)[0, 0]
    assert (known == UNKNOWN).all()
    *_, hinted = views(tmp_path, with_hints=True)[0, 0]
    *_, exact = views(street_pairs)[0, 0]
    both = (hinted > 0) & (exact > 0)
    assert both.mean() > 0.3 and np.median(np.abs(hinted - exact)[both]) * 384 < 0.5


# --- training -------------------------------------------------------------------------------------

TINY = "--width 0.03125 --size 128x128 --batch 2 --warmup 2 --threads 1 --decay-steps 0 --known 1"


def begin(folder: Path, data: Path, *more: str) -> list[str]:
    words = ["train", "monodepth", "--data", str(data), "--run", str(folder)]
    return [*words, *TINY.split(), "--zoom", "1,1.2", "--grey", "0.5", *more]


@pytest.mark.slow
def test_a_run_in_two_parts_ends_with_the_same_weights(street_pairs, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(begin(whole, street_pairs, "--steps", "4")) == 0
    assert main(begin(parts, street_pairs, "--steps", "2")) == 0
    assert main(["train", "monodepth", "--run", str(parts), "--steps", "4"]) == 0
    one, two = load_state(whole), load_state(parts)
    assert one["step"] == two["step"] == 4
    for kind in ("model", "average"):
        for name, value in one[kind].items():
            assert torch.equal(value, two[kind][name]), f"{kind} {name}"
    model = load_model(whole / "last")
    assert model.config["depth"]["baseline_m"] == 0.54 and model.config["size"] == [128, 128]


@pytest.mark.slow
def test_training_teaches_the_depth_of_a_street(street_pairs, tmp_path):
    """From no idea to some: the error on the held-out pair falls, and so does the loss.

    How far is not asked: ten pairs and sixty steps of the narrowest network (measured: the loss
    from 3.9 to 3.2; nothing would be learnt with a wrong sign in the geometry).
    """
    words = begin(tmp_path / "run", street_pairs, "--steps", "60", "--rate", "3e-3")
    more = ["--batch-norm", "--average", "0.8", "--validate-every", "30", "--log-every", "10"]
    assert main([*words, *more, "--grey", "0", "--zoom", "1,1"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    untrained = Monodepth(width=1 / 32, size=(128, 128))
    held_out = find_pairs(street_pairs)[9:]
    before = errors_of(predictor(untrained.eval()), held_out, SCALE).summary()
    after = lines[-1]["validation"]
    assert after["abs_rel"] < before["abs_rel"] and after["a1"] > before["a1"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--size", "200x128"], "multiples of 128"),
        (["--encoder", "vit"], "unknown encoder 'vit'"),
        (["--zoom", "0.5,1"], "there is nothing around the image"),
        (["--baseline", "0.12"], "baseline of 0.540 m, --baseline says 0.12"),
        (["--validation", "{data}/left"], "no measured depth in"),
    ],
)
def test_mistakes_are_named(street_pairs, tmp_path, capsys, more, text):
    words = begin(tmp_path / "run", street_pairs, "--steps", "1")
    more = [word.format(data=street_pairs) for word in more]
    assert main([*words, *more]) == 2
    assert text in capsys.readouterr().err


def test_without_data_both_ways_to_get_some_are_named(tmp_path, capsys):
    assert main(["train", "monodepth", "--run", str(tmp_path / "run"), "--width", "0.03"]) == 2
    error = capsys.readouterr().err
    assert "--data FOLDER" in error and "--rendered N" in error


def test_bad_frames_stop_the_run_or_are_counted(street_pairs, tmp_path, capsys):
    for place in ("left", "right"):
        (tmp_path / place).mkdir()
        for file in (street_pairs / place).iterdir():
            (tmp_path / place / file.name).write_bytes(file.read_bytes())
    (tmp_path / "right" / "000003.png").write_bytes(b"rubbish")
    words = begin(tmp_path / "run", tmp_path, "--steps", "1")
    assert main(words) == 2
    assert "000003.png is not a whole" in capsys.readouterr().err
    assert main([*words, "--skip-bad"]) == 0
    output = capsys.readouterr()
    assert "skipped 1 of 10 frames" in output.out and "000003.png" in output.err


@pytest.mark.slow
def test_rendered_pairs_come_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENUMBRA_CACHE", str(tmp_path / "cache"))
    words = ["train", "monodepth", "--rendered", "10", "--run", "a", *TINY.split(), "--steps", "1"]
    assert main(words) == 0
    (folder,) = (tmp_path / "cache" / "rendered").iterdir()
    assert len(find_pairs(folder)) == 10
    assert (tmp_path / "cache" / "runs" / "a" / "state.pt").is_file()
    times = {file: file.stat().st_mtime_ns for file in folder.rglob("*.png")}
    assert main(["train", "monodepth", "--run", "a", "--steps", "2"]) == 0
    assert times == {file: file.stat().st_mtime_ns for file in folder.rglob("*.png")}


# --- evaluation -----------------------------------------------------------------------------------


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
    assert found["propagated"]["calibrated"] is False
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
        read_image(r.left).tobytes(): disparity_of(read_depth(r.depth), r, SCALE)
        for r in recordings
    }
    errors = errors_of(lambda image: (truths[image.tobytes()], None), recordings, SCALE).summary()
    # The calibration file and SCALE say 0.54 m and 0.580918… with six digits.
    assert errors["abs_rel"] < 1e-5 and errors["a1"] == 1.0


def test_coverage_is_that_of_disparity_at_the_judged_pixels(street_pairs):
    """Errors of half a σ in the left half of the picture and of 1.8 σ in the right one.

    Against the files' own depth: the rig of `SCALE` is that of the calibration files.
    """
    recordings = find_measured(street_pairs)[:2]
    truths, left, right = {}, 0, 0
    for recording in recordings:
        depth = read_depth(recording.depth)
        judged, half = judged_pixels(depth), depth.shape[1] // 2
        left, right = left + judged[:, :half].sum(), right + judged[:, half:].sum()
        disparity = disparity_of(depth, recording, SCALE)
        truths[read_image(recording.left).tobytes()] = disparity

    def predict(image):
        truth = truths[image.tobytes()]
        std = np.float32(0.1) * np.abs(truth)
        errors = np.full_like(truth, 0.5)
        errors[:, truth.shape[1] // 2 :] = -1.8
        return truth + errors * std, std

    coverage = Coverage()
    errors_of(predict, recordings, SCALE, coverage=coverage)
    assert coverage.count == left + right and left > 0 and right > 0
    found = [row["observed"] for row in coverage.summary()]
    # ±0.674, ±1 and ±1.645 σ hold the left half; ±1.96 σ holds all.
    assert found == [left / (left + right)] * 3 + [1]


def test_a_segnet_is_not_evaluated_as_depth(street_pairs, tmp_path, capsys):
    from penumbra.offline.models.segnet import SegNet

    checkpoint = save_model(SegNet(["a", "b"], width=1 / 16), tmp_path)
    words = ["evaluate", "monodepth", str(checkpoint), "--data", str(street_pairs)]
    assert main(words) == 2
    assert "is not a Monodepth" in capsys.readouterr().err


@pytest.mark.slow
def test_the_vehicle_sees_what_was_evaluated(street_pairs, tmp_path):
    """The exported bundle, run by the pipeline, against the propagated prediction in PyTorch."""
    from penumbra.offline.export import ExportOptions, export_bundle
    from penumbra.vehicle.geometry import depth_of
    from penumbra.vehicle.pipeline import Pipeline, PipelineConfig

    torch.manual_seed(0)
    model = Monodepth(width=1 / 32, size=(128, 384)).eval()
    torch.nn.init.normal_(model.heads["disparity1"].weight, std=0.05)
    options = ExportOptions(116, 384, channel_order="rgb")
    bundle = export_bundle(save_model(model, tmp_path / "model"), tmp_path / "bundle", options)
    recording = find_measured(street_pairs)[0]
    image, camera = read_image(recording.left), recording.calibration.camera
    expected, std = predictor(model, "propagated")(image)
    with Pipeline(bundle, PipelineConfig(runner="onnxruntime")) as pipeline:
        result = pipeline.process(image, camera)
    # float32 through some 30 layers
    np.testing.assert_allclose(result.disparity, expected, rtol=1e-4)
    np.testing.assert_allclose(result.disparity_std, std, rtol=1e-3)
    scale = DepthSpec(**model.config["depth"])
    metres, _, _ = depth_of(expected, np.float32(0), scale, camera)
    np.testing.assert_allclose(result.prediction, metres, rtol=1e-4)
    assert (result.uncertainty > 0).all()
