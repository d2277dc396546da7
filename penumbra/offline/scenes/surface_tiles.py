"""Texture tiles of surfaces: ground, walls, roofs, leaves, and the skins of anomalies."""

from __future__ import annotations

import cv2
import numpy as np

from penumbra.offline.scenes import tile_drawing as draw
from penumbra.offline.scenes.tile_drawing import SIZE, Colour, Rng, Span


def asphalt(rng: Rng, cracks: int = 0, grey: float = 0.42) -> np.ndarray:
    """Asphalt, with so many cracks."""
    tile = draw.plain(
        grey,
        (draw.noise(rng, 128), 0.10),
        (draw.noise(rng, 32, 3), 0.06),
        (draw.noise(rng, 4, 3), 0.035),
    )
    for _ in range(cracks):
        path = np.cumsum(rng.normal((2.0, 0), 7, (24, 2)), axis=0) + rng.uniform(0, SIZE, 2)
        dark = draw.plain(1.0)
        for shift in np.stack(np.meshgrid((-SIZE, 0, SIZE), (-SIZE, 0, SIZE)), -1).reshape(-1, 2):
            cv2.polylines(dark, [np.int32(path + shift)], False, (0.6,) * 4, 1, cv2.LINE_AA)
        tile[..., :3] *= dark[..., :3]
    return tile


def paving(rng: Rng, columns: int, rows: int, joint: float = 0.72) -> np.ndarray:
    """Slabs in running bond."""
    high, wide = SIZE // rows, SIZE // columns
    tile = draw.plain(0.62, (draw.noise(rng, 64, 2), 0.05), (draw.noise(rng, 4, 3), 0.05))
    for row in range(rows):
        band = np.zeros((high, SIZE), np.float32)
        for column in range(columns):
            band[:, column * wide : (column + 1) * wide] = rng.normal(1, 0.06)
            band[:, column * wide : column * wide + 2] = joint
        band[:2] = joint
        band = np.roll(band, (row % 2) * wide // 2, axis=1)
        tile[row * high : (row + 1) * high, :, :3] *= band[..., None]
    return tile


def grass(rng: Rng) -> np.ndarray:
    """Grass."""
    tile = draw.plain(
        (0.26, 0.45, 0.38), (draw.noise(rng, 128, aspect=2), 0.2), (draw.noise(rng, 8, 4), 0.14)
    )
    tile[..., 2] *= 1 + 0.12 * draw.noise(rng, 4, 2)
    return tile


def manhole(rng: Rng) -> np.ndarray:
    """A manhole cover."""
    tile = draw.clear(draw.plain(0.35))
    draw.disc(tile, (0.5, 0.5), 0.48, (0.33, 0.33, 0.33))
    draw.disc(tile, (0.5, 0.5), 0.42, (0.24, 0.24, 0.25))
    for k in np.linspace(0.2, 0.8, 7):
        draw.box(tile, (0.22, 0.78), (k - 0.02, k + 0.02), (0.4, 0.4, 0.4))
    return tile


def wall(rng: Rng, kind: str) -> np.ndarray:
    """A wall of brick, stone, concrete or stucco."""
    if kind == "brick":
        tile = draw.plain(
            (0.52, 0.60, 0.80), (draw.noise(rng, 128), 0.07), (draw.noise(rng, 4, 3), 0.08)
        )
        bricks = paving(rng, 8, 32, 1.25)[..., :3]
        return np.dstack([np.clip(tile[..., :3] * (bricks / 0.62) ** 1.5, 0, 1.1), tile[..., 3]])
    if kind == "stone":
        blocks = paving(rng, 4, 8, 0.75)[..., :3] / 0.62
        return np.dstack([blocks**1.3 * (0.60, 0.70, 0.76), np.ones((SIZE, SIZE))])
    if kind == "concrete":
        tile = draw.plain(
            0.68, (draw.noise(rng, 64, 2), 0.04), (draw.noise(rng, 16, 2, aspect=16), 0.06)
        )
        tile[:2, :, :3] *= 0.75
        tile[:, :2, :3] *= 0.75
        return tile
    return draw.plain(0.84, (draw.noise(rng, 128), 0.03), (draw.noise(rng, 8, 3), 0.04))


def _pane(
    tile: np.ndarray, rng: Rng, x: Span, y: Span, frame: Colour, bars: tuple[int, int]
) -> None:
    """A window: frame, and glass that reflects sky and street."""
    edge = 0.009
    draw.box(tile, (x[0] - edge, x[1] + edge), (y[0] - edge, y[1] + 2 * edge), frame)
    tone = rng.uniform(0.12, 0.3)
    draw.box(tile, x, y, (tone * 1.1, tone * 1.02, tone))
    if rng.random() < 0.5:  # a reflection of the sky
        split = y[0] + (y[1] - y[0]) * rng.uniform(0.25, 0.8)
        draw.box(tile, x, (y[0], split), (0.75, 0.65, 0.55), keep=0.45)
    if rng.random() < 0.4:  # a curtain or blind
        draw.box(tile, (x[0], x[0] + (x[1] - x[0]) * 0.3), y, (0.6, 0.68, 0.72), keep=0.3)
    columns, rows = bars
    for k in range(1, columns):
        at = x[0] + (x[1] - x[0]) * k / columns
        draw.box(tile, (at - 0.004, at + 0.006), y, frame)
    for k in range(1, rows):
        at = y[0] + (y[1] - y[0]) * k / rows
        draw.box(tile, x, (at - 0.004, at + 0.006), frame)


def facade(rng: Rng, material: str, style: str) -> np.ndarray:
    """Two storeys of two bays."""
    tile = wall(rng, material)
    wide, high, bars, frame = {
        "sash": (0.17, 0.28, (2, 2), (0.88, 0.9, 0.9)),
        "modern": (0.30, 0.24, (3, 1), (0.35, 0.33, 0.32)),
        "tall": (0.14, 0.34, (2, 4), (0.8, 0.83, 0.85)),
        "ribbon": (0.485, 0.26, (4, 1), (0.5, 0.48, 0.46)),
    }[style]
    for row in range(2):
        for column in range(2):
            x0, y0 = column * 0.5 + (0.5 - wide) / 2, row * 0.5 + 0.10
            if style in ("sash", "tall"):  # lintel and sill
                draw.box(
                    tile, (x0 - 0.02, x0 + wide + 0.02), (y0 - 0.04, y0), (0.8, 0.82, 0.82), 0.4
                )
                sill = (y0 + high + 0.01, y0 + high + 0.035)
                draw.box(tile, (x0 - 0.025, x0 + wide + 0.025), sill, (0.75, 0.77, 0.78))
            _pane(tile, rng, (x0, x0 + wide), (y0, y0 + high), frame, bars)
    if style in ("sash", "ribbon"):
        for top in (0.0, 0.5):
            draw.box(tile, (0, 1), (top + 0.01, top + 0.03), (0.9, 0.9, 0.9), keep=0.6)
    return tile


def glass_tower(rng: Rng) -> np.ndarray:
    """A glass front of four storeys by four panes."""
    tile = draw.plain((0.55, 0.50, 0.44), (draw.noise(rng, 4, 2), 0.12))
    for row in range(4):
        for column in range(4):
            x, y = column / 4, row / 4
            tone = rng.uniform(0.7, 1.15)
            draw.box(
                tile, (x, x + 0.25), (y, y + 0.25), (0.60 * tone, 0.52 * tone, 0.45 * tone), 0.4
            )
            draw.box(tile, (x, x + 0.25), (y + 0.19, y + 0.25), (0.3, 0.3, 0.3), keep=0.3)
            draw.box(tile, (x, x + 0.012), (y, y + 0.25), (0.7, 0.7, 0.7))
    return tile


def shop(rng: Rng) -> np.ndarray:
    """A shop front: name board with strokes of writing, windows with goods, a door."""
    paint = rng.uniform(0.5, 0.95) * rng.normal(1, 0.12, 3).clip(0.7, 1.3)
    tile = draw.plain(tuple(paint), (draw.noise(rng, 64), 0.03))
    board = rng.choice([0.2, 0.35, 0.9]) * rng.normal(1, 0.25, 3).clip(0.5, 1.6)
    draw.box(tile, (0, 1), (0.03, 0.2), tuple(board))
    ink = (0.95,) * 3 if board.mean() < 0.5 else (0.1,) * 3
    x = 0.2
    while x < 0.8:
        step = rng.uniform(0.02, 0.06)
        draw.box(tile, (x, x + step * 0.7), (rng.uniform(0.06, 0.1), 0.165), ink)
        x += step
    for x0, x1 in ((0.04, 0.36), (0.40, 0.60), (0.64, 0.96)):
        low = 0.97 if x0 == 0.40 else 0.84
        draw.box(tile, (x0, x1), (0.25, low), (0.17, 0.17, 0.17))
        for _ in range(14):
            gx, gy = rng.uniform(x0, x1 - 0.05), rng.uniform(0.45, low - 0.12)
            size = rng.uniform(0.02, 0.09, 2)
            patch = ((gx, min(gx + size[0], x1)), (gy, min(gy + size[1], low)))
            draw.box(
                tile,
                *patch,
                tuple(rng.uniform(0.2, 0.7) * rng.normal(1, 0.3, 3).clip(0.4, 1.6)),
                keep=0.35,
            )
        draw.box(tile, (x0, x1), (0.25, 0.25 + rng.uniform(0.1, 0.3)), (0.7, 0.66, 0.6), keep=0.6)
    return tile


def roof(rng: Rng, colour: Colour) -> np.ndarray:
    """Roof tiles."""
    tile = paving(rng, 16, 16, 0.6)
    tile[..., :3] *= np.array(colour, np.float32) / 0.62
    return tile


def foliage(rng: Rng) -> np.ndarray:
    """Dense leaves, as of a hedge."""
    clumps, leaves = draw.noise(rng, 8, 3), draw.noise(rng, 64, 2)
    tile = draw.plain((0.26, 0.45, 0.37), (clumps, 0.2), (leaves, 0.22))
    tile[..., 2] *= 1 + 0.06 * draw.noise(rng, 4, 2)
    return tile


def leaves(rng: Rng, bare: bool = False) -> np.ndarray:
    """A clump of leaves with a ragged edge and holes; or bare twigs."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / (SIZE - 1) * 2 - 1
    radius = np.sqrt(x * x + y * y)
    if bare:
        tile = draw.clear(draw.plain((0.30, 0.35, 0.40)))
        _twig(tile, rng, np.array([128.0, 250.0]), -np.pi / 2, 62.0, 6)
        return tile
    tile = foliage(rng)
    tile[..., :3] *= (0.78 - 0.34 * y)[..., None]
    ragged = radius + 0.10 * draw.noise(rng, 8, 2) + 0.07 * draw.noise(rng, 32, 2)
    tile[..., 3] = (ragged < 0.80) & (draw.noise(rng, 16, 3) + 2.6 * (1 - radius) > -0.1)
    tile[..., 3] *= radius < 0.98
    return tile


def _twig(tile: np.ndarray, rng: Rng, start: np.ndarray, angle: float, size: float, n: int) -> None:
    end = start + size * np.array([np.cos(angle), np.sin(angle)])
    width = max(1, round(size / 9))
    shade = 0.8 + 0.3 * rng.random()
    colour = (0.30 * shade, 0.35 * shade, 0.40 * shade, 1.0)
    cv2.line(tile, tuple(np.int32(start).tolist()), tuple(np.int32(end).tolist()), colour, width)
    for turn in rng.normal([-0.5, 0.1, 0.55], 0.18) if n else ():
        _twig(tile, rng, end, angle + turn, size * rng.uniform(0.6, 0.78), n - 1)


def bark(rng: Rng) -> np.ndarray:
    """The bark of a tree."""
    return draw.plain(
        (0.26, 0.33, 0.38), (draw.noise(rng, 64, 2, aspect=8), 0.22), (draw.noise(rng, 8, 2), 0.1)
    )


def odd(rng: Rng, kind: str) -> np.ndarray:
    """Patterns of anomalies: stripes, checker, hazard or dots."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    if kind == "stripes":
        colours = [(0.2, 0.1, 0.95), (0.95, 0.95, 0.95), (0.9, 0.35, 0.05), (0.1, 0.85, 1)]
        pick = (x * 8).astype(int) % 4
    elif kind == "checker":
        colours = [(0.85, 0.1, 0.8), (0.2, 1.0, 0.7)]
        pick = ((x * 6).astype(int) + (y * 6).astype(int)) % 2
    elif kind == "hazard":
        colours = [(0.05, 0.8, 1.0), (0.05, 0.05, 0.05)]
        pick = ((x + y) * 6).astype(int) % 2
    else:  # dots
        colours = [(0.75, 0.3, 0.9), (0.95, 0.95, 0.9)]
        pick = (np.hypot(x * 6 % 1 - 0.5, y * 6 % 1 - 0.5) < 0.28).astype(int)
    tile = draw.plain(1.0, (draw.noise(rng, 32, 2), 0.04))
    tile[..., :3] *= np.array(colours, np.float32)[pick]
    return tile


def leather(rng: Rng) -> np.ndarray:
    """Tufted leather."""
    tile = draw.plain(0.9, (draw.noise(rng, 64, 2), 0.06), (draw.noise(rng, 4, 2), 0.05))
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    tuft = np.hypot((x * 4 + ((y * 4).astype(int) % 2) / 2) % 1 - 0.5, y * 4 % 1 - 0.5)
    tile[..., :3] *= (0.5 + 0.5 * np.clip(tuft / 0.25, 0, 1))[..., None].astype(np.float32)
    return tile


def hide(rng: Rng) -> np.ndarray:
    """The hide of an elephant."""
    return draw.plain(0.8, (draw.noise(rng, 32, 3), 0.12), (draw.noise(rng, 16, 2, aspect=2), 0.1))
