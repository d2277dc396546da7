"""Small data sets: one in CamVid's layout, whose colours are its classes, and stereo pairs."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from penumbra.offline.datasets.camvid_classes import VOID
from penumbra.offline.scenes.dataset import RenderingPlan, write_scenes

# Corners and edge middles of the colour cube: far apart even in other light.
COLOURS = np.array(
    [(b, g, r) for b in (30, 220) for g in (30, 220) for r in (30, 120, 220)], dtype=np.uint8
)
assert len(COLOURS) == VOID + 1
SIZE = (64, 96)
FRAMES = {"train": 6, "val": 3, "test": 2}


def write_frame(folder: Path, split: str, name: str, cells: np.ndarray) -> None:
    """A frame of equal blocks, one for each class number in `cells`; noise on their colours."""
    block = np.ones((SIZE[0] // cells.shape[0], SIZE[1] // cells.shape[1]), np.uint8)
    label = np.kron(cells.astype(np.uint8), block)
    noise = np.random.default_rng(len(name)).integers(-20, 21, (*SIZE, 3))
    image = np.clip(COLOURS[label].astype(int) + noise, 0, 255).astype(np.uint8)
    for place, data in ((split, image), (f"{split}annot", label)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(folder / place / f"{name}.png"), data)


@pytest.fixture
def blocks(tmp_path) -> Path:
    """The folder of a few frames with blocks of random classes, void among them."""
    random = np.random.default_rng(1)
    for split, count in FRAMES.items():
        for number in range(count):
            cells = random.integers(0, VOID + 1, (4, 6))
            write_frame(tmp_path / "blocks", split, f"{split}{number}", cells)
    return tmp_path / "blocks"


@pytest.fixture(scope="session")
def street_pairs(tmp_path_factory) -> Path:
    """The folder of ten rendered stereo pairs with depth."""
    folder = tmp_path_factory.mktemp("streets") / "stereo"
    write_scenes(RenderingPlan("stereo", 384, 116), 10, folder, workers=2)
    return folder
