"""KITTI as a drive: raw or odometry layout, with time stamps, calibration and LiDAR depth."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from penumbra.bags.frames import Drive, DriveFrame, FrameSelection
from penumbra.bags.messages import SECOND, START_NS, CameraModel
from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file
from penumbra.offline.datasets.kitti import drives_in, read_depth

CAMERAS = {name: int(name[-1]) for name in
           ("image_02", "image_2", "image_00", "image_0", "image_03", "image_3",
            "image_01", "image_1")}  # fmt: skip
"""Folders and their camera numbers; the left colour camera is the default."""
_SUFFIXES = (".png", ".jpg", ".jpeg")
_DEPTH = "proj_depth"


def kitti_drive(
    folder: Path,
    sequence: str | None = None,
    camera: str | None = None,
    selection: FrameSelection | None = None,
) -> Drive:
    """The drive under `folder`, named by `sequence` if there are several."""
    drive = _chosen(folder, sequence)
    present = [name for name in CAMERAS if (drive / name).is_dir()]
    camera = camera or present[0]
    if camera not in present:
        raise PenumbraError(f"no {camera} in {drive}: it has {', '.join(present)}")
    is_raw = camera.startswith("image_0") and len(camera) == len("image_02")
    place = drive / camera / "data" if is_raw else drive / camera
    files = sorted(f for f in place.glob("*") if f.suffix.lower() in _SUFFIXES)
    if not files:
        raise PenumbraError(f"no image (PNG or JPEG) in {place}")
    clock = drive / camera / "timestamps.txt" if is_raw else drive / "times.txt"
    stamps = dict(zip(files, _stamps(clock, files), strict=True))
    calibration = drive.parent / "calib_cam_to_cam.txt" if is_raw else drive / "calib.txt"
    measured = drive / _DEPTH / "groundtruth" / camera
    files = (selection or FrameSelection()).of(files)
    values = _values(calibration)

    def frames() -> Iterator[DriveFrame]:
        for file in files:
            image = read_image_file(file, cv2.IMREAD_COLOR)
            height, width = image.shape[:2]
            model = _camera(values, calibration, CAMERAS[camera], width, height)
            depth = _depth(measured / f"{file.stem}.png", image)
            yield DriveFrame(stamps[file], image, file.read_bytes(), model, depth=depth)

    return Drive(frames(), len(files), {"source": f"KITTI {drive.name} {camera}"})


def _chosen(folder: Path, sequence: str | None) -> Path:
    if not folder.is_dir():
        raise PenumbraError(f"no folder {folder}")
    # Inside a drive, the folders of measured depth have the names of the cameras.
    drives = [d for d in drives_in(folder) if _DEPTH not in d.relative_to(folder).parts]
    # The folder may itself be a drive.
    drives = drives or [p for p in [folder] if any((p / name).is_dir() for name in CAMERAS)]
    if not drives:
        raise PenumbraError(
            f"no drive in {folder}: searched for image_02/data (raw) and image_2 (odometry)"
        )
    if sequence is not None:
        drives = [drive for drive in drives if drive.name == sequence] or drives
    if len(drives) != 1 or (sequence is not None and drives[0].name != sequence):
        names = ", ".join(drive.name for drive in drives)
        problem = f"no drive {sequence!r}" if sequence is not None else "several drives"
        raise PenumbraError(f"{problem} in {folder}: choose with --sequence from {names}")
    return drives[0]


def _stamps(clock: Path, files: list[Path]) -> list[int]:
    """One per file: by order if there are as many lines as files, else by the file's number."""
    if not clock.is_file():
        raise PenumbraError(f"no time stamps {clock}: it comes with KITTI's images")
    lines = clock.read_text().split("\n")
    read = [_nanoseconds(line, clock) for line in lines if line.strip()]
    if len(read) == len(files):
        return read
    numbers = [int(file.stem) if file.stem.isdigit() else -1 for file in files]
    if min(numbers) < 0 or max(numbers) >= len(read):
        raise PenumbraError(
            f"{clock} has {len(read)} lines for {len(files)} images in {files[0].parent}: they do"
            " not match"
        )
    return [read[number] for number in numbers]


def _nanoseconds(line: str, clock: Path) -> int:
    """Raw: date and time with nine decimals, in UTC. Odometry: seconds since the first frame."""
    try:
        match = re.fullmatch(r"(\d+-\d+-\d+ \d+:\d+:\d+)\.(\d{1,9})", line.strip())
        if match is None:
            return START_NS + round(float(line) * SECOND)
        seconds = calendar.timegm(time.strptime(match[1], "%Y-%m-%d %H:%M:%S"))
        return seconds * SECOND + int(match[2].ljust(9, "0"))
    except ValueError as error:
        raise PenumbraError(f"{clock}: {line.strip()!r} is not a time stamp of KITTI") from error


def _values(calibration: Path) -> dict[str, np.ndarray]:
    """The lines `NAME: numbers` of a camera calibration; empty if there is no file."""
    if not calibration.is_file():
        return {}
    values = {}
    for line in calibration.read_text().splitlines():
        name, _, rest = line.partition(":")
        try:
            values[name.strip()] = np.array(rest.split(), float)
        except ValueError:  # calib_time
            continue
    return values


def _camera(
    values: dict[str, np.ndarray], file: Path, number: int, width: int, height: int
) -> CameraModel | None:
    """From KITTI's P = K [I | t] of the rectified image, or K, D and R_rect of the original one.

    t is the translation from camera 0, the origin of the rig. In ROS the origin is the camera of
    the image (or the left one of a pair), hence P = K [I | 0].
    """
    if not values:
        return None
    is_raw = f"P_rect_0{number}" in values
    try:
        projection = values[f"P_rect_0{number}" if is_raw else f"P{number}"].reshape(3, 4)[:, :3]
        if not is_raw:
            return CameraModel.rectified(width, height, projection)
        original = tuple(values[f"S_0{number}"].astype(int))
        if (width, height) == original:
            intrinsics = values[f"K_0{number}"].reshape(3, 3)
            rotation = values[f"R_rect_0{number}"].reshape(3, 3)
            rectified = np.hstack([projection, np.zeros((3, 1))])
            distortion = tuple(values[f"D_0{number}"])
            return CameraModel(width, height, intrinsics, rectified, distortion, rotation)
        size = values[f"S_rect_0{number}"]
    except (KeyError, ValueError) as error:
        raise PenumbraError(
            f"{file} lacks P, S, K, D or R of camera {number}: is it a camera calibration of KITTI?"
        ) from error
    # The images have been scaled, and the camera with them.
    scale = np.diag([width / size[0], height / size[1], 1.0])
    return CameraModel.rectified(width, height, scale @ projection)


def _depth(file: Path, image: np.ndarray) -> np.ndarray | None:
    """Metres, NaN where not measured; None if the frame has no depth, as some of KITTI."""
    if not file.is_file():
        return None
    depth = read_depth(file)
    if depth.shape != image.shape[:2]:
        raise PenumbraError(
            f"{file} is {depth.shape[1]}x{depth.shape[0]}, its image {image.shape[1]}x"
            f"{image.shape[0]}: they must have the same size"
        )
    return np.where(depth > 0, depth, np.float32(np.nan))
