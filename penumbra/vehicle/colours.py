"""Results as colour images: RGB, `uint8`, height x width x 3.

Scales are fixed by the caller, not derived from the frame: a colour means the same over time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import cv2
import numpy as np

from penumbra.bundle import ClassSpec
from penumbra.errors import PenumbraError
from penumbra.vehicle.monitor import Region

INVALID_COLOUR = (255, 0, 255)  # magenta, which no map below contains
_UNCERTAINTY_MAP = cv2.COLORMAP_INFERNO  # black to yellow, perceptually uniform
_DEPTH_MAP = cv2.COLORMAP_VIRIDIS
_BOX = (0, 230, 255)  # cyan: contrast to the reds of the map
_CAPTION_HEIGHT = 24
_CAPTION = (230, 230, 230)
_BACKGROUND = 24


def colour_labels(labels: np.ndarray, classes: Sequence[ClassSpec]) -> np.ndarray:
    """Colour each pixel by its class; unknown labels are magenta."""
    return cv2.applyColorMap(labels, _palette(tuple(spec.colour for spec in classes)))


def colour_uncertainty(uncertainty: np.ndarray, top: float) -> np.ndarray:
    """Colour from black (0) over purple and red to yellow (`top` and above); NaN is magenta."""
    return _mapped(_bytes(uncertainty, top), _table(_UNCERTAINTY_MAP), uncertainty)


def colour_depth(depth: np.ndarray, farthest: float = 80.0, nearest: float = 1.0) -> np.ndarray:
    """Colour from yellow (near) over green to violet (far), by the logarithm of depth in metres.

    On a logarithmic scale, equal ratios of distance have equal steps of colour.
    """
    if not 0 < nearest < farthest < math.inf:
        raise PenumbraError(
            f"invalid depth range from {nearest:g} m to {farthest:g} m: give 0 < nearest < farthest"
        )
    share = np.log(np.clip(depth, nearest, farthest) / np.float32(nearest))
    codes = 255 - _bytes(share, math.log(farthest / nearest))
    return _mapped(codes, _table(_DEPTH_MAP), depth)


def overlay(
    image: np.ndarray,
    uncertainty: np.ndarray,
    top: float,
    regions: Sequence[Region] = (),
    strength: float = 0.8,
) -> np.ndarray:
    """Blend uncertainty over the camera image (RGB), and draw boxes around the regions.

        opacity = strength clip(u / top, 0, 1)²

    so that certain and normally uncertain pixels stay nearly unchanged. The image may have another
    size than the map; regions are in pixels of the map.
    """
    height, width = image.shape[:2]
    across, down = width / uncertainty.shape[1], height / uncertainty.shape[0]
    colours = colour_uncertainty(uncertainty, top)
    opacity = np.clip(np.nan_to_num(uncertainty / np.float32(top), nan=1.0), 0, 1)
    opacity *= opacity * np.float32(strength)
    if (across, down) != (1, 1):
        colours = cv2.resize(colours, (width, height), interpolation=cv2.INTER_LINEAR)
        opacity = cv2.resize(opacity, (width, height), interpolation=cv2.INTER_LINEAR)
    shown = cv2.blendLinear(image, colours, 1 - opacity, opacity)
    for region in regions:
        first = round(region.x * across), round(region.y * down)
        last = (
            round((region.x + region.width) * across) - 1,
            round((region.y + region.height) * down) - 1,
        )
        cv2.rectangle(shown, first, last, _BOX, 1)
    return shown


def panel(images: Sequence[tuple[str, np.ndarray]], columns: int = 2) -> np.ndarray:
    """Arrange images in a grid, each under its title; all scaled to the size of the first."""
    if not images or columns < 1:
        raise PenumbraError("a panel needs at least one image and one column")
    height, width = images[0][1].shape[:2]
    cells = [_cell(title, image, height, width) for title, image in images]
    columns = min(columns, len(cells))
    while len(cells) % columns:
        cells.append(np.full_like(cells[0], _BACKGROUND))
    rows = [np.hstack(cells[start : start + columns]) for start in range(0, len(cells), columns)]
    return np.vstack(rows)


def _cell(title: str, image: np.ndarray, height: int, width: int) -> np.ndarray:
    cell = np.full((height + _CAPTION_HEIGHT, width, 3), _BACKGROUND, np.uint8)
    if image.shape[:2] != (height, width):
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    cell[_CAPTION_HEIGHT:] = image
    size = 0.5
    (long, _), _ = cv2.getTextSize(title, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    size *= min(1.0, (width - 12) / max(long, 1))  # long titles shrink
    place = (6, _CAPTION_HEIGHT - 8)
    cv2.putText(cell, title, place, cv2.FONT_HERSHEY_SIMPLEX, size, _CAPTION, 1, cv2.LINE_AA)
    return cell


def _bytes(values: np.ndarray, top: float) -> np.ndarray:
    """Scale 0..`top` to 0..255, clipped at both ends."""
    if not 0 < top < math.inf:
        raise PenumbraError(f"the top of a colour scale is {top:g}: it must be positive")
    scaled: np.ndarray = cv2.convertScaleAbs(np.clip(values, 0, top), alpha=255 / top)
    return scaled


def _mapped(codes: np.ndarray, table: np.ndarray, values: np.ndarray) -> np.ndarray:
    colours = cv2.applyColorMap(codes, table)
    unknown = np.isnan(values)
    if unknown.any():
        colours[unknown] = INVALID_COLOUR
    return colours


@functools.cache
def _palette(colours: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """A table of 256 colours for applyColorMap, which keeps the channel order: RGB stays RGB."""
    table = np.full((256, 1, 3), INVALID_COLOUR, np.uint8)
    table[: len(colours), 0] = colours
    return table


@functools.cache
def _table(name: int) -> np.ndarray:
    """One of OpenCV's colour maps, converted from BGR to RGB."""
    every = np.arange(256, dtype=np.uint8)[:, None]
    return cv2.cvtColor(cv2.applyColorMap(every, name), cv2.COLOR_BGR2RGB)
