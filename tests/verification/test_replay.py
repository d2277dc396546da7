"""Real drives through the real node, every figure compared with PyTorch's Monte Carlo.

The tolerances of shipped bundles and of depth are those of the manifests, with the noise of the
reference allowed for as `penumbra.verification.tolerance` does it. Few samples and small networks,
so that a clean clone runs it in minutes; the full figures come from `penumbra verify`.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from penumbra.bags import (
    IMAGE_TOPIC,
    LABELS_TOPIC,
    FrameSelection,
    array_of,
    open_bag,
    write_drive,
)
from penumbra.bundle import load_bundle
from penumbra.offline.datasets.camvid_drive import camvid_drive
from penumbra.offline.datasets.kitti_drive import kitti_drive
from penumbra.offline.scenes import Camera
from penumbra.offline.scenes.street_drive import street_drive
from penumbra.replay.process import send_through_node
from penumbra.share import config_folder
from penumbra.verification import verify
from penumbra.verification.facts import METHODS
from penumbra.verification.frames import outputs_of
from penumbra.verification.reference import References
from penumbra.verification.tolerance import checked

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ros_domain")]
SHIPPED = sorted(file.parent.name for file in (config_folder() / "models").glob("*/manifest.yaml"))
STREET = Camera(width=160, height=120)


def assert_held(facts):
    assert facts.passed, "\n".join(map(str, facts.checks))


# For networks that were never trained, chosen after measuring them on the three drives below
# (error 3.1, 6.3 and 11.7 % noise 2 to 4 %; Spearman 0.994, 0.977 and 0.936): it guards what
# is there. Seq05VD misses the 0.97 that a manifest promises for the class covariance. Why is not
# known; perhaps 8 channels before the classifier are too few for a Gaussian. No class stands out,
# so that a few hundred samples cannot decide the label of every thirtieth pixel. Nor is rounding
# harmless: in 0001TP one window of the deepest pooling chooses otherwise where torch has one thread
# instead of two, which moves 4.6 % of that frame's labels; the two frames then agree on 0.954
# instead of 0.972 (noise 0.026 both times).
UNTRAINED = {"label_agreement": 0.975, "std_relative_error": 0.1, "spearman": 0.92}


def assert_near(facts):
    """Uncertainty within `UNTRAINED`, and labels that differ by no more than the noise explains."""
    verdicts = {check.name: check.verdict for check in checked(facts.figures, UNTRAINED)}
    assert verdicts.pop("label_agreement") in ("held", "undecided"), facts.figures
    assert set(verdicts.values()) == {"held"}, facts.figures


def assert_as_accurate(facts):
    """The labels are nearly those of Monte Carlo, and so is the share of correct ones."""
    accuracies = [facts.truth[method]["global_accuracy"] for method in METHODS]
    assert abs(accuracies[0] - accuracies[1]) <= 1 - facts.figures["label_agreement"]


def accuracy_and_iou(path, class_names, bundle):
    """Of Monte Carlo's labels, which are in the cache by now, pixel by pixel from the bag."""
    ours = [spec.name for spec in bundle.classes]
    theirs = [name.strip() for name in class_names.split(",")]
    references, pairs = References(bundle, samples=200), []
    with open_bag(path) as bag:
        images = [array_of(bag.decode(m)) for m in bag.raw([IMAGE_TOPIC])]
        labels = [array_of(bag.decode(m)) for m in bag.raw([LABELS_TOPIC])]
    for image, truth in zip(images, labels, strict=True):
        found = references.of(image).prediction
        pairs += [
            (ours.index(theirs[t]), f)
            for t, f in zip(truth.flat, found.flat, strict=True)
            if t < len(theirs) and theirs[t] in ours
        ]
    assert references.computed == 0
    truth, found = np.array(pairs).T
    ious = [
        np.sum((truth == c) & (found == c)) / np.sum((truth == c) | (found == c))
        for c in np.unique(truth)
    ]
    return np.mean(truth == found), np.mean(ious)


def _kitti(data_dir, selection):
    (camera,) = (data_dir / "kitti" / "raw").glob("*/*/image_02")
    return kitti_drive(camera.parents[1], camera.parent.name, selection=selection)


def test_rendered_street(exported, tmp_path):
    write_drive(street_drive(3, 0.4, 5.0, camera=STREET), tmp_path / "street")
    bundle = exported("class", softmax="moment")
    start = time.monotonic()
    facts = verify(tmp_path / "street", str(bundle.path), samples=200)
    seconds = time.monotonic() - start
    assert_near(facts)
    assert facts.bag.frames == len(facts.per_frame) == 2
    assert 0 < facts.truth["propagated"]["global_accuracy"] < 1
    assert_as_accurate(facts)
    # The first frame warms up, so the speed is that of the second, and part of this run's time.
    frame, speed = facts.per_frame[1], facts.speed
    assert speed.node_infer_s == pytest.approx(frame.infer_ms / 1e3)
    assert speed.node_total_s == pytest.approx(frame.total_ms / 1e3)
    assert 0 < speed.node_infer_s <= speed.node_total_s < seconds


@pytest.mark.parametrize("sequence", ["0001TP", "Seq05VD"])
def test_camvid(sequence, exported, data_dir, small_bag):
    selection = FrameSelection(skip=10, every=15, frames=2)
    drive = camvid_drive(data_dir / "camvid", "test", sequence, selection)
    bundle = exported("class", softmax="moment")
    bag = small_bag(drive, width=240)
    facts = verify(bag, str(bundle.path), samples=200)
    assert_near(facts)
    assert_as_accurate(facts)
    accuracy, mean_iou = accuracy_and_iou(bag, drive.notes["classes"], bundle)
    assert facts.truth["monte_carlo"]["global_accuracy"] == pytest.approx(accuracy)
    assert facts.truth["monte_carlo"]["mean_iou"] == pytest.approx(mean_iou)
    assert 0 < mean_iou < 1


def test_kitti(exported, data_dir, small_bag):
    drive = _kitti(data_dir, FrameSelection(frames=2))
    facts = verify(small_bag(drive, width=310), str(exported("monodepth").path), samples=400)
    assert [check.verdict for check in facts.checks] == ["held", "held"]
    assert facts.figures["disparity_relative_error"] < 0.02
    truth = facts.truth
    assert truth["propagated"]["abs_rel"] == pytest.approx(
        truth["monte_carlo"]["abs_rel"], rel=0.05
    )
    # The standard deviations are nearly the same, so is what they cover.
    covered = [[row["observed"] for row in facts.coverage[method]] for method in truth]
    np.testing.assert_allclose(*covered, atol=0.02)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped(name, tmp_path, request):
    """Each on a drive of its own kind, at full size."""
    bundle = load_bundle(config_folder() / "models" / name)
    if "street" in name:
        drive = street_drive(21, 0.4, 5.0)
    elif bundle.task == "depth":
        drive = _kitti(
            request.getfixturevalue("data_dir"), FrameSelection(skip=20, every=20, frames=2)
        )
    else:
        selection = FrameSelection(skip=30, every=60, frames=2)
        folder = request.getfixturevalue("data_dir") / "camvid"
        drive = camvid_drive(folder, "test", None, selection)
    write_drive(drive, tmp_path / "drive")
    everywhere = bundle.variant["dropout"] == "encdec"  # nothing to keep: slow
    facts = verify(
        tmp_path / "drive",
        name,
        samples=60 if everywhere else 300,
        frames=1 if everywhere else None,
    )
    assert_held(facts)


def test_two_replays_are_the_same_to_the_bit(exported, tmp_path):
    write_drive(street_drive(4, 0.4, 5.0, camera=STREET), tmp_path / "street")
    bundle = exported("class")
    names = outputs_of(bundle)
    said = []
    for attempt in ("first", "second"):
        with open_bag(tmp_path / "street") as bag:
            log = tmp_path / f"{attempt}.log"
            send_through_node(
                bag, bundle, tmp_path / attempt, log, answers=names, record_everything=False
            )
        with open_bag(tmp_path / attempt, lambda _: None) as recording:
            topics = [f"/penumbra/{name}" for name in names if name != "stats"]
            # Topic by topic: which of two answers to one frame arrives first is DDS's business.
            said.append([list(recording.raw([topic])) for topic in topics])
    assert [len(messages) for messages in said[0]] == [2] * 3
    assert said[0] == said[1]


def test_frames_are_spread_over_the_bag(exported, tmp_path):
    write_drive(street_drive(5, 1.2, 5.0, camera=STREET), tmp_path / "street")
    facts = verify(tmp_path / "street", str(exported("class").path), samples=8, frames=3)
    times = [frame.time_s for frame in facts.per_frame]
    np.testing.assert_allclose(times, [0, 0.4, 0.8], atol=1e-6)
