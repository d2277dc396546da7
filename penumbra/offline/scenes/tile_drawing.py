"""Drawing of texture tiles: wrapping noise, plain tiles, boxes, discs and polygons.

A tile is SIZE x SIZE x 4: blue, green, red, alpha; float32, 0 to 1. Coordinates are fractions of
its size.
"""

from __future__ import annotations

import cv2
import numpy as np

SIZE = 256
Rng = np.random.Generator
Colour = tuple[float, float, float]
Span = tuple[float, float]


def noise(rng: Rng, cells: int, octaves: int = 1, aspect: int = 1) -> np.ndarray:
    """Wrapping value noise of about unit variance; `aspect` stretches it along v."""
    total = np.zeros((SIZE, SIZE), np.float32)
    for octave in range(octaves):
        n = min(cells << octave, SIZE)
        grid = rng.standard_normal((max(n // aspect, 1), n)).astype(np.float32)
        grid = np.pad(grid, 2, mode="wrap")
        high, wide = SIZE // max(n // aspect, 1), SIZE // n
        size = (grid.shape[1] * wide, grid.shape[0] * high)
        fine = cv2.resize(grid, size, interpolation=cv2.INTER_CUBIC)
        total += fine[2 * high : 2 * high + SIZE, 2 * wide : 2 * wide + SIZE] * 0.6**octave
    return total / total.std()


def plain(colour: Colour | float, *layers: tuple[np.ndarray, float]) -> np.ndarray:
    """An opaque tile of one colour, its brightness changed by each (noise, strength)."""
    tile = np.ones((SIZE, SIZE, 4), np.float32)
    tile[..., :3] = colour
    for pattern, strength in layers:
        tile[..., :3] *= (1 + strength * pattern)[..., None]
    return tile


def clear(tile: np.ndarray) -> np.ndarray:
    """Make a tile transparent."""
    tile[..., 3] = 0
    return tile


def box(tile: np.ndarray, x: Span, y: Span, colour: Colour, keep: float = 0.0) -> None:
    """Fill a rectangle; `keep` is the share of the old colour."""
    rows = slice(round(y[0] * SIZE), round(y[1] * SIZE))
    columns = slice(round(x[0] * SIZE), round(x[1] * SIZE))
    part = tile[rows, columns, :3]
    tile[rows, columns, :3] = keep * part + (1 - keep) * np.array(colour, np.float32)
    tile[rows, columns, 3] = 1


def disc(tile: np.ndarray, centre: tuple[float, float], radius: float, colour: Colour) -> None:
    """Fill a circle."""
    middle = (round(centre[0] * SIZE), round(centre[1] * SIZE))
    cv2.circle(tile, middle, round(radius * SIZE), (*colour, 1.0), -1, cv2.LINE_AA)


def shape(tile: np.ndarray, points: list[tuple[float, float]], colour: Colour) -> None:
    """Fill a polygon."""
    corners = np.round(np.array(points, np.float32) * SIZE).astype(np.int32)
    cv2.fillPoly(tile, [corners], (*colour, 1.0), cv2.LINE_AA)
