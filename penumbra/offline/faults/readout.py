"""Faults of the sensor's readout and of the transmission: rows, columns, blocks."""

from __future__ import annotations

import numpy as np

from penumbra.offline.faults.published import to_uint8

TILES = (6, 8)  # rows and columns of the blocks that `blocked_tiles` loses


def torn_rows(image: np.ndarray, shift: int, rng: np.random.Generator) -> np.ndarray:
    """From a row on, the image is shifted sideways; what leaves on one side enters on the other."""
    height, width = image.shape[:2]
    row = int(rng.uniform(0.2, 0.8) * height)
    pixels = max(1, round(shift * width / 480)) * (1 if rng.random() < 0.5 else -1)
    torn = image.copy()
    torn[row:] = np.roll(image[row:], pixels, axis=1)
    return torn


def repeated_rows(image: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """One row stands in place of those below it."""
    height = len(image)
    count = min(height - 1, max(1, round(rows * height / 360)))
    first = int(rng.integers(0, height - count))
    stuck = image.copy()
    stuck[first : first + count + 1] = image[first]
    return stuck


def row_noise(image: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
    """Every row has an offset of its own."""
    return to_uint8(image + rng.normal(0, std, (len(image), 1, 1)))


def dead_columns(image: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many columns are black or white."""
    places = rng.choice(image.shape[1], count, replace=False)
    faulty = image.copy()
    faulty[:, places] = rng.choice(np.array([0, 255], np.uint8), (count, 1))
    return faulty


def blocked_tiles(image: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Lost blocks, as a decoder leaves them: grey or black."""
    height, width = image.shape[:2]
    rows, columns = TILES
    faulty = image.copy()
    value = (128, 0)[rng.integers(2)]
    for tile in rng.choice(rows * columns, count, replace=False).tolist():
        row, column = divmod(tile, columns)
        box = (
            slice(row * height // rows, (row + 1) * height // rows),
            slice(column * width // columns, (column + 1) * width // columns),
        )
        faulty[box] = value
    return faulty


def missing_rows(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A transmission that broke off: the rows at the bottom are grey or black."""
    faulty = image.copy()
    faulty[len(image) - round(share * len(image)) :] = (128, 0)[rng.integers(2)]
    return faulty


def upside_down(image: np.ndarray, _: None, rng: np.random.Generator) -> np.ndarray:
    """A camera that was mounted the other way round."""
    return np.ascontiguousarray(image[::-1, ::-1])
