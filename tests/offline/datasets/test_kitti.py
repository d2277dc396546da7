"""Stereo pairs and depth in every layout, and errors that name invalid files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.kitti import find_measured, find_pairs, read_depth, readable

MATRIX = "{f} 0 48 {shift} 0 {f} 16 0 0 0 1 0"


def image(path: Path, size=(32, 96)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(str(path))).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), pixels)


def depth(path: Path, size=(32, 96)) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(1).integers(0, 20000, size, dtype=np.uint16)
    assert cv2.imwrite(str(path), values)
    return values


def calibration(path: Path, name: str, baseline: float = 0.5) -> None:
    """The left camera is 6 cm beside the origin of the rig, as KITTI's colour cameras are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    f = 60.0
    left = MATRIX.format(f=f, shift=0.06 * f)
    right = MATRIX.format(f=f, shift=(0.06 - baseline) * f)
    path.write_text(f"{name.format(2)}: {left}\n{name.format(3)}: {right}\n")


def raw(root: Path, suffix: str, frames: int = 2) -> Path:
    date = root / "2011_09_26"
    calibration(date / "calib_cam_to_cam.txt", "P_rect_0{}")
    text = (date / "calib_cam_to_cam.txt").read_text()
    (date / "calib_cam_to_cam.txt").write_text(text + "S_rect_02: 1.92e+02 6.4e+01\n")
    drive = date / "2011_09_26_drive_0007_sync"
    for number in range(frames):
        for camera in ("image_02", "image_03"):
            image(drive / camera / "data" / f"{number:010d}{suffix}")
    depth(drive / "proj_depth" / "groundtruth" / "image_02" / "0000000001.png")
    return root


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("inner", ["", "2011_09_26", "2011_09_26/2011_09_26_drive_0007_sync"])
def test_raw_layout(tmp_path, suffix, inner):
    folder = raw(tmp_path, suffix) / inner
    pairs = find_pairs(folder)
    assert [pair.left.name for pair in pairs] == [f"000000000{n}{suffix}" for n in range(2)]
    assert all("image_03" in str(pair.right) for pair in pairs)
    # For images of 192 pixels, as in S_rect; these have been scaled down to 96.
    assert pairs[0].calibration.camera.focal_per_width == pytest.approx(60 / 192)
    assert pairs[0].calibration.baseline_m == pytest.approx(0.5)
    (measured,) = find_measured(folder)
    assert measured.left == pairs[1].left and measured.depth.name == "0000000001.png"


@pytest.mark.parametrize(("left", "right"), [("image_2", "image_3"), ("image_0", "image_1")])
def test_odometry_layout(tmp_path, left, right):
    for sequence in ("00", "01"):
        folder = tmp_path / "sequences" / sequence
        calibration(folder / "calib.txt", "P{}", baseline=0.54)
        text = (folder / "calib.txt").read_text()
        (folder / "calib.txt").write_text(text + text.replace("P2", "P0").replace("P3", "P1"))
        for camera in (left, right):
            image(folder / camera / "000000.png")
    pairs = find_pairs(tmp_path)
    assert [pair.left.parts[-3:] for pair in pairs] == [
        ("00", left, "000000.png"),
        ("01", left, "000000.png"),
    ]
    assert pairs[0].right.parent.name == right
    assert pairs[0].calibration.baseline_m == pytest.approx(0.54)
    assert pairs[0].calibration.camera.focal_per_width == pytest.approx(60 / 96)


def test_plain_folders_with_and_without_calibration_and_depth(tmp_path):
    for name in ("a", "b", "c"):
        image(tmp_path / "left" / f"{name}.jpg")
    for name in ("a", "b"):
        image(tmp_path / "right" / f"{name}.png")
    depth(tmp_path / "gt_depth_map" / "b.png")
    calibration(tmp_path / "calib" / "b.txt", "P{}")
    first, second = find_pairs(tmp_path)  # c has no right image
    assert (first.left.name, first.right.name) == ("a.jpg", "a.png")
    assert first.calibration is None and first.depth is None
    assert second.calibration.baseline_m == pytest.approx(0.5)
    assert find_measured(tmp_path) == [second]


def test_depth_is_metres_times_256(tmp_path):
    values = depth(tmp_path / "d.png")
    np.testing.assert_array_equal(read_depth(tmp_path / "d.png"), values / np.float32(256))
    image(tmp_path / "no.png")
    with pytest.raises(PenumbraError, match=r"no.png is not a depth map.*uint8"):
        read_depth(tmp_path / "no.png")


def test_a_folder_without_data_names_the_known_layouts(tmp_path):
    with pytest.raises(PenumbraError, match="no folder .*nowhere"):
        find_pairs(tmp_path / "nowhere")
    for find, text in ((find_pairs, "image_03/data"), (find_measured, "gt_depth_map/")):
        with pytest.raises(PenumbraError, match=text):
            find(tmp_path)


def test_a_calibration_without_its_lines_is_named(tmp_path):
    image(tmp_path / "left" / "a.png")
    image(tmp_path / "right" / "a.png")
    (tmp_path / "calib.txt").write_text("P2: 1 2 3\n")
    with pytest.raises(PenumbraError, match=r"calib.txt has no line 'P2: …' with twelve numbers"):
        find_pairs(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def other_size(path: Path) -> None:
    image(path, size=(32, 90))


@pytest.mark.parametrize(
    ("spoil", "which", "text"),
    [
        (cut, "right/b.png", "right/b.png is not a complete"),
        (other_size, "right/b.png", "right/b.png is 90x32"),
        (cut, "depth/b.png", "depth/b.png is not a complete"),
        (image, "depth/b.png", "depth/b.png is not a depth map"),
    ],
)
def test_bad_files_are_named_or_skipped(tmp_path, spoil, which, text):
    for name in ("a", "b", "c"):
        image(tmp_path / "left" / f"{name}.png")
        image(tmp_path / "right" / f"{name}.png")
        depth(tmp_path / "depth" / f"{name}.png")
    pairs = find_pairs(tmp_path)
    assert readable(pairs, skip_bad=False) == (pairs, [])
    spoil(tmp_path / which)
    with pytest.raises(PenumbraError, match=rf"{text}.*--skip-bad"):
        readable(pairs, skip_bad=False)
    kept, skipped = readable(pairs, skip_bad=True)
    assert kept == [pairs[0], pairs[2]]
    assert len(skipped) == 1 and text in skipped[0]
    with pytest.raises(PenumbraError, match="all 1 were skipped"):
        readable([pairs[1]], skip_bad=True)


def test_the_real_data(data_dir):
    folder = data_dir / "kitti"
    counts = {name: len(find_pairs(folder / name)) for name in ("stereo_grey", "stereo_colour")}
    assert counts == {"stereo_grey": 203, "stereo_colour": 15}
    measured = find_measured(folder / "raw")
    assert len(measured) == 78
    camera = measured[0].calibration.camera
    assert (camera.focal_px, camera.width_px) == (pytest.approx(721.5377), 1242)
    metres = read_depth(measured[0].depth)
    known = metres > 0
    assert 0.02 < known.mean() < 0.06 and metres[known].min() > 1 and metres.max() < 90


def test_no_test_frame_is_among_the_training_pairs(data_dir):
    """By what they show: the same street a second later correlates with 0.9, other ones do not."""
    folder = data_dir / "kitti"

    def small(path: Path) -> np.ndarray:
        image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        small = cv2.resize(image, (62, 19), interpolation=cv2.INTER_AREA).astype(float).ravel()
        small -= small.mean()
        return small / np.linalg.norm(small)

    pairs = find_pairs(folder / "stereo_grey") + find_pairs(folder / "stereo_colour")
    training = np.stack([small(pair.left) for pair in pairs])
    test = np.stack([small(frame.left) for frame in find_measured(folder / "raw")])
    assert np.diag(test @ test.T, 10).mean() > 0.85
    assert (training @ test.T).max() < 0.7
