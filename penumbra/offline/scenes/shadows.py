"""Shadows on the ground: a map of the street from above."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np

from penumbra.offline.scenes.light import Light
from penumbra.offline.scenes.mesh import Mesh


@dataclass(frozen=True)
class ShadowMap:
    """Share of the sunlight that reaches the ground: uint8 over (z, x), cells of CELL metres."""

    light: np.ndarray
    x0: float
    z0: float
    CELL: ClassVar[float] = 0.125

    @classmethod
    def empty(cls, x: tuple[float, float], z: tuple[float, float]) -> ShadowMap:
        """A map of the ranges `x` and `z` in metres, without shadows."""
        shape = (math.ceil((z[1] - z[0]) / cls.CELL), math.ceil((x[1] - x[0]) / cls.CELL))
        return cls(np.full(shape, 255, np.uint8), x[0], z[0])

    def with_casters(self, mesh: Mesh, light: Light) -> ShadowMap:
        """The map with the shadows of all surfaces that cast one."""
        plane = self.light.copy()
        sun = np.array(light.toward)
        quads = mesh.quads[mesh.quads["casts"]]
        outline = np.linspace(0, 2 * np.pi, 10, endpoint=False)
        ring = np.stack([np.cos(outline), np.zeros(10), np.sin(outline)], -1)
        tilted = np.stack([np.cos(outline), np.sin(outline), np.zeros(10)], -1)
        # a tile with holes (leaves, railings) casts a ragged star instead of its rectangle
        star = (
            0.5
            + 0.5
            * np.stack([np.cos(outline), np.sin(outline)], -1)
            * (0.72 + 0.2 * np.cos(3 * outline + 1))[:, None]
        )
        leaf = quads["cut"]
        p0 = quads["corners"][leaf][:, 0]
        e1 = quads["corners"][leaf][:, 1] - p0
        e2 = quads["corners"][leaf][:, 3] - p0
        stars = p0[:, None] + star[:, :1] * e1[:, None] + star[:, 1:] * e2[:, None]
        bodies = [
            rounds["centre"][:, None] + unit @ rounds["axes"].transpose(0, 2, 1)
            for rounds in (mesh.rounds[mesh.rounds["casts"]],)
            for unit in (ring, tilted)
        ]
        for points in (quads["corners"][~leaf], stars, *bodies):
            self._fill(plane, points, sun)
        return ShadowMap(plane, self.x0, self.z0)

    def _fill(self, plane: np.ndarray, points: np.ndarray, sun: np.ndarray) -> None:
        height = np.maximum(points[..., 1:2], 0)
        flat = points[..., [0, 2]] - height * (sun[[0, 2]] / sun[1])
        cells = (flat - (self.x0, self.z0)) / self.CELL
        high, wide = plane.shape
        hit = (cells.max(axis=1) > 0).all(axis=1) & (cells.min(axis=1) < (wide, high)).all(axis=1)
        # eight fractional bits; clipped to the range of OpenCV's integers
        for shape in (np.clip(cells[hit], -8192, 8192) * 256).astype(np.int32):
            cv2.fillConvexPoly(plane, shape, 0, cv2.LINE_AA, 8)

    def between(self, near: float, far: float) -> ShadowMap:
        """The part of the map from z = near to z = far."""
        rows = len(self.light)
        first = min(max(math.floor((near - self.z0) / self.CELL), 0), rows - 1)
        last = min(max(math.ceil((far - self.z0) / self.CELL), first + 1), rows)
        return ShadowMap(self.light[first:last], self.x0, self.z0 + first * self.CELL)

    def softened(self, metres: float) -> ShadowMap:
        """Blurred by a Gaussian of standard deviation `metres`."""
        blurred = cv2.GaussianBlur(self.light, (0, 0), metres / self.CELL)
        return ShadowMap(blurred, self.x0, self.z0)

    def at(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Share of the sunlight, 0 to 1, at world points on the ground."""
        column = ((x - self.x0) / self.CELL - 0.5).astype(np.float32)
        row = ((z - self.z0) / self.CELL - 0.5).astype(np.float32)
        edge = cv2.BORDER_REPLICATE
        return cv2.remap(self.light, column, row, cv2.INTER_LINEAR, borderMode=edge) * np.float32(
            1 / 255
        )
