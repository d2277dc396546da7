"""What looks at a street, and what it sees.

World axes: x to the right, y up, z along the street, in metres. Camera axes are the same, seen
from the lens: x right, y up, z into the picture. A pixel's integer coordinates are its centre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from penumbra.errors import PenumbraError

NEAR = 0.3
"""Metres from the lens within which nothing is drawn."""


@dataclass(frozen=True)
class Pose:
    """Where a vehicle stands: x, z in metres, yaw in radians (positive looks to the right)."""

    x: float
    z: float
    yaw: float = 0.0


@dataclass(frozen=True)
class Camera:
    """A rectified stereo rig on a vehicle; the left eye stands at the vehicle's pose.

    `focal` is in pixels (None: 1.05 x width, about CamVid's 51 degrees), `pitch` and `roll` in
    radians (positive pitch looks down), `baseline` and `height_m` in metres. `noise` is the
    sensor's standard deviation in grey levels. `supersample` n renders the colours on an n times
    finer grid and averages; labels and depth are always those of the pixel's centre.
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
        for name, least, most in (("width", 8, 8192), ("height", 8, 8192), ("supersample", 1, 4)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise PenumbraError(f"camera: {name} is {value!r}: give a whole number")
            if not least <= value <= most:
                raise PenumbraError(f"camera: {name} is {value}: give {least} to {most}")
        if self.focal is None:
            object.__setattr__(self, "focal", 1.05 * self.width)
        for name, least, most in (
            ("focal", 1.0, 1e6),
            ("baseline", 0.0, 10.0),
            ("height_m", 0.4, 6.0),
            ("pitch", -0.8, 0.8),
            ("roll", -0.8, 0.8),
            ("noise", 0.0, 64.0),
        ):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not least <= value <= most:
                raise PenumbraError(f"camera: {name} is {value!r}: give {least:g} to {most:g}")

    @classmethod
    def kitti(cls, width: int = 1242, height: int = 375, **changes: float) -> Camera:
        """KITTI's left colour camera (1242x375, 721.5 px, 0.54 m), scaled to `width`."""
        rig = {"focal": 721.5 * width / 1242, "baseline": 0.54, "height_m": 1.65}
        return cls(width, height, **{**rig, **changes})

    @property
    def centre(self) -> tuple[float, float]:
        """The principal point (cx, cy): the middle of the picture."""
        return (self.width - 1) / 2, (self.height - 1) / 2

    def rays(self, scale: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Camera-space x of each column and y of each row on the plane z = 1."""
        cx, cy = self.centre
        columns = (np.arange(self.width * scale) + 0.5) / scale - 0.5
        rows = (np.arange(self.height * scale) + 0.5) / scale - 0.5
        return (columns - cx) / self.focal, (cy - rows) / self.focal

    def rotation(self, yaw: float = 0.0) -> np.ndarray:
        """The 3x3 rotation from camera axes to world axes: roll, then pitch, then yaw."""
        c, s = math.cos(self.roll), math.sin(self.roll)
        roll = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        c, s = math.cos(self.pitch), math.sin(self.pitch)
        pitch = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
        c, s = math.cos(yaw), math.sin(yaw)
        return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ pitch @ roll

    def project(self, points: np.ndarray, pose: Pose) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Columns, rows and depths at which the left eye sees world `points` (..., 3)."""
        eye = np.array([pose.x, self.height_m, pose.z])
        x, y, z = np.moveaxis((points - eye) @ self.rotation(pose.yaw), -1, 0)
        cx, cy = self.centre
        return cx + self.focal * x / z, cy - self.focal * y / z, z


@dataclass(frozen=True)
class View:
    """One picture and its exact truth; labels and depth are those of the pixels' centres."""

    image: np.ndarray
    """uint8 (height, width, 3), BGR."""
    labels: np.ndarray
    """uint8 (height, width): places in CLASSES, or VOID."""
    depth: np.ndarray
    """float32 (height, width): metres along the optical axis; inf in the sky."""
    anomaly: np.ndarray
    """bool (height, width): where an object stands that no model was trained on."""

    def disparity(self, camera: Camera) -> np.ndarray:
        """d = f b / z in pixels: a left pixel at column u is seen by the right eye at u - d."""
        return np.float32(camera.focal * camera.baseline) / self.depth
