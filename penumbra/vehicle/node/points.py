"""Depth as a point cloud: x, y, z and the standard deviation of z in metres, and colour."""

from __future__ import annotations

import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from sensor_msgs.msg import PointCloud2, PointField

NAMES = ("x", "y", "z", "rgb", "sigma")
POINT = np.dtype([(name, "<f4") for name in NAMES])
FIELDS = [
    PointField(name=name, offset=4 * place, datatype=PointField.FLOAT32, count=1)
    for place, name in enumerate(NAMES)
]


@dataclass(frozen=True)
class Intrinsics:
    """Intrinsics of the depth image, in its pixels."""

    fx: float
    fy: float
    cx: float
    cy: float

    @staticmethod
    def of_camera_info(info: Any) -> Intrinsics | None:
        """Intrinsics from P if set, otherwise from K; None if the camera is not calibrated."""
        for m, row in ((info.p, 4), (info.k, 3)):
            fx, cx, fy, cy = m[0], m[2], m[row + 1], m[row + 2]
            if fx > 0 and fy > 0 and np.isfinite([fx, fy, cx, cy]).all():
                return Intrinsics(float(fx), float(fy), float(cx), float(cy))
        return None

    @staticmethod
    def of_focal_length(
        focal_per_width: float, width: int, height: int, source_width: int, source_height: int
    ) -> Intrinsics:
        """Intrinsics for a source image with square pixels and a central principal point."""
        fx = focal_per_width * width
        fy = focal_per_width * source_width * height / source_height
        return Intrinsics(fx, fy, (width - 1) / 2, (height - 1) / 2)


def point_array(
    depth: np.ndarray, sigma: np.ndarray, rgb: np.ndarray, camera: Intrinsics, stride: int
) -> np.ndarray:
    """An organised cloud in the optical frame: x right, y down, z ahead.

    x = z (u - cx) / fx,   y = z (v - cy) / fy   at column u, row v
    """
    height, width = depth.shape
    z = depth[::stride, ::stride]
    points = np.empty(z.shape, POINT)
    points["x"] = z * ((np.arange(0, width, stride) - camera.cx) / camera.fx).astype(np.float32)
    rows = ((np.arange(0, height, stride) - camera.cy) / camera.fy).astype(np.float32)
    points["y"] = z * rows[:, None]
    points["z"] = z
    colour = rgb[::stride, ::stride].astype(np.uint32)
    packed = colour[..., 0] << 16 | colour[..., 1] << 8 | colour[..., 2]
    points["rgb"] = packed.view(np.float32)  # PCL's convention, which RViz reads
    points["sigma"] = sigma[::stride, ::stride]
    return points


def fill_cloud(message: PointCloud2, points: np.ndarray) -> PointCloud2:
    """Copy `points` into a message, keeping its header."""
    message.height, message.width = points.shape
    message.fields = FIELDS
    message.is_bigendian = False
    message.point_step = POINT.itemsize
    message.row_step = POINT.itemsize * points.shape[1]
    message.is_dense = bool(np.isfinite(points["z"]).all())
    data = array.array("B")  # rclpy takes it over without a copy
    data.frombytes(points.tobytes())
    message.data = data
    return message
