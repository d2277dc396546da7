"""Depth in metres from disparity, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penumbra.errors import PenumbraError

if TYPE_CHECKING:
    from penumbra.bundle import DepthSpec


@dataclass(frozen=True)
class PinholeCamera:
    """Focal length and image width in pixels, as in `CameraInfo`."""

    focal_px: float
    width_px: int

    @property
    def focal_per_width(self) -> float:
        """Focal length as a fraction of the image width; scaling the image does not change it."""
        return self.focal_px / self.width_px


def depth_of(
    disparity: np.ndarray, std: np.ndarray, scale: DepthSpec, camera: PinholeCamera | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depth z in metres, its standard deviation, and a confidence, from disparity d and its std σ.

        z = f b / d,   σ_z = |dz/dd| σ = z σ / d   (first order),   confidence = 1 - σ_z / z

    with f the focal length and d the disparity, both as fractions of the image width, and b the
    baseline in metres. Disparity is clipped from below at f b / z_max: beyond that (and for d ≤ 0)
    depth is z_max, with σ_z evaluated there.
    """
    focal = scale.focal_per_width if camera is None else camera.focal_per_width
    if not (np.isfinite(focal) and focal > 0):
        raise PenumbraError(
            f"invalid focal length of {focal:g} image widths: check the camera calibration "
            "(CameraInfo, K[0])"
        )
    product = np.float32(focal * scale.baseline_m)
    # Few operations, mostly in place: a fifth of the time of the direct formula.
    clipped = np.maximum(disparity, product / np.float32(scale.max_depth_m))
    depth = np.float32(1) / clipped
    relative = std * depth  # σ / d, which is also σ_z / z
    confidence = np.subtract(np.float32(1), relative, out=clipped)
    np.maximum(confidence, np.float32(0), out=confidence)
    depth *= product
    relative *= depth
    return depth, relative, confidence
