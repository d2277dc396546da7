"""All tiles with their mip-map levels in one image, so that one remap samples every surface."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from penumbra.offline.scenes.tile_catalogue import painters
from penumbra.offline.scenes.tile_drawing import SIZE, noise

LEVELS = 7
_BAND = SIZE + 2
# each level has a border of one wrapped texel, so that bilinear sampling never reaches another tile
_LEVEL_SIZE = [SIZE >> k for k in range(LEVELS)]
_LEVEL_LEFT = np.cumsum([0] + [n + 2 for n in _LEVEL_SIZE[:-1]])
_SIZES, _LEFTS = np.array(_LEVEL_SIZE, np.float32), np.array(_LEVEL_LEFT + 0.5, np.float32)


class Atlas:
    """Every tile at every level: tiles from top to bottom, levels from left to right."""

    def __init__(self) -> None:
        table = painters()
        self.layers = {name: k for k, name in enumerate(table)}
        width = int(_LEVEL_LEFT[-1] + _LEVEL_SIZE[-1] + 2)
        self.colours = np.zeros((len(table) * _BAND, width, 3), np.uint8)
        self.cut = np.zeros(len(table), bool)
        self._starts = np.zeros((len(table), LEVELS), int)
        self._solid: list[np.ndarray] = []
        for layer, (name, painter) in enumerate(table.items()):
            # seeded by the name of the tile, so that a new tile does not change the others
            tile = painter(np.random.default_rng([7, *name.encode()])).astype(np.float32)
            self.cut[layer] = bool((tile[..., 3] < 0.5).any())
            self._store(layer, np.clip(tile, 0, 1))
        self.bits = np.concatenate(self._solid)
        """bool: where tiles with holes are solid, by tile, level and texel."""

    def _store(self, layer: int, tile: np.ndarray) -> None:
        top = layer * _BAND
        # holes take the mean colour first, so that they do not bleed into smaller levels
        tile = tile.copy()
        if self.cut[layer]:
            solid = tile[..., 3] > 0.5
            tile[~solid, :3] = tile[solid, :3].mean(axis=0)
        cover = float((tile[..., 3] > 0.5).mean())
        for level, (size, left) in enumerate(zip(_LEVEL_SIZE, _LEVEL_LEFT, strict=True)):
            small = cv2.resize(tile, (size, size), interpolation=cv2.INTER_AREA)
            if self.cut[layer]:
                # the threshold that keeps the share of holes; otherwise thin bars vanish far away
                solid = small[..., 3] >= max(np.quantile(small[..., 3], 1 - cover), 0.1)
                self._starts[layer, level] = sum(map(len, self._solid))
                self._solid.append(solid.ravel())
            padded = np.pad(small[..., :3], ((1, 1), (1, 1), (0, 0)), mode="wrap")
            place = slice(top, top + size + 2), slice(left, left + size + 2)
            self.colours[place] = np.round(padded * 255)

    def holes(self, layer: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start in `bits` of tiles at their levels, and their width in texels."""
        level = np.clip(level, 0, LEVELS - 1)
        return self._starts[layer, level], np.take(_LEVEL_SIZE, level)

    def solid(
        self, start: int | np.ndarray, size: int | np.ndarray, u: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        """Whether a tile is solid at (u, v), by the nearest texel."""
        # sizes are powers of two: the mask wraps negative numbers as well
        row = np.floor(v * np.float32(size)).astype(np.int64) & (size - 1)
        column = np.floor(u * np.float32(size)).astype(np.int64) & (size - 1)
        return self.bits.take(start + row * size + column)

    def sample(
        self, layer: np.ndarray, u: np.ndarray, v: np.ndarray, lod: np.ndarray
    ) -> np.ndarray:
        """Colours (uint8) at (u, v), blended between the two nearest levels."""
        lod = np.clip(lod, 0, LEVELS - 1 - 1e-3)
        level = lod.astype(np.int32).astype(np.intp)  # faster than one conversion
        u, v = u - np.floor(u), v - np.floor(v)
        top = layer * np.float32(_BAND) + np.float32(0.5)
        fine, coarse = (
            cv2.remap(
                self.colours,
                # the centre of texel k is at (k + 1/2) / size; the border shifts it by one
                u * _SIZES.take(at, mode="clip") + _LEFTS.take(at, mode="clip"),
                v * _SIZES.take(at, mode="clip") + top,
                cv2.INTER_LINEAR,
            )
            for at in (level, level + 1)
        )
        share = (lod - level).astype(np.float32)
        return cv2.blendLinear(fine, coarse, 1 - share, share)


@lru_cache(maxsize=1)
def atlas() -> Atlas:
    """The atlas, painted at first use, once per process."""
    return Atlas()


@lru_cache(maxsize=1)
def stains() -> np.ndarray:
    """Slow brightness variations (float32, mean 1), which hide the repetition of tiles."""
    rng = np.random.default_rng(11)
    field = noise(rng, 4, 6)
    return np.clip(1 + 0.085 * field, 0.7, 1.25).astype(np.float32)


@lru_cache(maxsize=1)
def clouds() -> np.ndarray:
    """Wrapping fractal noise (float32, about unit variance)."""
    return noise(np.random.default_rng(12), 4, 6).astype(np.float32)


def find(name: str) -> tuple[int, bool]:
    """A tile's layer in the atlas, and whether it has holes."""
    book = atlas()
    layer = book.layers[name]
    return layer, bool(book.cut[layer])
