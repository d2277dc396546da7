"""From an image to a result, without ROS and torch."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace

import cv2
import numpy as np
import pytest
import tiny_bundles

from penumbra.bundle import DepthSpec
from penumbra.errors import PenumbraError
from penumbra.vehicle.geometry import PinholeCamera, depth_of
from penumbra.vehicle.monitor import Cause, Conditions, Level, Monitor, MonitorSettings, frame_score
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerError, RunnerSettings, create

CONFIG = PipelineConfig(runner="onnxruntime", settings=RunnerSettings(threads=1))


@pytest.fixture
def street(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street")


@pytest.fixture
def ahead(tmp_path):
    return tiny_bundles.depth(tmp_path / "ahead")


def test_segmentation(street):
    image = tiny_bundles.image()
    with create("onnxruntime", street, threads=1) as runner:
        outputs = runner.infer(image)
    with Pipeline(street.path, CONFIG) as pipeline:
        result = pipeline.process(image)
    np.testing.assert_array_equal(result.prediction, outputs["labels"])
    np.testing.assert_array_equal(result.uncertainty, outputs["uncertainty"])
    np.testing.assert_array_equal(result.confidence, outputs["confidence"])
    assert (result.disparity, result.disparity_std) == (None, None)
    assert result.scores == {"frame_score": float(outputs["frame_score"])}
    # Float32 sums of 1,728 pixels in different order.
    assert result.scores["frame_score"] == pytest.approx(result.uncertainty.mean(), rel=1e-5)
    assert result.maps == {}
    assert result.times.inference > 0
    assert result.verdict is None


def test_requested_outputs_are_returned(street):
    wanted = ("labels", "uncertainty", "entropy")
    with Pipeline(street, PipelineConfig("onnxruntime", wanted)) as pipeline:
        result = pipeline.process(tiny_bundles.image())
    assert result.maps.keys() == {"entropy"}
    assert result.confidence is None
    assert result.scores == {}


def test_alerts_are_based_on_the_map_named_in_the_bundle(tmp_path, street):
    thresholds = {"pixel": 1.0, "frame": 1.0, "false_alarm_rate": 0.01, "frames": 50}
    by_entropy = tiny_bundles.segmentation(
        tmp_path / "entropy", thresholds={**thresholds, "map": "entropy", "score_fraction": 0.2}
    )
    assert by_entropy.thresholds.score_fraction == 0.2
    image = tiny_bundles.image()
    with Pipeline(by_entropy, CONFIG) as pipeline:
        result = pipeline.process(image)
    np.testing.assert_array_equal(result.judged, result.maps["entropy"])
    assert not np.array_equal(result.judged, result.uncertainty)
    with Pipeline(street, CONFIG) as pipeline:
        result = pipeline.process(image)
    assert result.judged is result.uncertainty


def test_required_outputs_are_computed_whatever_is_requested(tmp_path, street, ahead):
    thresholds = {"pixel": 1.0, "frame": 1.0, "false_alarm_rate": 0.01, "frames": 50}
    by_entropy = tiny_bundles.segmentation(
        tmp_path / "entropy", thresholds={**thresholds, "map": "entropy"}
    )
    image = tiny_bundles.image()
    for bundle in (street, by_entropy, ahead):
        with Pipeline(bundle, CONFIG) as pipeline:
            whole = pipeline.process(image)
        with Pipeline(bundle, replace(CONFIG, outputs=())) as pipeline:
            least = pipeline.process(image)
        for name in ("prediction", "uncertainty", "judged"):
            np.testing.assert_array_equal(getattr(least, name), getattr(whole, name))
        assert least.scores == {}


def test_an_output_that_the_bundle_does_not_have_is_rejected(street, ahead):
    for bundle, name in ((street, "disparity"), (ahead, "labels"), (ahead, "entropy")):
        with pytest.raises(PenumbraError, match="has no output"):
            Pipeline(bundle, PipelineConfig("onnxruntime", (name,)))


def test_thresholds_of_a_map_that_the_bundle_does_not_have_are_rejected(tmp_path):
    thresholds = {"pixel": 1.0, "frame": 1.0, "false_alarm_rate": 0.01, "frames": 50}
    bundle = tiny_bundles.depth(tmp_path / "odd", thresholds={**thresholds, "map": "entropy"})
    with pytest.raises(PenumbraError, match="has no output"):
        Pipeline(bundle, CONFIG)


def test_depth(ahead):
    """Disparity is a hundredth of the brightness, its std a tenth of that, by construction."""
    image = np.empty((36, 48, 3), np.uint8)
    image[:] = np.arange(1, 49, dtype=np.uint8)[None, :, None]
    with Pipeline(ahead, CONFIG) as pipeline:
        result = pipeline.process(image)
    disparity = image[..., 0] / 100
    metres = tiny_bundles.FOCAL_PER_WIDTH * tiny_bundles.BASELINE_M / disparity
    assert metres.max() < tiny_bundles.MAX_DEPTH_M
    # A few roundings of float32, 6e-8 each.
    np.testing.assert_allclose(result.disparity, disparity, rtol=1e-6)
    np.testing.assert_allclose(result.disparity_std, disparity / 10, rtol=1e-6)
    np.testing.assert_allclose(result.prediction, metres, rtol=1e-6)
    np.testing.assert_allclose(result.uncertainty, metres / 10, rtol=1e-6)
    np.testing.assert_allclose(result.confidence, 0.9, rtol=1e-6)
    assert {array.dtype for array in (result.prediction, result.uncertainty)} == {np.dtype("f4")}


def test_the_camera_sets_the_scale(ahead):
    """The same lens with an image of half the width has half the focal length in pixels."""
    image = tiny_bundles.image()
    with Pipeline(ahead, CONFIG) as pipeline:
        own = pipeline.process(image)
        full = pipeline.process(image, PinholeCamera(focal_px=720, width_px=1200))
        half = pipeline.process(image, PinholeCamera(focal_px=360, width_px=600))
        with pytest.raises(PenumbraError, match="focal length of 0 image widths: .* K"):
            pipeline.process(image, PinholeCamera(focal_px=0, width_px=1200))
    np.testing.assert_array_equal(full.prediction, half.prediction)
    ratio = 0.6 / tiny_bundles.FOCAL_PER_WIDTH
    near = own.prediction < tiny_bundles.MAX_DEPTH_M
    np.testing.assert_allclose(full.prediction[near], ratio * own.prediction[near], rtol=1e-6)


SCALE = DepthSpec(baseline_m=0.54, focal_per_width=0.58, max_depth_m=80.0)


def test_the_std_of_depth_is_first_order():
    """Against samples: σ is 1 % of d, so the neglected second order is 1e-4 of σ_z."""
    generator = np.random.default_rng(0)
    disparity = np.array([0.02, 0.1, 0.4], np.float32)
    std = 0.01 * disparity
    _, found, _ = depth_of(disparity, std, SCALE)
    samples = disparity + std * generator.standard_normal((400_000, 3))
    sampled = (SCALE.focal_per_width * SCALE.baseline_m / samples).std(0)
    # The std of 400,000 samples has an error of 1 / sqrt(800,000) = 0.11 %; four times that.
    np.testing.assert_allclose(found, sampled, rtol=4.5e-3)


def test_depth_is_clipped_at_its_maximum():
    """Zero and negative disparity give a finite depth and std, without a warning."""
    least = SCALE.focal_per_width * SCALE.baseline_m / SCALE.max_depth_m
    disparity = np.array([-0.1, 0, 1e-30, least / 2, 2 * least], np.float32)
    std = np.full(5, 0.1 * least, np.float32)
    with np.errstate(all="raise"):
        depth, depth_std, confidence = depth_of(disparity, std, SCALE)
    np.testing.assert_allclose(depth, [80, 80, 80, 80, 40], rtol=1e-6)
    np.testing.assert_allclose(depth_std, [8, 8, 8, 8, 2], rtol=1e-6)
    np.testing.assert_allclose(confidence, [0.9, 0.9, 0.9, 0.9, 0.95], rtol=1e-6)


def test_confidence_stays_between_zero_and_one():
    disparity = np.full(3, 0.1, np.float32)
    std = np.array([0, 0.05, 0.4], np.float32)
    _, _, confidence = depth_of(disparity, std, SCALE)
    np.testing.assert_allclose(confidence, [1, 0.5, 0], atol=1e-7)
    assert disparity.tolist() == np.full(3, 0.1, np.float32).tolist()  # unmodified


def test_cameras_share_a_pipeline(ahead):
    """Four threads with different images: each gets its own result."""
    images = [tiny_bundles.image(seed=seed) for seed in range(4)]
    with Pipeline(ahead, CONFIG) as pipeline:
        wanted = [pipeline.process(image) for image in images]
        wrong = []

        def drive(number):
            for _ in range(50):
                result = pipeline.process(images[number])
                for name in ("prediction", "uncertainty", "disparity"):
                    if not np.array_equal(getattr(result, name), getattr(wanted[number], name)):
                        wrong.append((number, name))

        threads = [threading.Thread(target=drive, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_bad_image_is_rejected_and_the_next_one_is_processed(street):
    with Pipeline(street, CONFIG) as pipeline:
        for bad in (None, np.zeros((36, 48)), np.zeros((0, 0, 3), np.uint8)):
            with pytest.raises(PenumbraError):
                pipeline.process(bad)
        pipeline.process(tiny_bundles.image())


def test_an_image_is_fitted_to_the_size_of_the_engine(tmp_path):
    fixed = tiny_bundles.segmentation(tmp_path / "fixed")
    image = tiny_bundles.image(72, 96)
    with Pipeline(fixed, CONFIG) as pipeline:
        result = pipeline.process(image)
        small = cv2.resize(image, (48, 36), interpolation=cv2.INTER_AREA)
        again = pipeline.process(small)
    assert (result.source_size, again.source_size) == ((72, 96), (36, 48))
    np.testing.assert_array_equal(result.image, small)
    np.testing.assert_array_equal(result.uncertainty, again.uncertainty)


def test_a_frame_is_judged_if_a_monitor_is_given(street):
    monitor = Monitor(MonitorSettings(frame_threshold=0.0, pixel_threshold=0.0))
    monitor.start(0.0)
    with Pipeline(street, CONFIG) as pipeline:
        first = pipeline.process(tiny_bundles.image(), None, monitor, Conditions.assumed)
        later = pipeline.process(tiny_bundles.image(), None, monitor, Conditions.assumed)
    assert first.verdict.level is Level.WARN
    assert first.verdict.score == frame_score(first.judged, 0.01)
    assert [cause.cause for cause in first.verdict.causes] == [
        Cause.UNCERTAINTY,
        Cause.CAMERA,
        Cause.INPUT,
    ]
    assert later.verdict.number > first.verdict.number


@pytest.mark.parametrize(
    "change", [lambda a: a[:-1], lambda a: a.astype(np.float64), lambda a: a[None]]
)
def test_outputs_that_do_not_match_the_manifest_are_rejected(street, monkeypatch, change):
    with Pipeline(street, CONFIG) as pipeline:
        runner = pipeline._runner
        infer = runner.infer
        monkeypatch.setattr(
            runner, "infer", lambda x: {**(o := infer(x)), "uncertainty": change(o["uncertainty"])}
        )
        with pytest.raises(RunnerError, match="uncertainty is .*the manifest states float32"):
            pipeline.process(tiny_bundles.image())
        monkeypatch.setattr(runner, "infer", lambda x: {"labels": infer(x)["labels"]})
        with pytest.raises(RunnerError, match="returned no output uncertainty"):
            pipeline.process(tiny_bundles.image())


def test_an_inactive_pipeline_raises(street):
    with pytest.raises(PenumbraError, match="inactive: call"):
        Pipeline(street, CONFIG).process(tiny_bundles.image())


def test_no_bundle(tmp_path):
    with pytest.raises(PenumbraError, match="no bundle at"):
        Pipeline(tmp_path / "nowhere")


FIRST_FRAME = """
import json, sys
import numpy as np
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig

with Pipeline(sys.argv[1], PipelineConfig(runner=sys.argv[2])) as pipeline:
    result = pipeline.process(np.zeros((36, 48, 3), np.uint8))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("runner", ["onnxruntime", "auto"])
def test_a_frame_needs_neither_torch_nor_ros_nor_onnx(street, runner):
    command = [sys.executable, "-c", FIRST_FRAME, str(street.path), runner]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert {"penumbra", "numpy"} <= loaded
    heavy = {"torch", "rclpy", "onnx", "scipy", "matplotlib", "safetensors"}
    assert heavy & loaded == set()
