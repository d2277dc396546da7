"""Focal length and scaling of CameraInfo, against OpenCV's own scaling of an image."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from sensor_msgs.msg import CameraInfo, RegionOfInterest

from penumbra.vehicle.camera_info import camera_of, scaled_camera_info
from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.geometry import PinholeCamera


def camera_info(width=640, height=480, focal=500.0, **changes):
    k = [focal, 0.0, 310.0, 0.0, 1.02 * focal, 250.0, 0.0, 0.0, 1.0]
    p = [1.1 * focal, 0.0, 312.0, -30.0, 0.0, 1.1 * focal, 248.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    return CameraInfo(width=width, height=height, k=k, p=p, **changes)


def test_camera():
    assert camera_of(camera_info()) == PinholeCamera(550.0, 640)  # of the rectified image
    raw = camera_info()
    raw.p = [0.0] * 12
    assert camera_of(raw) == PinholeCamera(500.0, 640)
    cropped = camera_info(roi=RegionOfInterest(x_offset=20, y_offset=10, width=320, height=240))
    assert camera_of(cropped) == PinholeCamera(550.0, 320)
    for focal in (0.0, -1.0, np.nan, np.inf):
        assert camera_of(camera_info(focal=focal)) is None
    assert camera_of(camera_info(width=0)) is None
    assert camera_of(CameraInfo()) is None


@pytest.mark.parametrize("width, height", [(320, 240), (1280, 960), (480, 200), (640, 480)])
def test_points_project_to_the_same_place_in_the_scaled_image(width, height):
    """Against OpenCV's scaling of an image whose pixels are their coordinates."""
    info = camera_info()
    scaled = scaled_camera_info(info, width, height)
    assert (scaled.width, scaled.height) == (width, height)
    assert scaled.header == info.header
    columns, rows = np.meshgrid(np.arange(640.0), np.arange(480.0))
    point = np.array([0.3, -0.2, 2.0, 1.0])
    for name, shape in (("k", (3, 3)), ("p", (3, 4))):
        before = np.reshape(getattr(info, name), shape) @ point[: shape[1]]
        after = np.reshape(getattr(scaled, name), shape) @ point[: shape[1]]
        x, y = after[:2] / after[2]
        for coordinates, expected in ((columns, before[0]), (rows, before[1])):
            small = cv2.resize(coordinates.astype(np.float32), (width, height))
            left, top = int(x), int(y)
            weights = np.outer([1 - y + top, y - top], [1 - x + left, x - left])
            found = (small[top : top + 2, left : left + 2] * weights).sum()
            # Float32 coordinates of a few hundred are accurate to 3e-5, OpenCV's weights to 1/2048.
            assert found == pytest.approx(expected / before[2], abs=2e-3)
    assert info.k[0] == 500.0  # unmodified


def test_scaling_includes_a_region_of_interest_and_binning():
    region = RegionOfInterest(x_offset=100, y_offset=40, width=320, height=200, do_rectify=True)
    info = camera_info(roi=region, binning_x=2, binning_y=2)
    scaled = scaled_camera_info(info, 160, 100)
    assert (scaled.binning_x, scaled.binning_y) == (0, 0)
    assert scaled.roi == RegionOfInterest()
    # The left edge of the region's first pixel, 100 on the sensor, is that of the scaled image.
    assert scaled.k[2] == pytest.approx((310 - 100 + 0.5) / 2 - 0.5)
    assert scaled.k[5] == pytest.approx((250 - 40 + 0.5) / 2 - 0.5)
    assert scaled.p[3] == pytest.approx(-15.0)
    assert camera_of(scaled).focal_per_width == camera_of(info).focal_per_width


def test_a_camera_info_without_size_is_rejected():
    with pytest.raises(ConversionError, match="must set width and height") as caught:
        scaled_camera_info(CameraInfo(), 320, 240)
    assert caught.value.reason == "camera_info"
    uncalibrated = scaled_camera_info(CameraInfo(width=640, height=480), 320, 240)
    assert not np.any(uncalibrated.k)
