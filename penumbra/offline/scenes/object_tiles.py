"""Texture tiles of single objects: fences, traffic signs, parts of vehicles."""

from __future__ import annotations

import cv2
import numpy as np

from penumbra.offline.scenes import tile_drawing as draw
from penumbra.offline.scenes.tile_drawing import SIZE, Rng


def fence(rng: Rng, kind: str) -> np.ndarray:
    """A panel of a fence, repeating along u."""
    if kind == "panel":
        tile = draw.plain((0.38, 0.50, 0.60), (draw.noise(rng, 32, 2, aspect=16), 0.12))
        tile[:, ::32, :3] *= 0.5
        tile[:, 1::32, :3] *= 0.6
        return tile
    tile = draw.clear(draw.plain(1.0, (draw.noise(rng, 16, 2), 0.08)))
    if kind == "picket":
        for x in np.arange(8) / 8:
            draw.shape(
                tile, [(x, 1), (x, 0.1), (x + 0.04, 0), (x + 0.08, 0.1), (x + 0.08, 1)], (1,) * 3
            )
        bars, colour = ((0.2, 0.27), (0.7, 0.77)), (0.9,) * 3
    elif kind == "railing":
        for x in np.arange(16) / 16:
            draw.box(tile, (x + 0.02, x + 0.037), (0.03, 1), (1,) * 3)
        bars, colour = ((0.06, 0.10), (0.84, 0.88)), (0.95,) * 3
    else:  # two rails of a crash barrier on posts
        for x in (0.1, 0.6):
            draw.box(tile, (x, x + 0.05), (0.1, 1), (0.7,) * 3)
        bars, colour = ((0.05, 0.22), (0.27, 0.44)), (1,) * 3
    for bar in bars:
        draw.box(tile, (0, 1), bar, colour, keep=0.2)
    return tile


def sign(rng: Rng, kind: str) -> np.ndarray:
    """A traffic sign of one of `tile_catalogue.SIGNS`."""
    red, white, blue, black = (0.15, 0.12, 0.8), (0.95,) * 3, (0.75, 0.35, 0.1), (0.08,) * 3
    tile = draw.clear(draw.plain(0.5))
    middle = (0.5, 0.5)
    if kind == "limit":
        for radius, colour in ((0.48, red), (0.36, white)):
            draw.disc(tile, middle, radius, colour)
        for x in (0.30, 0.53):
            draw.box(tile, (x, x + 0.17), (0.34, 0.66), black)
            draw.box(tile, (x + 0.06, x + 0.11), (0.40, 0.60), white)
    elif kind == "warning":
        draw.shape(tile, [(0.5, 0.04), (0.98, 0.92), (0.02, 0.92)], red)
        draw.shape(tile, [(0.5, 0.24), (0.80, 0.81), (0.20, 0.81)], white)
        draw.box(tile, (0.47, 0.53), (0.42, 0.74), black)
    elif kind == "stop":
        angles = np.arange(8) * np.pi / 4 + np.pi / 8
        for radius, colour in ((0.49, white), (0.45, red)):
            draw.shape(
                tile, [(0.5 + radius * np.cos(a), 0.5 + radius * np.sin(a)) for a in angles], colour
            )
        for x in (0.18, 0.36, 0.54, 0.72):
            draw.box(tile, (x, x + 0.1), (0.4, 0.6), white)
    elif kind == "turn":
        draw.disc(tile, middle, 0.48, white)
        draw.disc(tile, middle, 0.45, blue)
        draw.shape(
            tile,
            [(0.2, 0.5), (0.5, 0.22), (0.5, 0.4), (0.8, 0.4), (0.8, 0.6), (0.5, 0.6), (0.5, 0.78)],
            white,
        )
    elif kind == "parking":
        draw.box(tile, (0.04, 0.96), (0.04, 0.96), blue)
        draw.box(tile, (0.33, 0.45), (0.2, 0.82), white)
        draw.disc(tile, (0.52, 0.38), 0.18, white)
        draw.disc(tile, (0.52, 0.38), 0.08, blue)
    elif kind == "crossing":
        draw.box(tile, (0.04, 0.96), (0.04, 0.96), blue)
        draw.shape(tile, [(0.5, 0.12), (0.88, 0.86), (0.12, 0.86)], white)
        draw.disc(tile, (0.5, 0.4), 0.05, black)
        draw.box(tile, (0.46, 0.54), (0.45, 0.75), black)
    elif kind == "board":
        draw.box(tile, (0.0, 1.0), (0.1, 0.9), white)
        draw.box(tile, (0.02, 0.98), (0.12, 0.88), (0.35, 0.45, 0.05))
        for y in (0.25, 0.45, 0.65):
            draw.box(tile, (0.12, rng.uniform(0.5, 0.8)), (y, y + 0.1), white)
    else:  # lamp: three aspects, one lit
        draw.box(tile, (0.3, 0.7), (0.0, 1.0), (0.07,) * 3)
        lit = rng.integers(3)
        lamps = ((0.15, 0.15, 1.0), (0.1, 0.65, 1.0), (0.5, 1.0, 0.25))
        for k, colour in enumerate(lamps):
            dim = 1.0 if k == lit else 0.2
            b, g, r = (dim * c for c in colour)
            draw.disc(tile, (0.5, 0.18 + 0.32 * k), 0.12, (b, g, r))
    return tile


def car_side(rng: Rng) -> np.ndarray:
    """The side of a car: doors, handles, sill."""
    tile = draw.plain(1.0, (draw.noise(rng, 4, 2), 0.02))
    shade = np.interp(np.arange(SIZE) / SIZE, [0, 0.25, 0.45, 1], [1.1, 0.9, 1.0, 0.55])
    tile[..., :3] *= shade[:, None, None].astype(np.float32)
    for x in (0.24, 0.5, 0.74):
        draw.box(tile, (x, x + 0.006), (0.0, 0.85), (0.1,) * 3, keep=0.3)
    for x in (0.43, 0.67):
        draw.box(tile, (x, x + 0.05), (0.18, 0.23), (0.2,) * 3, keep=0.3)
    draw.box(tile, (0, 1), (0.9, 1.0), (0.06,) * 3)
    return tile


def livery(rng: Rng) -> np.ndarray:
    """The side of a lorry: a stripe, large letters, smaller lines below."""
    tile = draw.plain(0.95, (draw.noise(rng, 8, 3), 0.03))
    ink = tuple(rng.uniform(0.05, 0.6, 3))
    if rng.random() < 0.7:
        y = rng.uniform(0.05, 0.75)
        draw.box(tile, (0, 1), (y, y + rng.uniform(0.05, 0.2)), tuple(rng.uniform(0.1, 0.8, 3)))
    x, y, high = rng.uniform(0.08, 0.3), rng.uniform(0.2, 0.45), rng.uniform(0.12, 0.25)
    while x < 0.85:  # vertical and horizontal strokes
        wide = rng.uniform(0.02, 0.05)
        draw.box(tile, (x, x + wide / 3), (y, y + high), ink)
        for bar in rng.choice([0.0, 0.4, 0.85], rng.integers(1, 3), replace=False):
            draw.box(tile, (x, x + wide), (y + bar * high, y + (bar + 0.15) * high), ink)
        x += wide + 0.015
    for k in range(rng.integers(1, 4)):
        draw.box(
            tile,
            (0.3, rng.uniform(0.5, 0.8)),
            (y + high + 0.06 * (k + 1), y + high + 0.06 * (k + 1) + 0.025),
            ink,
        )
    return tile


def car_end(rng: Rng, front: bool) -> np.ndarray:
    """The front or rear of a car: lamps, grille, number plate."""
    tile = draw.plain(1.0)
    shade = np.interp(np.arange(SIZE) / SIZE, [0, 0.3, 0.55, 1], [1.05, 0.95, 0.8, 0.5])
    tile[..., :3] *= shade[:, None, None].astype(np.float32)
    draw.box(tile, (0, 1), (0.52, 0.56), (0.15,) * 3, keep=0.3)
    draw.box(tile, (0.02, 0.98), (0.86, 1.0), (0.07,) * 3)
    if front:
        draw.box(tile, (0.3, 0.7), (0.18, 0.42), (0.08,) * 3)
        lamp = (0.95, 0.97, 0.95)
    else:
        draw.box(tile, (0.1, 0.9), (0.02, 0.04), (0.2,) * 3)
        lamp = (0.12, 0.1, 0.75)
    for x in (0.03, 0.77):
        draw.box(tile, (x, x + 0.2), (0.14, 0.38), lamp)
        draw.box(tile, (x + 0.02, x + 0.10), (0.18, 0.3), (0.9,) * 3 if front else (0.25, 0.2, 1.0))
    draw.box(tile, (0.37, 0.63), (0.60, 0.72), (0.95,) * 3 if front else (0.15, 0.8, 0.95))
    for x in np.linspace(0.39, 0.57, 6):
        draw.box(tile, (x, x + 0.022), (0.62, 0.70), (0.08,) * 3)
    return tile


def car_glass(rng: Rng) -> np.ndarray:
    """A window of a car, with head rests behind it."""
    tile = draw.plain(0.2)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / SIZE
    tile[..., :3] = np.dstack([0.42, 0.36, 0.30]) * (1.25 - y)[..., None]
    tile[..., :3] *= (1 + 0.5 * ((x + 0.4 * y) % 0.7 < 0.25) * (1 - y))[..., None]
    for x0 in (0.12, 0.62):  # head rests
        draw.box(tile, (x0, x0 + 0.22), (0.5, 1.0), (0.08,) * 3, keep=0.4)
    edge = np.minimum(np.minimum(x, 1 - x), np.minimum(y, 1 - y)) < 0.035
    tile[edge, :3] = 0.08
    return tile


def wheel(rng: Rng) -> np.ndarray:
    """A wheel of a car."""
    tile = draw.clear(draw.plain(0.1))
    for radius, grey in ((0.5, 0.05), (0.44, 0.10), (0.31, 0.66), (0.28, 0.5)):
        draw.disc(tile, (0.5, 0.5), radius, (grey,) * 3)
    for angle in np.arange(5) * 2 * np.pi / 5:
        c, s = np.cos(angle), np.sin(angle)
        draw.disc(tile, (0.5 + 0.18 * c, 0.5 + 0.18 * s), 0.075, (0.12,) * 3)
    draw.disc(tile, (0.5, 0.5), 0.06, (0.75,) * 3)
    return tile


def bike_wheel(rng: Rng) -> np.ndarray:
    """A wheel of a bicycle."""
    tile = draw.clear(draw.plain(0.1))
    for k in range(14):
        angle = k * 2 * np.pi / 14
        rim = (round(128 + 118 * np.cos(angle)), round(128 + 118 * np.sin(angle)))
        cv2.line(tile, (128, 128), rim, (0.6, 0.6, 0.6, 1.0), 2)
    cv2.circle(tile, (128, 128), 118, (0.08, 0.08, 0.08, 1.0), 16)
    cv2.circle(tile, (128, 128), 108, (0.6, 0.6, 0.6, 1.0), 5)
    return tile
