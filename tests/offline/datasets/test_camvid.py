"""Reading CamVid, and errors for every kind of invalid file."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid import load_camvid
from penumbra.offline.datasets.camvid_classes import CLASSES
from penumbra.offline.metrics.segmentation import IGNORE


def test_reads_every_frame_as_rgb_with_its_label(blocks):
    data = load_camvid(blocks, "train")
    assert data.names == [f"train{n}" for n in range(6)] and data.classes == CLASSES
    stored = cv2.imread(str(blocks / "train" / "train0.png"))
    np.testing.assert_array_equal(data.images[0], stored[..., ::-1])
    label = cv2.imread(str(blocks / "trainannot" / "train0.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(data.labels[0], np.where(label == 11, IGNORE, label))


def test_withheld_classes_are_ignored_and_the_rest_renumbered(blocks):
    data = load_camvid(blocks, "train", withhold=["sky", "pedestrian"])
    assert data.classes == tuple(c for c in CLASSES if c not in ("sky", "pedestrian"))
    everything = load_camvid(blocks, "train")
    for reduced, full in zip(data.labels, everything.labels, strict=True):
        names = np.array([*CLASSES] + ["void"] * (256 - len(CLASSES)))[full]
        gone = np.isin(names, ["sky", "pedestrian", "void"])
        assert (reduced[gone] == IGNORE).all()
        assert (np.array(data.classes)[reduced[~gone]] == names[~gone]).all()


def test_withholding_an_unknown_class_names_the_known_ones(blocks):
    with pytest.raises(PenumbraError, match=r"'unicorn'.*pedestrian, bicyclist"):
        load_camvid(blocks, "train", withhold=["unicorn"])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def cut_jpeg(path: Path) -> None:
    """OpenCV decodes a truncated JPEG without an error, the missing part grey."""
    path.write_bytes(cv2.imencode(".jpg", cv2.imread(str(path)))[1].tobytes()[:-200])


def rubbish(path: Path) -> None:
    path.write_bytes(b"not an image at all")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def unknown_value(path: Path) -> None:
    label = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    label[3, 5] = 42
    cv2.imwrite(str(path), label)


def three_channels(path: Path) -> None:
    cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_COLOR))


def other_size(path: Path) -> None:
    cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[:-1])


BREAKAGES = [
    ("train", cut, "not a complete JPEG or PNG"),
    ("train", cut_jpeg, "not a complete JPEG or PNG"),
    ("train", rubbish, "not a complete JPEG or PNG"),
    ("train", empty, "not a complete JPEG or PNG"),
    ("trainannot", cut, "not a complete JPEG or PNG"),
    ("trainannot", unknown_value, "unknown label 42"),
    ("trainannot", three_channels, "single-channel"),
    ("trainannot", other_size, "96x63, its image 96x64"),
    ("trainannot", os.remove, "No such file"),
]


@pytest.mark.parametrize(("place", "damage", "message"), BREAKAGES)
def test_a_bad_file_is_named_or_skipped_and_counted(blocks, place, damage, message):
    damage(blocks / place / "train2.png")
    with pytest.raises(PenumbraError, match=rf"{place}/train2\.png.*{message}.*--skip-bad"):
        load_camvid(blocks, "train")
    data = load_camvid(blocks, "train", skip_bad=True)
    assert "train2" not in data.names and len(data) == 5
    assert len(data.skipped) == 1 and "train2.png" in data.skipped[0]


def test_an_empty_a_missing_and_a_wholly_bad_folder(blocks, tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(PenumbraError, match=f"no image .* in {tmp_path}/train"):
        load_camvid(tmp_path, "train")
    with pytest.raises(PenumbraError, match=r"no folder .*nowhere/train"):
        load_camvid(tmp_path / "nowhere", "train")
    for path in (blocks / "test").iterdir():
        rubbish(path)
    with pytest.raises(PenumbraError, match=r"no usable frame in .*test"):
        load_camvid(blocks, "test", skip_bad=True)


@pytest.mark.data
def test_the_real_data_set_is_complete():
    folder = Path(os.environ.get("PENUMBRA_DATA", Path(__file__).parents[4] / "shared/data"))
    if not (folder / "camvid").is_dir():
        pytest.skip(f"no CamVid in {folder}")
    for split, count in (("train", 367), ("val", 101), ("test", 233)):
        data = load_camvid(folder / "camvid", split)
        assert len(data) == count
        assert {image.shape for image in data.images} == {(360, 480, 3)}
