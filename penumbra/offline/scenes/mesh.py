"""Geometry as two structured arrays: textured convex quadrilaterals and quadrics.

Rays intersect both in closed form, so labels and depth are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.offline.scenes import texture_atlas

_SURFACE = [
    ("texture", "i4"),
    ("tint", "f4", 3),
    ("repeat", "f4", 2),
    ("offset", "f4", 2),
    ("label", "u1"),
    ("anomaly", "?"),
    ("casts", "?"),
]
QUAD = np.dtype([*_SURFACE, ("corners", "f8", (4, 3)), ("closed", "?"), ("cut", "?")])
"""Texture coordinates run from `offset` to `offset + repeat` along corners 0-1 (u) and 0-3 (v).
`closed`: part of a solid, visible only from the side cross(01, 03) points to. `cut`: the texture
has holes. Corners 2 and 3 may be equal (a triangle)."""
ROUND = np.dtype([*_SURFACE, ("centre", "f8", 3), ("axes", "f8", (3, 3)), ("tube", "?")])
"""The set |axes⁻¹ (p - centre)| = 1; `axes` holds the semi-axes as columns. A tube is an open
cylinder around the second axis."""

Vector = Sequence[float] | np.ndarray
WHITE = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Mesh:
    """Surfaces: `quads` of dtype QUAD and `rounds` of dtype ROUND."""

    quads: np.ndarray
    rounds: np.ndarray

    @classmethod
    def join(cls, parts: Iterable[Mesh]) -> Mesh:
        """All surfaces of `parts`, in their order."""
        parts = list(parts)
        return cls(_stack([p.quads for p in parts], QUAD), _stack([p.rounds for p in parts], ROUND))

    def moved(self, x: float, z: float, heading: float = 0.0, y: float = 0.0) -> Mesh:
        """Rotated by `heading` (radians, positive to the right) about y, then translated."""
        c, s = math.cos(heading), math.sin(heading)
        turn = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
        quads, rounds = self.quads.copy(), self.rounds.copy()
        quads["corners"] = quads["corners"] @ turn.T + (x, y, z)
        rounds["centre"] = rounds["centre"] @ turn.T + (x, y, z)
        rounds["axes"] = turn @ rounds["axes"]
        return Mesh(quads, rounds)

    def marked(self, label: int, anomaly: bool = False) -> Mesh:
        """The same geometry with one label."""
        quads, rounds = self.quads.copy(), self.rounds.copy()
        for part in (quads, rounds):
            part["label"], part["anomaly"] = label, anomaly
        return Mesh(quads, rounds)


class Builder:
    """Collects surfaces of one label; `mesh()` returns them."""

    def __init__(self, label: int) -> None:
        self.label = label
        self._quads: list[tuple] = []
        self._rounds: list[tuple] = []
        self._rods: list[tuple] = []

    def mesh(self) -> Mesh:
        """The surfaces added so far."""
        rounds = np.array(self._rounds, ROUND)
        if self._rods:
            which, start, end, radius = (
                np.array(column) for column in zip(*self._rods, strict=True)
            )
            rounds["centre"][which], rounds["axes"][which] = rods(start, end, radius)
        return Mesh(np.array(self._quads, QUAD), rounds)

    def quad(
        self,
        corners: Sequence[Vector],
        texture: str,
        tint: Vector = WHITE,
        repeat: tuple[float, float] = (1, 1),
        offset: tuple[float, float] = (0, 0),
        *,
        label: int | None = None,
        closed: bool = False,
        casts: bool = True,
    ) -> None:
        """A textured quadrilateral; see QUAD for its arguments."""
        layer, cut = texture_atlas.find(texture)
        label = self.label if label is None else label
        points = tuple(tuple(c) for c in corners)
        row = (layer, tuple(tint), repeat, offset, label, False, casts, points, closed, cut)
        self._quads.append(row)

    def ground(
        self,
        x: tuple[float, float],
        z: tuple[float, float],
        y: float,
        texture: str,
        tint: Vector = WHITE,
        tile: float = 4.0,
        *,
        label: int | None = None,
    ) -> None:
        """A horizontal rectangle; its texture, `tile` metres wide, is anchored to the world."""
        (x0, x1), (z0, z1) = x, z
        self.quad(
            [(x0, y, z0), (x1, y, z0), (x1, y, z1), (x0, y, z1)],
            texture,
            tint,
            ((x1 - x0) / tile, (z1 - z0) / tile),
            (x0 / tile % 1, z0 / tile % 1),
            label=label,
            casts=False,
        )

    def box(
        self,
        low: Vector,
        high: Vector,
        texture: str | Mapping[str, str],
        tint: Vector | Mapping[str, Vector] = WHITE,
        tile: float | None = None,
        *,
        label: int | None = None,
        skip: str = "bottom",
    ) -> None:
        """An upright box with one texture and tint, or one for each face.

        The faces are left, right, near, far, top and bottom; "*" stands for the others. `tile`
        repeats the texture every so many metres; None stretches it over the face.
        """
        (x0, y0, z0), (x1, y1, z1) = low, high
        faces = {
            "near": [(x0, y1, z0), (x1, y1, z0), (x1, y0, z0), (x0, y0, z0)],
            "far": [(x1, y1, z1), (x0, y1, z1), (x0, y0, z1), (x1, y0, z1)],
            "left": [(x0, y1, z1), (x0, y1, z0), (x0, y0, z0), (x0, y0, z1)],
            "right": [(x1, y1, z0), (x1, y1, z1), (x1, y0, z1), (x1, y0, z0)],
            "top": [(x0, y1, z1), (x1, y1, z1), (x1, y1, z0), (x0, y1, z0)],
            "bottom": [(x0, y0, z0), (x1, y0, z0), (x1, y0, z1), (x0, y0, z1)],
        }
        for name, corners in faces.items():
            if name in skip.split():
                continue
            look = texture if isinstance(texture, str) else texture.get(name, texture["*"])
            colour = tint.get(name, tint["*"]) if isinstance(tint, Mapping) else tint
            repeat = (1.0, 1.0)
            if tile:
                repeat = (math.dist(*corners[:2]) / tile, math.dist(*corners[1:3]) / tile)
            self.quad(corners, look, colour, repeat, label=label, closed=True)

    def ball(
        self,
        centre: Vector,
        radii: Vector,
        texture: str = "plain",
        tint: Vector = WHITE,
        repeat: tuple[float, float] = (1, 1),
        *,
        tilt: float = 0.0,
        label: int | None = None,
    ) -> None:
        """An ellipsoid, tilted about x by `tilt` radians."""
        c, s = math.cos(tilt), math.sin(tilt)
        axes = np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) * np.asarray(radii, float)
        self._round(centre, axes, texture, tint, repeat, False, label)

    def rod(
        self,
        start: Vector,
        end: Vector,
        radius: float,
        texture: str = "plain",
        tint: Vector = WHITE,
        repeat: tuple[float, float] = (1, 1),
        *,
        tube: bool = True,
        label: int | None = None,
    ) -> None:
        """A cylinder from start to end, or (tube=False) an ellipsoid."""
        self._rods.append((len(self._rounds), start, end, radius))
        self._round((0, 0, 0), np.eye(3), texture, tint, repeat, tube, label)

    def _round(
        self,
        centre: Vector,
        axes: np.ndarray,
        texture: str,
        tint: Vector,
        repeat: tuple[float, float],
        tube: bool,
        label: int | None,
    ) -> None:
        layer, _ = texture_atlas.find(texture)
        label = self.label if label is None else label
        place = (tuple(centre), axes.tolist(), tube)
        self._rounds.append((layer, tuple(tint), repeat, (0, 0), label, False, True, *place))


def _stack(parts: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """np.concatenate without its slow comparison of the fields of every part."""
    raw = np.dtype((np.void, dtype.itemsize))
    return np.concatenate([np.empty(0, raw), *(part.view(raw) for part in parts)]).view(dtype)


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cross product over the last axis; faster than np.cross for small arrays."""
    x, y, z = a[..., 0], a[..., 1], a[..., 2]
    u, v, w = b[..., 0], b[..., 1], b[..., 2]
    return np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=-1)


def rods(start: np.ndarray, end: np.ndarray, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centres (n, 3) and semi-axes (n, 3, 3) of round bodies from start to end."""
    along = (end - start) / 2
    length = np.linalg.norm(along, axis=-1, keepdims=True)
    # any direction not parallel to the rod will do for the first radial axis
    helper = np.where(np.abs(along[:, :1]) < 0.7 * length, [[1.0, 0, 0]], [[0, 0, 1.0]])
    first = cross(along, helper)
    first /= np.linalg.norm(first, axis=-1, keepdims=True)
    second = cross(first, along / length)
    scale = np.asarray(radius)[:, None]
    return (start + end) / 2, np.stack([first * scale, along, second * scale], axis=-1)
