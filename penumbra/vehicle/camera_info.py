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


# Beyond this ratio to the training data the field of view is another one, and depth means nothing.
MOST_FOCAL_RATIO = 2.0

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


def size_of(info: CameraInfoMessage) -> tuple[int, int]:
    """Height and width of the image that a sensor_msgs/CameraInfo describes."""
    width, height = info.roi.width or info.width, info.roi.height or info.height
    return int(height // max(1, info.binning_y)), int(width // max(1, info.binning_x))


def mismatch(
    info: CameraInfoMessage, image: tuple[int, int], focal_per_width: float | None
) -> str | None:
    """Why a sensor_msgs/CameraInfo cannot belong to the image; None if it can.

    `image` is the height and width of the image, `focal_per_width` the focal length of the training
    data, which the camera's may differ from by MOST_FOCAL_RATIO.
    """
    height, width = size_of(info)
    if (height, width) != image:
        return (
            f"CameraInfo is for {width}x{height} pixels, the image has {image[1]}x{image[0]}: "
            "publish the CameraInfo of this image"
        )
    camera = camera_of(info)
    if camera is None or focal_per_width is None:
        return None
    ratio = camera.focal_per_width / focal_per_width
    if 1 / MOST_FOCAL_RATIO <= ratio <= MOST_FOCAL_RATIO:
        return None
    return (
        f"the focal length in CameraInfo is {camera.focal_per_width:.3g} image widths, in training "
        f"it was {focal_per_width:.3g}: check K[0] (in pixels), or train for this camera"
    )


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
