"""`penumbra fit-alerts` as a user calls it."""

from __future__ import annotations

import hashlib
import json

import cv2
import numpy as np
import pytest
import tiny_bundles

from penumbra.bundle import load_bundle
from penumbra.cli.main import main
from penumbra.vehicle.monitor import frame_score
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings

FRAMES = 60
RUNNER = ["--runner", "onnxruntime"]


def frames():
    """Noise of different strength around grey, so that the frames differ in their uncertainty."""
    for number in range(FRAMES):
        spread = (tiny_bundles.image(seed=number).astype(int) - 128) * (number % 30 + 1) // 40
        yield (spread + 128).astype(np.uint8)


@pytest.fixture
def bundle(tmp_path):
    return tiny_bundles.segmentation(tmp_path / "street")


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(frames()):
        cv2.imwrite(str(folder / f"{number:04}.png"), frame)
    return folder


def fit_alerts(bundle, images, *options):
    return main(["fit-alerts", str(bundle.path), "--images", str(images), *RUNNER, *options])


def scores_of(bundle):
    config = PipelineConfig(runner="onnxruntime", settings=RunnerSettings(threads=1))
    with Pipeline(bundle, config) as pipeline:
        maps = [pipeline.process(frame).uncertainty for frame in frames()]
    return np.array([frame_score(u, 0.01) for u in maps]), np.array(maps)


def test_alerts_can_be_judged_by_entropy(bundle, images):
    options = ("--map", "entropy", "--score-fraction", "0.1", "--false-alarm-rate", "0.1")
    assert fit_alerts(bundle, images, *options) == 0
    found = load_bundle(bundle.path)
    assert (found.thresholds.map, found.thresholds.score_fraction) == ("entropy", 0.1)
    settings = PipelineConfig("onnxruntime", settings=RunnerSettings(threads=1))
    with Pipeline(found, settings) as pipeline:
        results = [pipeline.process(frame) for frame in frames()]
    scores = [frame_score(result.maps["entropy"], 0.1) for result in results]
    assert sum(score > found.thresholds.frame for score in scores) == 6
    spread = np.array([result.uncertainty for result in results])
    # twice the 99 % quantile, from pixels drawn at random: see the test below
    assert (2 * spread > found.thresholds.uncertainty_top).mean() == pytest.approx(0.01, abs=1e-3)


def test_thresholds_are_quantiles_and_the_model_stays(bundle, images, capsys):
    model = hashlib.sha256(bundle.model_file.read_bytes()).hexdigest()
    assert bundle.thresholds is None
    assert fit_alerts(bundle, images, "--false-alarm-rate", "0.1", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    found = load_bundle(bundle.path)
    scores, maps = scores_of(bundle)
    assert found.thresholds.frame == pytest.approx(np.sort(scores)[-7])
    assert int((scores > found.thresholds.frame).sum()) == facts["frames_over"] == 6
    assert (found.thresholds.false_alarm_rate, found.thresholds.frames) == (0.1, FRAMES)
    over = (maps > found.thresholds.pixel).mean()
    # From 245,760 pixels drawn of 103,680: a share of 1 % is known to 0.02 %; five of those.
    assert over == pytest.approx(0.01, abs=1e-3)
    assert facts["pixel"] == found.thresholds.pixel
    assert facts["drives"] == found.manifest["alerts"]["drives"] == 1
    assert hashlib.sha256(found.model_file.read_bytes()).hexdigest() == model == found.sha256
    before, after = (dict(b.manifest, alerts=None) for b in (bundle, found))
    assert before == after


def test_a_rate_that_the_frames_cannot_support_is_refused(bundle, images, capsys):
    assert fit_alerts(bundle, images, "--false-alarm-rate", "0.001") == 2
    error = capsys.readouterr().err
    assert f"{FRAMES} frames of frames cannot support a false-alarm rate of 0.100%" in error
    assert "they support 1.67% or more; give 1,000 frames" in error
    assert "--false-alarm-rate 0.0167" in error
    assert load_bundle(bundle.path).thresholds is None
    # Without one, it is the lowest that they support.
    assert fit_alerts(bundle, images) == 0
    text = capsys.readouterr().out
    thresholds = load_bundle(bundle.path).thresholds
    assert thresholds.false_alarm_rate == pytest.approx(1 / FRAMES)
    assert "consecutive frames are correlated (" in text
    assert "per hour at 10 Hz by uncertainty, raised by 3 of 5" in text
    assert "if frames were independent" in text
    assert "scene: not fitted: street emits no statistics" in text
    assert "camera: not fitted: the images are too small" in text
    assert "with a probability of 1/2 or more at most 1.67% of its frames are over" in text
    # A second run prints what it replaces.
    assert fit_alerts(bundle, images, "--false-alarm-rate", "0.1") == 0
    text = capsys.readouterr().out
    assert f"before: pixel {thresholds.pixel:.4g}, frame {thresholds.frame:.4g}" in text


def test_nothing_changes_in_a_dry_run(bundle, images, capsys):
    before = (bundle.path / "manifest.yaml").read_bytes()
    assert fit_alerts(bundle, images, "--dry-run") == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert (bundle.path / "manifest.yaml").read_bytes() == before


def test_folder_layout_of_camvid_and_video_give_the_same(bundle, images, tmp_path, capsys):
    camvid = tmp_path / "camvid"
    camvid.mkdir()
    images.rename(camvid / "val")
    video = tmp_path / "drive.avi"
    # FFV1 loses nothing, but for its colours, which are YUV with as many bits.
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter_fourcc(*"FFV1"), 10, (48, 36))
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no video")
    for frame in frames():
        writer.write(frame)
    writer.release()
    found = []
    for source in (camvid, camvid / "val", video):
        assert fit_alerts(bundle, source, "--false-alarm-rate", "0.1", "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    layout, folder, film = found
    assert layout.pop("source") == "camvid/val"
    assert folder.pop("source") == "val"
    assert layout == folder
    assert film["frames"] == FRAMES
    assert film["frame"] == pytest.approx(folder["frame"], rel=0.05)


def test_depth_in_metres(tmp_path, images, capsys):
    bundle = tiny_bundles.depth(tmp_path / "ahead")
    assert fit_alerts(bundle, images, "--false-alarm-rate", "0.1") == 0
    assert " m: 6 of the frames are above it" in capsys.readouterr().out
    assert load_bundle(bundle.path).thresholds.frame > 0


def test_a_bundle_that_takes_rgb_gets_rgb(tmp_path, images, capsys):
    swapped = {
        **tiny_bundles.segmentation(tmp_path / "any").manifest["input"],
        "channel_order": "rgb",
    }
    facts = []
    for bundle in (
        tiny_bundles.segmentation(tmp_path / "rgb", input=swapped),
        tiny_bundles.segmentation(tmp_path / "bgr"),
    ):
        assert fit_alerts(bundle, images, "--json") == 0
        facts.append(json.loads(capsys.readouterr().out))
    assert facts[0]["frame"] != facts[1]["frame"]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--false-alarm-rate", "0"], "--false-alarm-rate 0: give a share between 0 and 1"),
        (["--pixel-rate", "2"], "--pixel-rate 2"),
        (["--score-fraction", "nan"], "--score-fraction nan"),
        (["--rate-hz", "0"], "--rate-hz 0"),
        (["--raise-frames", "5", "3"], "--raise-frames 5 3"),
        (["--frames", "19"], "19 frames are too few"),
        (["--runner", "abacus"], "abacus"),
    ],
)
def test_mistakes_are_reported_in_one_line(bundle, images, options, words, capsys):
    assert fit_alerts(bundle, images, *options) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip("\r ").count("\n") == 1
    assert load_bundle(bundle.path).thresholds is None


def test_wrong_places_and_sizes(bundle, images, tmp_path, capsys):
    assert fit_alerts(bundle, tmp_path / "nowhere") == 2
    assert "give a folder of images or a video" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert fit_alerts(bundle, tmp_path / "empty") == 2
    assert "no image (JPEG or PNG)" in capsys.readouterr().err
    cv2.imwrite(str(images / "0007.png"), np.zeros((20, 20, 3), np.uint8))
    assert fit_alerts(bundle, images) == 0  # fitted to the engine's size, as the node does
    (images / "0007.png").write_bytes(b"no image")
    assert fit_alerts(bundle, images) == 2
    assert "0007.png" in capsys.readouterr().err
