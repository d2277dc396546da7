"""A folder of images or a video as a drive, without ground truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import cv2

from penumbra.bags.frames import Drive, DriveFrame, FrameSelection, positive, stamp_at
from penumbra.bags.messages import START_NS
from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file

IMAGES_HZ = 10.0
"""Frames per second of images without stamps."""
_SUFFIXES = (".png", ".jpg", ".jpeg")


def images_drive(folder: Path, selection: FrameSelection | None = None) -> Drive:
    """All JPEG and PNG files of a folder in natural order: 10 after 9."""
    if not folder.is_dir():
        raise PenumbraError(f"no folder {folder}")
    files = sorted((f for f in folder.iterdir() if f.suffix.lower() in _SUFFIXES), key=_by_numbers)
    if not files:
        raise PenumbraError(f"no image (JPEG or PNG) in {folder}")
    files = (selection or FrameSelection()).of(files)

    def frames() -> Iterator[DriveFrame]:
        for place, file in enumerate(files):
            stamp = stamp_at(place, IMAGES_HZ, START_NS)
            yield DriveFrame(stamp, read_image_file(file, cv2.IMREAD_COLOR), file.read_bytes())

    return Drive(frames(), len(files), {"source": folder.name})


def video_drive(file: Path, selection: FrameSelection | None = None) -> Drive:
    """The frames of a video at its own rate."""
    if not file.is_file():
        raise PenumbraError(f"no file {file}")
    selection = selection or FrameSelection()
    video = cv2.VideoCapture(str(file))
    if not video.isOpened():
        raise PenumbraError(f"{file} is not a video that OpenCV can read: convert it to MP4 or AVI")
    rate = positive(video.get(cv2.CAP_PROP_FPS), f"the frame rate in {file}")
    # Only for the progress bar: some containers lack the count, or have a wrong one.
    count = int(max(0, video.get(cv2.CAP_PROP_FRAME_COUNT) - selection.skip))
    total = min(count // selection.every, selection.frames or count) if count else None

    def frames() -> Iterator[DriveFrame]:
        place = 0
        try:
            for wanted in selection.places():
                while place < wanted and video.grab():
                    place += 1
                found, image = video.read()
                if not found:
                    return
                yield DriveFrame(stamp_at(wanted, rate, START_NS), image)
                place += 1
        finally:
            video.release()

    return Drive(frames(), total, {"source": file.name})


def _by_numbers(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
