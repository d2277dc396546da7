"""Ordinary drives to fit alerts to: folders of images, videos and bags.

Each source is one drive. CamVid mixes its drives in one folder, and names them in its files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from penumbra.bags import Drive, FrameSelection, images_drive, open_bag, video_drive
from penumbra.errors import PenumbraError
from penumbra.image_files import read_image_file
from penumbra.vehicle.conversions import compressed_image_of, image_of

_CAMVID = re.compile(r"(\d{4}(?:TP|R0|E5)|Seq\d{2}VD)_")


@dataclass(frozen=True)
class OrdinaryDrive:
    """A drive on which nothing is wrong; `images` reads it again at every call, as BGR."""

    name: str
    images: Callable[[], Iterator[np.ndarray]]


def ordinary_drives(
    images: Sequence[Path], bags: Sequence[Path], topic: str | None, frames: int | None
) -> list[OrdinaryDrive]:
    """The drives of all sources, at most `frames` of each."""
    selection = FrameSelection(frames=frames)
    drives: dict[str, OrdinaryDrive] = {}
    camvid: dict[str, list[Path]] = {}

    def add(name: str, read: Callable[[], Iterator[np.ndarray]]) -> None:
        number = sum(known.partition(" #")[0] == name for known in drives)
        name = f"{name} #{number + 1}" if number else name
        drives[name] = OrdinaryDrive(name, read)

    for path in images:
        if not path.exists():
            raise PenumbraError(f"no {path}: give a folder of images or a video")
        folder = path / "val" if (path / "val").is_dir() else path
        if not folder.is_dir():
            add(path.name, partial(_images, partial(video_drive, path, selection)))
        elif found := _by_camvid_name(folder):
            for name, files in found.items():
                camvid.setdefault(name, []).extend(files)
        else:
            images_drive(folder, selection)  # refuses an empty folder
            add(folder.name, partial(_images, partial(images_drive, folder, selection)))
    for name, files in camvid.items():
        chosen = selection.of(sorted(files, key=lambda file: file.name))
        add(name, partial(_read, chosen))
    for bag in bags:
        add(bag.name, partial(_bag_images, bag, topic, frames))
    return list(drives.values())


def _images(open_drive: Callable[[], Drive]) -> Iterator[np.ndarray]:
    for frame in open_drive().frames:
        yield frame.image


def _read(files: Sequence[Path]) -> Iterator[np.ndarray]:
    for file in files:
        yield read_image_file(file, cv2.IMREAD_COLOR)


def _by_camvid_name(folder: Path) -> dict[str, list[Path]]:
    """Files by drive if every image has a name as in CamVid; otherwise nothing."""
    found: dict[str, list[Path]] = {}
    for file in folder.iterdir():
        if file.suffix.lower() in (".png", ".jpg", ".jpeg"):
            match = _CAMVID.match(file.name)
            if match is None:
                return {}
            found.setdefault(match[1], []).append(file)
    return dict(sorted(found.items()))


def _bag_images(path: Path, topic: str | None, frames: int | None) -> Iterator[np.ndarray]:
    with open_bag(path) as bag:
        images = bag.image_topic(topic)
        convert = compressed_image_of if "Compressed" in images.type else image_of
        for recorded in islice(bag.raw([images.name]), frames):
            yield convert(bag.decode(recorded), "bgr")
