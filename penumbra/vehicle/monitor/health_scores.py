"""What a single camera image tells about the health of the camera, in a few numbers.

    measured = measure(image, "bgr8")
    measured.scores["sharpness"], measured.tiles        # per frame; per tile of the image

Read are a colour thumbnail, twelve patches and some rows and columns at full resolution, so that an
image of 8 megapixels costs little more than one of 480 x 360. The fine scale is read from green,
the channel whose place does not depend on the order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np

from penumbra.errors import PenumbraError

TILES = (6, 8)  # rows and columns of tiles
_CELL = 6  # pixels of a tile's side in the thumbnail
_PATCHES = (3, 4)  # rows and columns of patches; each covers four tiles
_PATCH = 120  # largest side of a patch, in pixels: at 480 x 360 the patches are the whole image
_LINES = 32  # rows, and columns, that are read whole
_LEAST = 64  # pixels of the smallest image that can be judged
_LAG = 8  # pixels; the coarse scale that sharpness is compared with
_DARK, _BRIGHT = 16, 250  # grey levels: what counts as black and as white
_SECOND = np.array([1.0, -2.0, 1.0])  # in both directions: Immerkær's filter for noise (1996)
_NOISE_SCALE = math.sqrt(math.pi / 2) / 6  # from its mean absolute response to the deviation
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
_BANDS = 64  # bands over the height of the image, at most
_RIPPLE = 0.02
_SSD = cv2.TM_SQDIFF
_BORDER = 8  # columns at either side that some cameras leave black
_LOG_OFFSET = 4.0  # grey levels: the logarithm of black is finite
_TINY = 0.25  # grey levels squared: a flat image is not infinitely sharp or soft


@dataclass(frozen=True)
class Measured:
    """The scores of one image, and what is followed from frame to frame."""

    scores: dict[str, float]
    tiles: np.ndarray  # features x tile rows x tile columns: see `TILE_FEATURES`
    thumbnail: np.ndarray  # log2 of the grey level of green, height x width


TILE_FEATURES = ("texture", "brightness", "red_blue")


def measure(image: np.ndarray, order: str) -> Measured:
    """Measure an image: `uint8`, height x width x 3, `order` "rgb8" or "bgr8"."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        shape = " x ".join(map(str, image.shape))
        raise PenumbraError(f"camera health needs uint8 colours, not {image.dtype} {shape}")
    if order not in ("rgb8", "bgr8"):
        raise PenumbraError(f"channel order {order!r}: it must be 'rgb8' or 'bgr8'")
    if min(image.shape[:2]) < _LEAST:
        height, width = image.shape[:2]
        raise PenumbraError(f"the image is {width}x{height}: camera health needs {_LEAST} pixels")
    colours = _thumbnail(image)
    logs = np.log2(colours + _LOG_OFFSET)
    places = (0, 1, 2) if order == "rgb8" else (2, 1, 0)
    red, green, blue = (np.ascontiguousarray(logs[..., i]) for i in places)
    fine, texture = _fine_scale(image)
    tiles = np.stack([texture, _tile_means(green), _tile_means(red - blue)])
    light = _light(*(colours[..., i] for i in places))
    scores = light | _colour(red, green, blue) | fine | _rows(image) | _columns(image)
    return Measured(scores, tiles, green)


def _thumbnail(image: np.ndarray) -> np.ndarray:
    """Mean colours as float32, some pixels for each tile."""
    height, width = (_CELL * n for n in TILES)
    if image.shape[0] >= 16 * height:  # of a large image, one pixel in two or more will do
        image = cv2.resize(image, (8 * width, 8 * height), interpolation=cv2.INTER_NEAREST)
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32)


def _tile_means(values: np.ndarray) -> np.ndarray:
    return cv2.resize(values, TILES[::-1], interpolation=cv2.INTER_AREA)


def _quantiles(values: np.ndarray, *shares: float) -> list[float]:
    """Quantiles, in a tenth of the time of `np.quantile`."""
    ordered = np.sort(values, axis=None)
    return [float(ordered[round(share * (ordered.size - 1))]) for share in shares]


def _light(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> dict[str, float]:
    dark = np.minimum(np.minimum(red, green), blue)
    bright = np.maximum(np.maximum(red, green), blue)
    low, middle, high = _quantiles(green, 0.05, 0.5, 0.95)
    rows = len(dark)
    distant = dark[rows // 5 : rows * 3 // 5]  # where a street is far away
    return {
        "black": np.count_nonzero(bright < _DARK) / bright.size,
        "white": np.count_nonzero(dark > _BRIGHT) / dark.size,
        "exposure": math.log2(middle + _LOG_OFFSET),
        "highlight": math.log2(high + _LOG_OFFSET),
        "contrast": math.log2(high - low + 1),
        "shadow": math.log2(_quantiles(dark, 0.05)[0] + _LOG_OFFSET),
        "haze": _quantiles(distant, 0.1)[0],
    }


def _colour(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> dict[str, float]:
    """From logarithms of the channels."""
    red_blue = red - blue
    third = len(red) // 3
    return {
        "red_blue": _quantiles(red_blue, 0.5)[0],
        "green": _quantiles(2 * green - red - blue, 0.5)[0],
        "sky_blue": float(red_blue[-third:].mean() - red_blue[:third].mean()),
    }


def _patches(image: np.ndarray) -> np.ndarray:
    """Green patches, height x width x patches: shifted views of it never mix two patches."""
    height, width = image.shape[:2]
    rows, columns = _PATCHES
    side_y, side_x = min(_PATCH, height // rows) // 4 * 4, min(_PATCH, width // columns) // 4 * 4
    tops = [(2 * row + 1) * height // (2 * rows) - side_y // 2 for row in range(rows)]
    lefts = [(2 * column + 1) * width // (2 * columns) - side_x // 2 for column in range(columns)]
    merged: np.ndarray = cv2.merge(
        [cv2.extractChannel(image[y : y + side_y, x : x + side_x], 1) for y in tops for x in lefts]
    )
    return merged


def _cell_means(patches: np.ndarray, cells: int) -> np.ndarray:
    """Means of `cells` x `cells` parts of every patch, in the places they have in the image."""
    height, width, count = patches.shape
    sums = patches.reshape(cells, height // cells, width * count).sum(axis=1, dtype=np.uint16)
    means: np.ndarray = sums.reshape(cells, cells, -1, count).mean(axis=2, dtype=np.float32)
    means = means.reshape(cells, cells, *_PATCHES) / (height // cells)
    placed: np.ndarray = means.transpose(2, 0, 3, 1).reshape(
        cells * _PATCHES[0], cells * _PATCHES[1]
    )
    return placed


def _fine_scale(image: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """Scores of the finest scale, and the texture of each tile."""
    patches = _patches(image)
    sharpness = [
        math.log2(
            _LAG
            * (_squared_difference(patches, direction, 1) + _TINY)
            / (_squared_difference(patches, direction, _LAG) + _TINY)
        )
        for direction in _DIRECTIONS
    ]
    response = cv2.convertScaleAbs(cv2.sepFilter2D(patches, cv2.CV_16S, _SECOND, _SECOND))
    noise, level = _cell_means(response, 4), _cell_means(patches, 4)
    noise = noise[(level > 6) & (level < 249)]  # clipped noise is too small
    steps = np.empty_like(patches)
    cv2.absdiff(patches[:, 1:], patches[:, :-1], steps[:, 1:])
    steps[:, 0] = steps[:, 1]
    scores = {
        "sharpness": sum(sharpness) / len(sharpness),
        "streak": max(sharpness) - min(sharpness),
        "noise": math.log2(_NOISE_SCALE * (_quantiles(noise, 0.1)[0] if noise.size else 0) + 0.25),
        "flat": np.count_nonzero(noise < 0.05) / level.size,
    }
    return scores, np.log2(_cell_means(steps, 2) + _TINY)


def _squared_difference(patches: np.ndarray, direction: tuple[int, int], lag: int) -> float:
    """Mean squared difference of pixels that are `lag` steps apart."""
    dy, dx = (lag * step for step in direction)
    height, width = patches.shape[:2]
    one = patches[dy:, max(dx, 0) : width + min(dx, 0)]
    other = patches[: height - dy, max(-dx, 0) : width - max(dx, 0)]
    return float(cv2.norm(one, other, cv2.NORM_L2SQR)) / one.size


def _rows(image: np.ndarray) -> dict[str, float]:
    """Rows against their neighbours, in some columns of the image."""
    height, width = image.shape[:2]
    places = (np.arange(_LINES) * 2 + 1) * width // (2 * _LINES)
    lines = image[:, places, 1].astype(np.int16)
    steps = np.abs(lines[1:] - lines[:-1])
    mean_step = steps.mean(axis=1)
    varied = lines[1:].max(axis=1) - lines[1:].min(axis=1) > 16
    repeated = np.count_nonzero((steps.max(axis=1) == 0) & varied)
    second = lines[1:-1] * 2 - lines[2:] - lines[:-2]
    offsets = np.clip(second, -12, 12).mean(axis=1) / 2
    return {
        "row_noise": float(np.log2(1.4826 * np.median(np.abs(offsets)) + 0.1)),
        "repeated_rows": repeated / height,
        "torn_rows": _tear(image, mean_step),
        "banding": _periodicity(lines.mean(axis=1)),
        "row_blocks": _blocks(mean_step),
    }


def _columns(image: np.ndarray) -> dict[str, float]:
    height = len(image)
    places = (np.arange(_LINES) * 2 + 1) * height // (2 * _LINES)
    lines = image[places, _BORDER:-_BORDER, 1].astype(np.int16)
    steps = np.abs(lines[:, 1:] - lines[:, :-1])
    second = np.ascontiguousarray((lines[:, 1:-1] * 2 - lines[:, 2:] - lines[:, :-2]).T)
    offsets = np.partition(second, _LINES // 2, axis=1)[:, _LINES // 2]
    return {
        "column_lines": float(np.log2(np.abs(offsets).max() / 2 + 1)),
        "column_blocks": _blocks(steps.mean(axis=0)),
    }


def _blocks(mean_step: np.ndarray) -> float:
    """How much larger steps are at one in eight places, where JPEG's blocks meet."""
    whole = mean_step[: len(mean_step) // 8 * 8].reshape(-1, 8)
    phases = np.sort(np.clip(whole, 0, np.median(mean_step) * 4 + 1).mean(axis=0) + 0.1)
    return float(np.log2(phases[-1] / phases[3:5].mean()))


def _periodicity(profile: np.ndarray) -> float:
    """The highest peak in the spectrum of the rows' brightness, over its neighbours."""
    logs = np.log2(profile + _LOG_OFFSET)
    slow = cv2.blur(logs.reshape(-1, 1), (1, max(3, len(logs) // 5))).ravel()
    spectrum = np.abs(np.fft.rfft((logs - slow) * np.hanning(len(logs))))
    band = spectrum[3:_BANDS].reshape(-1, 1)
    # Neighbours up to six frequencies away, without the peak itself and those beside it.
    around = (13 * cv2.blur(band, (1, 13)) - 3 * cv2.blur(band, (1, 3))) / 10
    return float(np.log2(np.max((band + _RIPPLE) / (around + _RIPPLE))))


def _tear(image: np.ndarray, mean_step: np.ndarray) -> float:
    """How much better two rows continue those above them when they are shifted sideways.

    Judged are the rows where the image changes most abruptly. The left, the middle and the right of
    a torn row ask for the same shift; an edge in the scene does so in one of them at most.
    """
    width = image.shape[1]
    every = max(1, width // 960)
    rise = mean_step[2:-2] - np.maximum(mean_step[3:-1], mean_step[1:-3])
    usual = float(np.median(mean_step)) ** 2 + 1
    best = 0.0
    for row in np.argpartition(rise, -2)[-2:] + 2:
        above = np.ascontiguousarray(image[[row, row - 1], ::every, 1])
        below = np.ascontiguousarray(image[[row + 1, row + 2], ::every, 1])
        reach = above.shape[1] // 6
        parts = [slice(reach * i, reach * (i + 1)) for i in (1, 2, 3, 4)]
        found = np.stack(
            [
                cv2.matchTemplate(above[:, p.start - reach : p.stop + reach], below[:, p], _SSD)[0]
                for p in parts
            ]
        ) / (2 * reach)
        shift = int(np.argmin(found.sum(axis=0)))
        straight = found[:, reach - 1 : reach + 2].min(axis=1)
        gains = np.sort(np.log2((straight + usual) / (found[:, shift] + usual)))
        best = max(best, float(gains[1]))  # all parts but one agree
    return best
