"""CamVid as a drive: labelled frames of one or more sequences of a split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2

from penumbra.bags.frames import Drive, DriveFrame, FrameSelection, stamp_at
from penumbra.bags.messages import SECOND, START_NS
from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file
from penumbra.offline.datasets.camvid import images_of, read_label
from penumbra.offline.datasets.camvid_classes import CLASSES

VIDEO_HZ = 30.0
"""Frame rate of the videos; every 15th or 30th frame, counted in the file names, is labelled."""
GAP_NS = 10 * SECOND
"""Gap between the sequences of a bag."""
_NAME = re.compile(r"(?P<sequence>.*?)_?f?(?P<number>\d+)")


@dataclass(frozen=True)
class _NumberedImage:
    path: Path
    sequence: str
    number: int


def camvid_drive(
    folder: Path,
    split: str = "test",
    sequence: str | None = None,
    selection: FrameSelection | None = None,
) -> Drive:
    """The frames of `sequence` (None: of all sequences of the split, in the order of their names).

    The stamp of a frame is its number at 30 Hz. Each sequence starts `GAP_NS` after the end of the
    previous one.
    """
    images = sorted(map(_numbered, images_of(folder, split)), key=lambda p: (p.sequence, p.number))
    known = sorted({entry.sequence for entry in images})
    if sequence is not None:
        if sequence not in known:
            raise PenumbraError(
                f"no sequence {sequence!r} in {folder / split}: it has {', '.join(known)}"
            )
        images = [entry for entry in images if entry.sequence == sequence]
    images = (selection or FrameSelection()).of(images)
    stamps = _stamps(images)
    notes = {
        "source": f"CamVid {split}",
        "sequences": ", ".join(dict.fromkeys(entry.sequence for entry in images)),
        "classes": ", ".join([*CLASSES, "void"]),
    }
    return Drive(_frames(folder, split, images, stamps), len(images), notes)


def _numbered(path: Path) -> _NumberedImage:
    match = _NAME.fullmatch(path.stem)
    if match is None:
        raise PenumbraError(
            f"{path} has no frame number at the end of its name, as in CamVid: use `penumbra bag"
            " images` for images of any name"
        )
    return _NumberedImage(path, match["sequence"], int(match["number"]))


def _stamps(images: list[_NumberedImage]) -> list[int]:
    stamps: list[int] = []
    start, before = START_NS, images[0]
    for entry in images:
        if entry.sequence != before.sequence:
            start = stamps[-1] + GAP_NS - stamp_at(entry.number, VIDEO_HZ, 0)
        stamps.append(stamp_at(entry.number, VIDEO_HZ, start))
        before = entry
    return stamps


def _frames(
    folder: Path, split: str, images: list[_NumberedImage], stamps: list[int]
) -> Iterator[DriveFrame]:
    truth = folder / f"{split}annot"
    for entry, stamp in zip(images, stamps, strict=True):
        image = read_image_file(entry.path, cv2.IMREAD_COLOR)
        label = truth / f"{entry.path.stem}.png"
        labels = read_label(label, image) if truth.is_dir() else None
        yield DriveFrame(stamp, image, entry.path.read_bytes(), labels=labels)
