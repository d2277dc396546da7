"""Reading image files in RGB order."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from penumbra.image_files import read_image_file


def read_rgb_image(path: Path) -> np.ndarray:
    """An RGB image (uint8, height x width x 3); PenumbraError if the file is unreadable."""
    return cv2.cvtColor(read_image_file(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
