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
"""CamVid's names count the frames of its videos, of which every 15th or 30th is labelled."""
BETWEEN_NS = 10 * SECOND
"""From the last frame of a sequence to the first of the next, in a bag that has several."""
_NAME = re.compile(r"(?P<sequence>.*?)_?f?(?P<number>\d+)")


@dataclass(frozen=True)
class _Picture:
    path: Path
    sequence: str
    number: int


def camvid_drive(
    folder: Path,
    split: str = "test",
    sequence: str | None = None,
    selection: FrameSelection | None = None,
) -> Drive:
    """The frames of `sequence` (None: of all in the split, one after the other).

    A frame's stamp is its number at 30 Hz. Sequences are different drives, so each begins
    `BETWEEN_NS` after the end of the one before, in the order of their names.
    """
    pictures = sorted(map(_picture, images_of(folder, split)), key=lambda p: (p.sequence, p.number))
    there = sorted({picture.sequence for picture in pictures})
    if sequence is not None:
        if sequence not in there:
            raise PenumbraError(
                f"no sequence {sequence!r} in {folder / split}: it has {', '.join(there)}"
            )
        pictures = [picture for picture in pictures if picture.sequence == sequence]
    pictures = (selection or FrameSelection()).of(pictures)
    stamps = _stamps(pictures)
    notes = {
        "source": f"CamVid {split}",
        "sequences": ", ".join(dict.fromkeys(picture.sequence for picture in pictures)),
        "classes": ", ".join([*CLASSES, "void"]),
    }
    return Drive(_frames(folder, split, pictures, stamps), len(pictures), notes)


def _picture(path: Path) -> _Picture:
    match = _NAME.fullmatch(path.stem)
    if match is None:
        raise PenumbraError(
            f"{path} has no frame number at the end of its name, as CamVid's have: `penumbra bag"
            " images` takes pictures of any name"
        )
    return _Picture(path, match["sequence"], int(match["number"]))


def _stamps(pictures: list[_Picture]) -> list[int]:
    stamps: list[int] = []
    start, before = START_NS, pictures[0]
    for picture in pictures:
        if picture.sequence != before.sequence:
            start = stamps[-1] + BETWEEN_NS - stamp_at(picture.number, VIDEO_HZ, 0)
        stamps.append(stamp_at(picture.number, VIDEO_HZ, start))
        before = picture
    return stamps


def _frames(
    folder: Path, split: str, pictures: list[_Picture], stamps: list[int]
) -> Iterator[DriveFrame]:
    truth = folder / f"{split}annot"
    for picture, stamp in zip(pictures, stamps, strict=True):
        image = read_image_file(picture.path, cv2.IMREAD_COLOR)
        label = truth / f"{picture.path.stem}.png"
        labels = read_label(label, image) if truth.is_dir() else None
        yield DriveFrame(stamp, image, picture.path.read_bytes(), labels=labels)
