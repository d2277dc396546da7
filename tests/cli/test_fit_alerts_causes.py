"""`penumbra fit-alerts` on several drives: all causes at once, into the bundle or a site folder."""

from __future__ import annotations

import hashlib
import json

import cv2
import numpy as np
import pytest
from camera_scenes import scene
from strange_scenes import with_statistics

from penumbra.bags import Drive, DriveFrame, write_drive
from penumbra.bags.messages import START_NS
from penumbra.bundle import load_bundle
from penumbra.cli.main import main
from penumbra.site import load_site
from penumbra.vehicle.monitor import Conditions, Level, Monitor, MonitorSettings
from penumbra.vehicle.ordinary import ordinary_of
from penumbra.vehicle.pipeline import Pipeline, PipelineConfig
from penumbra.vehicle.runners import RunnerSettings

HEIGHT, WIDTH, FRAMES = 72, 96, 25
DRIVES = ("0001TP", "0006R0", "0016E5")


def frame(drive, number):
    return scene(1000 * drive + number, HEIGHT, WIDTH)


@pytest.fixture
def bundle(tmp_path):
    return with_statistics(tmp_path / "street", height=HEIGHT, width=WIDTH)


@pytest.fixture
def folders(tmp_path):
    """Two drives in one folder and a third in another, named as CamVid's."""
    for number, drive in enumerate(DRIVES):
        folder = tmp_path / ("train" if number < 2 else "more")
        folder.mkdir(exist_ok=True)
        for place in range(FRAMES):
            cv2.imwrite(str(folder / f"{drive}_{place:06}.png"), frame(number, place))
    return [tmp_path / "train", tmp_path / "more"]


def fit_alerts(bundle, *options):
    return main(["fit-alerts", str(bundle.path), "--runner", "onnxruntime", *map(str, options)])


def levels(bundle, ordinary, images):
    """The levels of consecutive frames, and the causes that are at ALERT after the last."""
    fitted = ordinary.bundle.thresholds
    settings = MonitorSettings(fitted.frame, fitted.pixel, fitted.score_fraction)
    monitor = Monitor(settings, ordinary.models)
    config = PipelineConfig(
        "onnxruntime", also=ordinary.outputs, settings=RunnerSettings(threads=1)
    )
    monitor.start(0.0)
    with Pipeline(ordinary.bundle, config) as pipeline:
        verdicts = [pipeline.process(i, None, monitor, Conditions.assumed).verdict for i in images]
    last = {cause.cause.value for cause in verdicts[-1].causes if cause.level is Level.ALERT}
    return [verdict.level for verdict in verdicts], last


def test_all_causes_are_fitted_to_the_drives_that_the_names_give(bundle, folders, capsys):
    assert fit_alerts(bundle, "--images", *folders, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["drives"], facts["frames"]) == (3, 3 * FRAMES)
    assert facts["causes"] == ["uncertainty", "scene", "camera"]
    assert facts["false_alarm_rate"] == 1 / FRAMES  # of the smallest drive
    assert {cause: set(shares) for cause, shares in facts["left_out"].items()} == {
        cause: set(DRIVES) for cause in facts["causes"]
    }
    found = load_bundle(bundle.path)
    assert found.sha256 == bundle.sha256
    assert {"familiarity.npz", "health.yaml"} <= set(found.files)
    assert found.alerts["causes"]["scene"]["frame"] == pytest.approx(np.log10(FRAMES))
    ordinary = ordinary_of(found)
    seen, _ = levels(found, ordinary, [frame(0, n) for n in range(5)])
    assert Level.ALERT not in seen and Level.OK in seen
    tint = np.array([90, 0, -90])
    strange = [np.clip(frame(9, n) + tint, 0, 255).astype(np.uint8) for n in range(5)]
    seen, causes = levels(found, ordinary, strange)
    assert seen[-1] is Level.ALERT and "scene" in causes
    # A second fit replaces the models of the first.
    before = set(found.files)
    assert fit_alerts(bundle, "--images", *folders) == 0
    assert set(load_bundle(bundle.path).files) == before


def test_a_site_is_written_and_the_bundle_never_touched(bundle, folders, tmp_path, capsys):
    before = {f.name: hashlib.sha256(f.read_bytes()).digest() for f in bundle.path.iterdir()}
    site = tmp_path / "depot"
    options = ("--images", *folders, "--site", site)
    assert fit_alerts(bundle, *options, "--camera", "front", "--dry-run") == 0
    assert not site.exists()
    for camera in ("front", "rear"):
        assert fit_alerts(bundle, *options, "--camera", camera) == 0
    text = capsys.readouterr().out
    assert f"{site}: written" in text
    bound = "with a probability of 3/4 or more at most 4.00% of its frames are over the threshold"
    assert bound in text and "scene and camera have no bound" in text
    after = {f.name: hashlib.sha256(f.read_bytes()).digest() for f in bundle.path.iterdir()}
    assert before == after
    found = load_site(site, bundle)
    assert found.cameras == ("front", "rear")
    assert set(found.files) == {"familiarity-front.npz", "familiarity-rear.npz"}
    models = ordinary_of(bundle, found, "rear").models
    assert models.scene is not None and models.camera.drives == 3


def test_bags_are_drives(bundle, tmp_path, capsys):
    for number in range(2):
        frames = [
            DriveFrame(START_NS + place * 10**8, frame(number, place)) for place in range(FRAMES)
        ]
        write_drive(Drive(frames, FRAMES), tmp_path / f"day{number}")
    bags = ("--bag", tmp_path / "day0", tmp_path / "day1")
    assert fit_alerts(bundle, *bags, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["drives"], facts["frames"]) == (2, 2 * FRAMES)
    assert set(facts["left_out"]["uncertainty"]) == {"day0", "day1"}
    assert fit_alerts(bundle, *bags, "--frames", 20, "--json") == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 40


@pytest.mark.parametrize(
    "options, words",
    [
        ([], "give --images DIR or --bag BAG"),
        (["--bag", "nowhere", "--camera", "front"], "--camera belongs to --site"),
        (["--bag", "nowhere", "--site", "s", "--size", "96x72"], "--size belongs to the bundle"),
    ],
)
def test_mistakes_are_reported_in_one_line(bundle, options, words, capsys):
    assert fit_alerts(bundle, *options) == 2
    error = capsys.readouterr().err
    assert words in error and error.strip().count("\n") == 0
