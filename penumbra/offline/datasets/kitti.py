"""Stereo pairs and measured depth, in the folder layouts of KITTI.

- KITTI raw: `DATE/calib_cam_to_cam.txt`, `DATE/DRIVE/image_02/data` (left) and `image_03/data`,
  LiDAR in `DRIVE/proj_depth/groundtruth/image_02`;
- KITTI odometry: `sequences/NN/calib.txt`, `image_2` and `image_3`, or grey `image_0`, `image_1`;
- plain folders: `left`, `right`, depth of the left images in `gt_depth_map` or `depth`, of the
  right ones in `depth_right`, camera calibration in `calib.txt` or `calib/NAME.txt` (`P2`, `P3`).

Images are PNG or JPEG. Depth is a 16-bit PNG of metres x 256; 0 means not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file
from penumbra.vehicle.geometry import PinholeCamera

_SUFFIXES = (".png", ".jpg", ".jpeg")
# Left and right folder of a rig, and the numbers of their cameras.
_RAW = (("image_02", "image_03", 2, 3), ("image_00", "image_01", 0, 1))
_ODOMETRY = (("image_2", "image_3", 2, 3), ("image_0", "image_1", 0, 1))


@dataclass(frozen=True)
class StereoCalibration:
    """A rectified rig: the left camera, and the baseline (None: unknown)."""

    camera: PinholeCamera
    baseline_m: float | None


@dataclass(frozen=True)
class KittiRecording:
    """The files of one frame: the left image, and the others if they exist."""

    left: Path
    right: Path | None = None
    depth: Path | None = None
    depth_right: Path | None = None
    calibration: StereoCalibration | None = None

    def files(self) -> list[Path]:
        """All files of the frame."""
        return [f for f in (self.left, self.right, self.depth, self.depth_right) if f is not None]

    def stereo_pair(self) -> tuple[Path, Path]:
        """The left and the right image; PenumbraError without a right one."""
        if self.right is None:
            raise PenumbraError(f"{self.left} has no right image")
        return self.left, self.right


def find_pairs(folder: Path) -> list[KittiRecording]:
    """All stereo pairs under `folder`, sorted by drive and time."""
    pairs = [found for found in _recordings(folder) if found.right is not None]
    if not pairs:
        raise PenumbraError(
            f"no stereo pairs in {folder}: searched for left/ and right/, image_02/data and "
            "image_03/data (raw), image_2 and image_3 or image_0 and image_1 (odometry)"
        )
    return pairs


def find_measured(folder: Path) -> list[KittiRecording]:
    """All images under `folder` with measured depth."""
    measured = [found for found in _recordings(folder) if found.depth is not None]
    if not measured:
        raise PenumbraError(
            f"no measured depth in {folder}: searched for gt_depth_map/ or depth/ beside left/ and "
            "proj_depth/groundtruth/image_02 beside image_02 (raw)"
        )
    return measured


def read_depth(path: Path) -> np.ndarray:
    """Depth in metres, float32; 0 where not measured."""
    image = read_image_file(path, cv2.IMREAD_UNCHANGED)
    if image.dtype != np.uint16 or image.ndim != 2:
        raise PenumbraError(
            f"{path} is not a depth map (one channel, 16 bit, metres x 256) but "
            f"{image.dtype} of shape {image.shape}"
        )
    return image.astype(np.float32) / np.float32(256)


def readable(
    recordings: list[KittiRecording],
    skip_bad: bool,
    progress: Callable[[Iterable[str | None]], Iterable[str | None]] = iter,
) -> tuple[list[KittiRecording], list[str]]:
    """The recordings with readable files of one size, and a line for each other one.

    Without `skip_bad` the first bad recording is an error.
    """
    kept, skipped = [], []
    with ThreadPoolExecutor(4) as pool:  # OpenCV releases the GIL while it decodes
        for found, fault in zip(recordings, progress(pool.map(_fault, recordings)), strict=True):
            if fault is None:
                kept.append(found)
            elif skip_bad:
                skipped.append(fault)
            else:
                pool.shutdown(cancel_futures=True)
                raise PenumbraError(f"{fault} (--skip-bad skips such frames)")
    if not kept:
        raise PenumbraError(f"no usable frame: all {len(skipped)} were skipped, e.g. {skipped[0]}")
    return kept, skipped


def _fault(recording: KittiRecording) -> str | None:
    try:
        shapes = {}
        for file in recording.files():
            is_depth = file in (recording.depth, recording.depth_right)
            image = read_depth(file) if is_depth else read_image_file(file, cv2.IMREAD_GRAYSCALE)
            shapes[file] = image.shape
        for file, shape in shapes.items():
            if shape != shapes[recording.left]:
                raise PenumbraError(
                    f"{file} is {shape[1]}x{shape[0]}, {recording.left} is "
                    f"{shapes[recording.left][1]}x{shapes[recording.left][0]}: they must "
                    "have the same size"
                )
    except PenumbraError as error:
        return str(error)
    return None


def _recordings(folder: Path) -> Iterator[KittiRecording]:
    folder = Path(folder)
    if not folder.is_dir():
        raise PenumbraError(f"no folder {folder}")
    if (folder / "left").is_dir():
        yield from _plain(folder)
        return
    for drive in drives_in(folder):
        for left, right, first, second in (*_RAW, *_ODOMETRY):
            if not (drive / left).is_dir():
                continue
            is_raw = len(left) == len("image_02")
            inner = Path("data") if is_raw else Path()
            file = drive.parent / "calib_cam_to_cam.txt" if is_raw else drive / "calib.txt"
            name = "P_rect_0{}" if is_raw else "P{}"
            image = _first(drive / left / inner)
            calibration = _calibration(file, name.format(first), name.format(second), image)
            measured = drive / "proj_depth" / "groundtruth" / left
            yield from _matched(
                drive / left / inner, drive / right / inner, measured, None, {}, calibration
            )
            break  # the grey cameras show the same scene as the colour cameras


def _plain(folder: Path) -> Iterator[KittiRecording]:
    depth = folder / "depth" if (folder / "depth").is_dir() else folder / "gt_depth_map"
    images = _by_stem(folder / "left")
    files = {stem: folder / "calib" / f"{stem}.txt" for stem in images}
    own = {stem: _calibration(file, "P2", "P3", images[stem]) for stem, file in files.items()}
    common = _calibration(folder / "calib.txt", "P2", "P3", _first(folder / "left"))
    right, depth_right = folder / "right", folder / "depth_right"
    yield from _matched(folder / "left", right, depth, depth_right, own, common)


def drives_in(folder: Path) -> list[Path]:
    """The folders that contain `image_02` or the like, up to three levels below `folder`."""
    lefts = {left for left, *_ in (*_RAW, *_ODOMETRY)}
    levels = ("*", "*/*", "*/*/*", "*/*/*/*")
    return sorted({found.parent for level in levels for found in folder.glob(level)
                   if found.name in lefts and found.is_dir()})  # fmt: skip


def _matched(
    left: Path,
    right: Path,
    depth: Path,
    depth_right: Path | None,
    own: Mapping[str, StereoCalibration | None],
    common: StereoCalibration | None,
) -> Iterator[KittiRecording]:
    """Files of the same stem. A missing one is no error: LiDAR depth lacks a few frames."""
    rights, depths = _by_stem(right), _by_stem(depth)
    depths_right = _by_stem(depth_right) if depth_right else {}
    for stem, image in _by_stem(left).items():
        yield KittiRecording(
            image,
            rights.get(stem),
            depths.get(stem),
            depths_right.get(stem),
            own.get(stem) or common,
        )


def _by_stem(place: Path) -> dict[str, Path]:
    if not place.is_dir():
        return {}
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in _SUFFIXES)
    return {file.stem: file for file in files}


def _first(place: Path) -> Path | None:
    return next(iter(_by_stem(place).values()), None)


def _calibration(
    file: Path, first: str, second: str, image: Path | None
) -> StereoCalibration | None:
    """From the projection matrices P = K [I | t] of the left and the right camera.

    Both t are in the coordinates of the rig, so the baseline is the difference of P[0, 3] / f.
    """
    if image is None or not file.is_file():
        return None
    lines = (line.partition(":") for line in file.read_text().splitlines())
    values = {name.strip(): rest.split() for name, _, rest in lines}
    try:
        left = np.array(values[first], float).reshape(3, 4)
        right = np.array(values[second], float).reshape(3, 4) if second in values else None
    except (KeyError, ValueError) as error:
        raise PenumbraError(
            f"{file} has no line '{first}: …' with twelve numbers: is it a calibration of KITTI?"
        ) from error
    baseline = None if right is None else float((left[0, 3] - right[0, 3]) / left[0, 0])
    # The image width of the calibration: given in raw, otherwise that of the image.
    size = values.get(first.replace("P_rect", "S_rect")) if "rect" in first else None
    width = round(float(size[0])) if size else read_image_file(image, cv2.IMREAD_GRAYSCALE).shape[1]
    return StereoCalibration(PinholeCamera(float(left[0, 0]), width), baseline)
