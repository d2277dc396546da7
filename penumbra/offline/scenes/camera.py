"""The camera of a rendered street, and the view it takes.

World axes: x to the right, y up, z along the street, in metres. Camera axes: x to the right, y up,
z into the image. The integer coordinates of a pixel are those of its centre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from penumbra.errors import PenumbraError

NEAR = 0.3
"""Distance of the near clipping plane, in metres."""


@dataclass(frozen=True)
class Pose:
    """Position and heading of a vehicle: x, z in metres, yaw in radians (positive to the right)."""

    x: float
    z: float
    yaw: float = 0.0


@dataclass(frozen=True)
class Camera:
    """A rectified stereo rig on a vehicle; the left camera is at the vehicle's pose.

    Args:
        width, height: of the image, in pixels.
        focal: focal length in pixels (None: 1.05 x width, about CamVid's 51 degrees).
        baseline: distance between the cameras, in metres.
        height_m: of the cameras above the road, in metres.
        pitch, roll: in radians; a positive pitch looks down.
        noise: standard deviation of the sensor noise, in grey levels.
        supersample: renders the colours on an n times finer grid and averages them. Labels and
            depth are always those of the pixel's centre.
    """

    width: int = 480
    height: int = 360
    focal: float | None = None
    baseline: float = 0.54
    height_m: float = 1.5
    pitch: float = 0.0
    roll: float = 0.0
    noise: float = 2.0
    supersample: int = 1

    def __post_init__(self) -> None:
        _check_integer("width", self.width, 8, 8192)
        _check_integer("height", self.height, 8, 8192)
        _check_integer("supersample", self.supersample, 1, 4)
        _check_number("focal", self.focal_px, 1.0, 1e6)
        _check_number("baseline", self.baseline, 0.0, 10.0)
        _check_number("height_m", self.height_m, 0.4, 6.0)
        _check_number("pitch", self.pitch, -0.8, 0.8)
        _check_number("roll", self.roll, -0.8, 0.8)
        _check_number("noise", self.noise, 0.0, 64.0)

    @classmethod
    def kitti(
        cls,
        width: int = 1242,
        height: int = 375,
        *,
        baseline: float = 0.54,
        height_m: float = 1.65,
        pitch: float = 0.0,
        roll: float = 0.0,
        noise: float = 2.0,
        supersample: int = 1,
    ) -> Camera:
        """KITTI's left colour camera (1242x375, 721.5 px, 0.54 m), scaled to `width`."""
        focal = 721.5 * width / 1242
        return cls(width, height, focal, baseline, height_m, pitch, roll, noise, supersample)

    @property
    def focal_px(self) -> float:
        """Focal length in pixels, by default 1.05 x width."""
        return 1.05 * self.width if self.focal is None else self.focal

    @property
    def centre(self) -> tuple[float, float]:
        """The principal point (cx, cy): the middle of the image."""
        return (self.width - 1) / 2, (self.height - 1) / 2

    def rays(self, scale: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Camera-space x of each column and y of each row on the plane z = 1."""
        cx, cy = self.centre
        columns = (np.arange(self.width * scale) + 0.5) / scale - 0.5
        rows = (np.arange(self.height * scale) + 0.5) / scale - 0.5
        return (columns - cx) / self.focal_px, (cy - rows) / self.focal_px

    def rotation(self, yaw: float = 0.0) -> np.ndarray:
        """The 3x3 rotation from camera axes to world axes: roll, then pitch, then yaw."""
        c, s = math.cos(self.roll), math.sin(self.roll)
        roll = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        c, s = math.cos(self.pitch), math.sin(self.pitch)
        pitch = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
        c, s = math.cos(yaw), math.sin(yaw)
        return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ pitch @ roll

    def project(self, points: np.ndarray, pose: Pose) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Column, row and depth in the left image of world `points` (..., 3)."""
        eye = np.array([pose.x, self.height_m, pose.z])
        x, y, z = np.moveaxis((points - eye) @ self.rotation(pose.yaw), -1, 0)
        cx, cy = self.centre
        return cx + self.focal_px * x / z, cy - self.focal_px * y / z, z


@dataclass(frozen=True)
class View:
    """An image and its ground truth; labels and depth are those of the pixels' centres."""

    image: np.ndarray
    """uint8 (height, width, 3), BGR."""
    labels: np.ndarray
    """uint8 (height, width): indices into CLASSES, or VOID."""
    depth: np.ndarray
    """float32 (height, width): metres along the optical axis; inf in the sky."""
    anomaly: np.ndarray
    """bool (height, width): pixels of an object without a class."""

    def disparity(self, camera: Camera) -> np.ndarray:
        """d = f b / z in pixels: column u of the left image is column u - d of the right one."""
        return np.float32(camera.focal_px * camera.baseline) / self.depth


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise PenumbraError(f"camera: {name} is {value!r}: give an integer")
    if not least <= value <= most:
        raise PenumbraError(f"camera: {name} is {value}: give {least} to {most}")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, (int, float, np.number)) or not least <= value <= most:
        raise PenumbraError(f"camera: {name} is {value!r}: give {least:g} to {most:g}")
