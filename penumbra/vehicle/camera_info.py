"""sensor_msgs/CameraInfo without ROS: any object with the same fields works."""

from __future__ import annotations

import copy
from typing import Any, Protocol, TypeVar

import numpy as np

from penumbra.vehicle.conversions import ConversionError
from penumbra.vehicle.geometry import PinholeCamera


class CameraInfoMessage(Protocol):
    """The fields of sensor_msgs/CameraInfo that are used here."""

    width: int
    height: int
    k: Any
    p: Any
    binning_x: int
    binning_y: int
    roi: Any


Info = TypeVar("Info", bound=CameraInfoMessage)


def camera_of(info: CameraInfoMessage) -> PinholeCamera | None:
    """The focal length of a sensor_msgs/CameraInfo; None if the camera is not calibrated.

    That of the rectified image (P) if given, otherwise that of the raw image (K).
    """
    width = int(info.roi.width or info.width)
    for focal in (float(info.p[0]), float(info.k[0])):
        if width > 0 and np.isfinite(focal) and focal > 0:
            return PinholeCamera(focal, width)
    return None


def scaled_camera_info(info: Info, width: int, height: int) -> Info:
    """A copy of a sensor_msgs/CameraInfo for the image scaled to `width` x `height`.

        x' = (x - x_offset + ½) width' / width - ½

    because pixel centres are at integers and images are scaled about their edges. The new K and P
    include the region of interest and binning of the message.
    """
    source_width = int(info.roi.width or info.width)
    source_height = int(info.roi.height or info.height)
    if min(source_width, source_height, width, height) < 1:
        raise ConversionError(
            "camera_info",
            f"CameraInfo for {source_width}x{source_height} cannot be scaled to {width}x{height}: "
            "the camera driver must set width and height",
        )
    across, down = width / source_width, height / source_height
    scale = np.array(
        [
            [across, 0, (0.5 - info.roi.x_offset) * across - 0.5],
            [0, down, (0.5 - info.roi.y_offset) * down - 0.5],
            [0, 0, 1],
        ]
    )
    scaled = copy.deepcopy(info)
    scaled.width, scaled.height = width, height
    with np.errstate(invalid="ignore", over="ignore"):  # non-finite values stay so
        scaled.k = (scale @ np.reshape(info.k, (3, 3))).ravel()
        scaled.p = (scale @ np.reshape(info.p, (3, 4))).ravel()
    scaled.binning_x = scaled.binning_y = 0
    scaled.roi = type(info.roi)()
    return scaled
