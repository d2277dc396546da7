"""Which frames are taken, and ground truth in the bundle's own numbers."""

from __future__ import annotations

import numpy as np
import pytest
from small_drives import small_drive, write_images

from penumbra.bags import IMAGE_TOPIC, LABELS_TOPIC, Drive, open_bag, write_drive
from penumbra.bags.messages import START_NS
from penumbra.errors import PenumbraError
from penumbra.offline.metrics.segmentation import IGNORE
from penumbra.verification.frames import _Truth, chosen_frames

LABELS = np.arange(32 * 48, dtype=np.uint32).reshape(32, 48) % 4


def test_frames_are_spread_evenly_from_the_first_on(tmp_path):
    stamps = [START_NS + number for number in range(10)]
    write_images(tmp_path / "bag", stamps)
    with open_bag(tmp_path / "bag") as bag:
        assert chosen_frames(bag, IMAGE_TOPIC, None) == stamps
        assert chosen_frames(bag, IMAGE_TOPIC, 99) == stamps
        assert chosen_frames(bag, IMAGE_TOPIC, 4) == [stamps[i] for i in (0, 2, 5, 7)]
        with pytest.raises(PenumbraError, match="--frames is 0"):
            chosen_frames(bag, IMAGE_TOPIC, 0)


def test_frames_of_one_stamp_are_refused(tmp_path):
    write_images(tmp_path / "bag", [START_NS, START_NS + 1, START_NS + 2], [START_NS] * 3)
    with open_bag(tmp_path / "bag") as bag, pytest.raises(PenumbraError, match="2 frames of"):
        chosen_frames(bag, IMAGE_TOPIC, None)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        # By name: the bundle has road as 3 and sky as 0, but no cow.
        ({"classes": "road, cow, sky, void"}, [3, IGNORE, 0, IGNORE]),
    ],
)
def test_labels_by_the_names_of_their_classes(notes, expected, exported, tmp_path):
    drive = small_drive(2, labels=LABELS.astype(np.uint8))
    write_drive(Drive(drive.frames, 2, notes), tmp_path / "bag")
    bundle = exported("class")
    assert [bundle.classes[i].name for i in (0, 3)] == ["sky", "road"]
    with open_bag(tmp_path / "bag") as bag:
        stamps = chosen_frames(bag, LABELS_TOPIC, None)
        truth = _Truth(bag, bundle, set(stamps))
        assert np.array_equal(truth.at(stamps[0], LABELS.shape), np.array(expected)[LABELS])
        # Halved as the network saw it: every second pixel, none in between two classes.
        half = truth.at(stamps[1], (16, 24))
        assert half.shape == (16, 24)
        assert set(np.unique(half)) <= {*expected, IGNORE}


def test_a_bag_without_truth_has_none(exported, tmp_path):
    write_drive(small_drive(1), tmp_path / "bag")
    with open_bag(tmp_path / "bag") as bag:
        assert _Truth(bag, exported("monodepth"), {START_NS}).at(START_NS, (32, 48)) is None
