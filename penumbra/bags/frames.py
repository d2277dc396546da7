"""Frames of a drive, from any source, and how they are stored in a bag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np

from penumbra.bags.messages import (
    CAMERA_INFO,
    COMPRESSED_IMAGE,
    IMAGE,
    SECOND,
    CameraModel,
    camera_info,
    compressed_image,
    image,
)
from penumbra.bags.writer import BagWriter
from penumbra.errors import PenumbraError

IMAGE_TOPIC = "/camera/image_raw"
COMPRESSED_TOPIC = "/camera/image_raw/compressed"
CAMERA_INFO_TOPIC = "/camera/camera_info"
LABELS_TOPIC = "/ground_truth/labels"
"""mono8: the class number of the data set."""
DEPTH_TOPIC = "/ground_truth/depth"
"""32FC1, metres; NaN where nothing was measured, infinity in the sky (REP 118)."""
ANOMALY_TOPIC = "/ground_truth/anomaly"
"""mono8: 255 on an object of no trained class, else 0."""
FRAME_ID = "camera"
JPEG_QUALITY = 95

Item = TypeVar("Item")


@dataclass(frozen=True)
class DriveFrame:
    """One image (BGR) and the ground truth that is known for it."""

    stamp_ns: int
    image: np.ndarray
    file: bytes | None = None
    """The JPEG or PNG that the image was read from."""
    camera: CameraModel | None = None
    labels: np.ndarray | None = None
    depth: np.ndarray | None = None
    anomaly: np.ndarray | None = None


@dataclass(frozen=True)
class Drive:
    """A lazy sequence of frames, their number (None: unknown), and notes for the bag's metadata."""

    frames: Iterable[DriveFrame]
    total: int | None
    notes: dict[str, str] = field(default_factory=dict)

    def at_rate(self, rate_hz: float | None) -> Drive:
        """The same frames at `rate_hz`, starting at the first stamp (None: unchanged)."""
        if rate_hz is None:
            return self
        return replace(self, frames=_restamped(self.frames, positive(rate_hz, "--rate-hz")))


@dataclass(frozen=True)
class FrameSelection:
    """Every `every`-th frame after the first `skip`, at most `frames` of them."""

    skip: int = 0
    every: int = 1
    frames: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("skip", 0), ("every", 1), ("frames", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise PenumbraError(f"--{name} is {value}: give a whole number from {least} on")

    def of(self, items: list[Item]) -> list[Item]:
        """The selected items of a list; an error if there are none."""
        chosen = items[self.skip :: self.every][: self.frames]
        if not chosen:
            raise PenumbraError(f"--skip {self.skip} leaves nothing of {len(items)} frames")
        return chosen

    def places(self) -> Iterator[int]:
        """The selected indices of a stream of unknown length."""
        place, count = self.skip, 0
        while self.frames is None or count < self.frames:
            yield place
            place, count = place + self.every, count + 1


def write_drive(drive: Drive, out: Path, storage: str = "mcap", compressed: bool = False) -> int:
    """Write a rosbag2 of a drive and return the number of frames.

    CameraInfo precedes its image, so that in a sequential replay the camera is known when the image
    arrives. `compressed` stores a JPEG or PNG file unchanged and encodes other images as JPEG
    (quality 95).
    """
    count = 0
    with BagWriter(out, storage, drive.notes) as bag:
        for frame in drive.frames:
            _write(bag, frame, compressed)
            count += 1
        if not count:
            raise PenumbraError("there is no frame to write")
    return count


def stamp_at(place: int, rate_hz: float, start_ns: int) -> int:
    """The stamp of frame `place` in nanoseconds, without accumulated rounding errors."""
    return start_ns + round(place * SECOND / rate_hz)


def positive(value: float, name: str) -> float:
    """Return `value` if it is finite and above 0."""
    if not 0 < value < np.inf:
        raise PenumbraError(f"{name} is {value:g}: give a number above 0")
    return value


def _write(bag: BagWriter, frame: DriveFrame, compressed: bool) -> None:
    where = frame.stamp_ns, FRAME_ID

    def put(topic: str, array: np.ndarray, encoding: str) -> None:
        bag.write(topic, IMAGE, frame.stamp_ns, image(*where, array, encoding))

    if frame.camera is not None:
        information = camera_info(*where, frame.camera)
        bag.write(CAMERA_INFO_TOPIC, CAMERA_INFO, frame.stamp_ns, information)
    if compressed:
        file = frame.file or _jpeg(frame.image)
        bag.write(
            COMPRESSED_TOPIC, COMPRESSED_IMAGE, frame.stamp_ns, compressed_image(*where, file)
        )
    else:
        put(IMAGE_TOPIC, frame.image, "bgr8")
    if frame.labels is not None:
        put(LABELS_TOPIC, frame.labels, "mono8")
    if frame.depth is not None:
        put(DEPTH_TOPIC, frame.depth.astype(np.float32, copy=False), "32FC1")
    if frame.anomaly is not None:
        put(ANOMALY_TOPIC, frame.anomaly.astype(np.uint8) * 255, "mono8")


def _jpeg(pixels: np.ndarray) -> bytes:
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    if not done:
        raise PenumbraError("OpenCV cannot encode this image as JPEG")
    return data.tobytes()


def _restamped(frames: Iterable[DriveFrame], rate_hz: float) -> Iterator[DriveFrame]:
    start = None
    for place, frame in enumerate(frames):
        start = frame.stamp_ns if start is None else start
        yield replace(frame, stamp_ns=stamp_at(place, rate_hz, start))
