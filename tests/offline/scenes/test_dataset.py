"""Rendered data sets: layouts, interruption and continuation, and their readers."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid import load_camvid
from penumbra.offline.datasets.kitti import find_pairs, read_depth
from penumbra.offline.scenes import Camera, render, street
from penumbra.offline.scenes.dataset import RenderingPlan, kitti_plan, write_scenes

SMALL = RenderingPlan("stereo", 96, 32)


def content(folder) -> dict[str, bytes]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.slow
def test_camvid_layout_is_readable_for_training(tmp_path, capsys):
    out = tmp_path / "streets"
    command = ["scenes", "--out", str(out), "--frames", "10", "--size", "64x48", "--workers", "2"]
    assert main(command) == 0
    assert "10 frames rendered, 0 existed" in capsys.readouterr().out
    sizes = {split: len(load_camvid(out, split)) for split in ("train", "val", "test")}
    assert sizes == {"train": 8, "val": 1, "test": 1}
    view = render(street(9), Camera(64, 48))  # frame 9 is the test frame
    data = load_camvid(out, "test")
    np.testing.assert_array_equal(data.images[0], view.image[..., ::-1])
    known = view.labels < 11
    np.testing.assert_array_equal(data.labels[0][known], view.labels[known])
    train = ["train", "segnet", "--data", str(out), "--run", str(tmp_path / "run"), "--steps", "1"]
    assert main([*train, "--width", "0.0625", "--crop", "64x32", "--batch", "2"]) == 0


@pytest.mark.slow
def test_existing_frames_are_kept_and_missing_ones_rendered(tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    assert write_scenes(SMALL, 3, first, workers=1) == 3
    whole = content(first)
    assert write_scenes(SMALL, 2, again, workers=2) == 2
    (again / "depth" / "000001.png").unlink()  # as after an interruption within a frame
    before = (again / "left" / "000000.png").stat().st_mtime_ns
    assert write_scenes(SMALL, 3, again, workers=2) == 2
    assert content(again) == whole  # by one process or two, in one run or several
    assert (again / "left" / "000000.png").stat().st_mtime_ns == before
    assert write_scenes(SMALL, 3, again) == 0


def test_stereo_layout_has_exact_depth_and_camera_calibration(tmp_path):
    write_scenes(SMALL, 1, tmp_path / "s", workers=1)
    (pair,) = find_pairs(tmp_path / "s")
    assert pair.calibration.baseline_m == pytest.approx(0.54)
    assert pair.calibration.camera.focal_per_width == pytest.approx(721.5 / 1242)
    depth = read_depth(pair.depth)
    assert depth.shape == (32, 96) and depth.min() > 0
    assert depth.max() == np.float32(65535 / 256)  # the sky
    assert read_depth(pair.depth_right).shape == depth.shape
    assert cv2.imread(str(pair.right)).shape == (32, 96, 3)


def test_other_seeds_are_other_streets(tmp_path):
    for seed in (0, 1):
        write_scenes(RenderingPlan("stereo", 96, 32, seed), 1, tmp_path / str(seed), workers=1)
    one, two = (cv2.imread(str(tmp_path / str(seed) / "left" / "000000.png")) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_a_folder_with_other_content_is_left_unchanged(tmp_path):
    write_scenes(SMALL, 1, tmp_path / "s", workers=1)
    with pytest.raises(PenumbraError, match=r"holds other scenes \(layout stereo, width 96"):
        write_scenes(RenderingPlan("stereo", 96, 32, seed=4), 1, tmp_path / "s")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(PenumbraError, match="not empty"):
        write_scenes(SMALL, 1, tmp_path / "mine")
    assert content(tmp_path / "mine") == {"letter.txt": b"dear"}
    assert json.loads((tmp_path / "s" / "scenes.json").read_text())["width"] == 96


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--frames", "0"], "0 frames"),
        (["--frames", "5"], "at least 10, one for each split"),
        (["--frames", "20", "--size", "480"], "write it as WIDTHxHEIGHT"),
        (["--frames", "20", "--size", "4x4"], "camera: width is 4"),
        (["--frames", "20", "--seed", "-1"], "a seed of -1"),
    ],
)
def test_invalid_arguments_give_one_line(tmp_path, capsys, words, text):
    assert main(["scenes", "--out", str(tmp_path / "s"), "--workers", "1", *words]) == 2
    error = capsys.readouterr().err
    assert text in error.splitlines()[-1]


def test_rendered_pairs_for_training_are_a_little_larger_than_its_images():
    plan = kitti_plan((128, 384))
    assert (plan.width, plan.height) == (461, 139)


def test_some_pairs_are_in_dense_traffic(tmp_path):
    """Near depth in the middle of the image, where a free road has none."""
    write_scenes(SMALL, 8, tmp_path / "s", workers=1)
    near = [
        np.median(read_depth(pair.depth)[14:22, 40:56]) < 16 for pair in find_pairs(tmp_path / "s")
    ]
    assert 1 <= sum(near) <= 7
