"""Colours of the pixels: texture, light, paint, shadow, haze and sky.

Images are three separate planes here: NumPy is ten times slower on interleaved ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from penumbra.offline.scenes.camera import Camera
from penumbra.offline.scenes.light import Light, Stripe
from penumbra.offline.scenes.mesh import Mesh, cross
from penumbra.offline.scenes.ray_casting import Hits
from penumbra.offline.scenes.shadows import ShadowMap
from penumbra.offline.scenes.texture_atlas import atlas, clouds, stains
from penumbra.offline.scenes.tile_drawing import SIZE

DIRT = np.float32(23.7)
"""Texels of the stain image per tile: no simple fraction, so that the pattern does not repeat."""

SHARP = 0.5
"""Mip-map levels finer than one texel per pixel: a little grain, as photographs have."""


@dataclass(frozen=True)
class Viewpoint:
    """Position and rotation of the camera, and the rays of its pixels."""

    place: np.ndarray
    rotation: np.ndarray
    x: np.ndarray
    y: np.ndarray
    focal: float

    @classmethod
    def of(cls, place: np.ndarray, rotation: np.ndarray, camera: Camera, scale: int) -> Viewpoint:
        """The rays of `camera` on a `scale` times finer grid."""
        x, y = (axis.astype(np.float32) for axis in camera.rays(scale))
        x, y = (np.ascontiguousarray(axis) for axis in np.broadcast_arrays(x, y[:, None]))
        return cls(place, rotation, x, y, camera.focal_px * scale)


@dataclass(frozen=True)
class TextureLookup:
    """Texture coordinates, mip-map level, layer and light of each pixel."""

    u: np.ndarray
    v: np.ndarray
    lod: np.ndarray
    layer: np.ndarray
    light: list[np.ndarray]
    """Tint times light, three planes."""


@dataclass(frozen=True)
class Shader:
    """Turns hits into colours. Both cameras share one: all it depends on is fixed to the world."""

    mesh: Mesh
    light: Light
    shadows: ShadowMap
    stripes: tuple[Stripe, ...]

    def shade(self, hits: Hits, view: Viewpoint) -> np.ndarray:
        """float32 (height, width, 3), 0 to 255 before exposure and noise."""
        depth = 1 / hits.inverse_depth
        lookup = self._quads(hits, view, depth)
        self._rounds(hits, view, depth, lookup)
        tiles = atlas().sample(lookup.layer, lookup.u, lookup.v, lookup.lod)
        dirt = cv2.remap(
            stains(),
            lookup.u * DIRT,
            lookup.v * DIRT,
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_WRAP,
        )
        planes = [plane * dirt for plane in cv2.split(tiles)]
        self._ground(hits, view, depth, planes, lookup)
        haze = cv2.exp(depth * np.float32(-1 / self.light.haze_m))
        for plane, light, far in zip(planes, lookup.light, self.light.horizon, strict=True):
            plane *= light
            plane -= np.float32(far)
            plane *= haze
            plane += np.float32(far)
        image = cv2.merge(planes)
        sky = hits.surface == len(self.mesh.quads) + len(self.mesh.rounds)
        return self._sky(sky, view, image)

    def _quads(self, hits: Hits, view: Viewpoint, depth: np.ndarray) -> TextureLookup:
        """The lookup for quads; other pixels read the spare last entry of the tables."""
        quads = self.mesh.quads
        forms, light = np.zeros((8, len(quads) + 1), np.float32), np.zeros((3, len(quads) + 1))
        corners = quads["corners"]
        normal = cross(corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0])
        area = np.maximum(np.linalg.norm(normal, axis=1), 1e-12)
        normal = normal / area[:, None]
        plane = np.einsum("ij,ij->i", normal, corners[:, 0] - view.place)
        normal *= -np.sign(plane)[:, None]
        forms[0:6, :-1] = hits.quad_forms[:, :2].reshape(-1, 6).T
        # texels per pixel: density x depth / (f √cos), with cos = plane / depth the cosine of the
        # viewing angle and `plane` the distance of the surface's plane
        repeat = np.abs(quads["repeat"].astype(float).prod(axis=1))
        density = SIZE * np.sqrt(repeat / area / np.maximum(np.abs(plane), 1e-6))
        forms[6, :-1] = np.log2(np.maximum(density / view.focal, 1e-9)) - SHARP
        forms[7, :-1] = quads["texture"]
        sun, ambient = self.light.on(normal)
        # leaves transmit light: a card is lit from both sides
        through = 0.7 * self.light.on(-normal)[0]
        sun = np.where(quads["cut"][:, None], np.maximum(sun, through), sun)
        light[:, :-1] = ((sun + ambient) * quads["tint"]).T

        which = np.minimum(hits.surface, len(quads)).astype(np.intp)
        ux, uy, u1, vx, vy, v1, density, layer = (form.take(which, mode="clip") for form in forms)
        return TextureLookup(
            u=(ux * view.x + uy * view.y + u1) * depth,
            v=(vx * view.x + vy * view.y + v1) * depth,
            lod=density + cv2.log(depth) * np.float32(1.5 / np.log(2)),
            layer=layer,
            light=[plane.take(which, mode="clip") for plane in light.astype(np.float32)],
        )

    def _rounds(
        self, hits: Hits, view: Viewpoint, depth: np.ndarray, lookup: TextureLookup
    ) -> None:
        """Fill in the pixels that show a quadric."""
        first, rounds = len(self.mesh.quads), self.mesh.rounds
        pixel = np.flatnonzero((hits.surface >= first) & (hits.surface < first + len(rounds)))
        if not len(pixel):
            return
        which = hits.surface.ravel()[pixel] - first
        inverse = np.linalg.inv(rounds["axes"])
        to_unit = (inverse @ view.rotation).astype(np.float32)[which]
        start = np.einsum("nij,nj->ni", inverse, view.place - rounds["centre"])
        away = depth.ravel()[pixel]
        ray = np.stack([view.x.ravel()[pixel] * away, view.y.ravel()[pixel] * away, away], -1)
        unit = start.astype(np.float32)[which] + np.einsum("nij,nj->ni", to_unit, ray)
        around = unit * np.where(
            rounds["tube"][which][:, None], np.array([1, 0, 1], np.float32), np.float32(1)
        )
        normal = np.einsum("nji,nj->ni", inverse.astype(np.float32)[which], around)
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-9)
        repeat = rounds["repeat"][which]
        turn = np.arctan2(unit[:, 0], unit[:, 2]) / np.float32(2 * np.pi)
        lookup.u.ravel()[pixel] = turn * repeat[:, 0] + which * np.float32(0.37)
        lookup.v.ravel()[pixel] = (0.5 - 0.5 * unit[:, 1]) * repeat[:, 1]
        size = np.cbrt(np.abs(np.linalg.det(rounds["axes"])))
        texels = (SIZE / (4 * size * view.focal)).astype(np.float32)[which]
        lookup.lod.ravel()[pixel] = np.log2(texels * away * np.sqrt(repeat.prod(1)))
        lookup.layer.ravel()[pixel] = rounds["texture"][which]
        sun, ambient = self.light.on(normal)
        colour = (sun + ambient) * rounds["tint"][which]
        for k, plane in enumerate(lookup.light):
            plane.ravel()[pixel] = colour[:, k]

    def _ground(
        self,
        hits: Hits,
        view: Viewpoint,
        depth: np.ndarray,
        planes: list[np.ndarray],
        lookup: TextureLookup,
    ) -> None:
        """Painted lines and shadows, on horizontal surfaces near the level of the road."""
        quads = self.mesh.quads
        corners = quads["corners"]
        level = (np.ptp(corners[..., 1], axis=1) < 1e-6) & (corners[:, 0, 1] < 0.3)
        level &= ~quads["casts"]
        flags = np.zeros(len(quads) + 1, np.uint8)
        flags[:-1] = np.where(corners[:, 0, 1] == 0, 2, 1) * level  # 1: ground, 2: road
        flag = flags.take(np.minimum(hits.surface, len(quads)).astype(np.intp), mode="clip")
        rows = np.flatnonzero(flag.any(axis=1))
        if not len(rows):
            return
        band = slice(rows[0], rows[-1] + 1)
        flag, depth = flag[band], depth[band]
        x, z = (
            (r[0] * view.x[band] + r[1] * view.y[band] + r[2]) * depth + np.float32(e)
            for r, e in zip(
                view.rotation.astype(np.float32)[[0, 2]], view.place[[0, 2]], strict=True
            )
        )
        road = np.flatnonzero(flag == 2)
        self._stripes(road, x, z, depth, view, [plane[band].reshape(-1) for plane in planes])
        reached = np.where(flag > 0, self.shadows.at(x, z), np.float32(1))
        sun, ambient = self.light.on(np.array([0.0, 1.0, 0.0]))
        # in the shadow the sunlight is missing, and a little of the light of the hidden sky
        left = (0.85 * ambient / (sun + ambient)).astype(np.float32)
        for plane, rest in zip(lookup.light, left, strict=True):
            plane[band] *= rest + reached * (1 - rest)

    def _stripes(
        self,
        road: np.ndarray,
        x: np.ndarray,
        z: np.ndarray,
        depth: np.ndarray,
        view: Viewpoint,
        planes: list[np.ndarray],
    ) -> None:
        """Painted lines, blended by the share of each pixel's footprint that they cover."""
        x, z, depth = (field.ravel()[road] for field in (x, z, depth))
        across = depth * np.float32(1 / view.focal)
        for stripe in self.stripes:
            off = np.abs(x - np.float32(stripe.x))
            near = np.flatnonzero(off < across + np.float32(stripe.width / 2))
            fx, pz = across[near], z[near]
            fz = fx * depth[near] / np.float32(view.place[1])
            cover = np.clip((stripe.width / 2 - off[near]) / fx + 0.5, 0, 1)
            cover *= np.minimum(stripe.width / fx, 1)
            inside = [np.minimum(pz - start, end - pz) for start, end in stripe.spans]
            cover *= np.clip(np.max(inside, axis=0) / fz + 0.5, 0, 1)
            if stripe.period:
                phase = np.abs(np.mod(pz, stripe.period) - stripe.period / 2)
                dashes = np.clip((stripe.dash / 2 - phase) / fz + 0.5, 0, 1)
                blur = np.clip(fz / stripe.period, 0, 1)
                cover *= dashes * (1 - blur) + blur * stripe.dash / stripe.period
            pixel = road[near]
            worn = 0.75 + 0.25 * planes[0][pixel] / 107.0  # the grain of the asphalt shows through
            for plane, paint in zip(planes, stripe.colour, strict=True):
                under = plane[pixel]
                plane[pixel] = under + 0.88 * cover * (paint * worn - under)

    def _sky(self, sky: np.ndarray, view: Viewpoint, image: np.ndarray) -> np.ndarray:
        """Draw the sky, which is smooth: at a quarter of the resolution, scaled up."""
        if not sky.any():
            return image
        rows, columns = sky.shape
        grid = (max(columns // 4, 2), max(rows // 4, 2))
        x, y = (cv2.resize(axis, grid, interpolation=cv2.INTER_AREA) for axis in (view.x, view.y))
        east, up, north = (r[0] * x + r[1] * y + r[2] for r in view.rotation.astype(np.float32))
        length = np.sqrt(east**2 + up**2 + north**2)
        up = np.maximum(up / length, 0)
        low, high = (np.array(c, np.float32) for c in (self.light.horizon, self.light.zenith))
        colour = low + (1 - np.exp(-3.2 * up))[..., None] * (high - low)
        # clouds lie on a horizontal plane and fade towards the horizon
        rise = 60 / (length * (np.maximum(up, 0.03) + 0.12))
        field = cv2.remap(
            clouds(),
            east * rise,
            north * rise,
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_WRAP,
        )
        cover = np.clip(0.45 * field + self.light.cloud - 0.35, 0, 1) * np.clip(up * 9, 0, 1)
        white = (low + 12) * (0.97 - 0.06 * field[..., None])
        colour += (0.85 * cover)[..., None] * (white - colour)
        sun = self.light.toward
        glow = np.maximum((east * sun[0] + north * sun[2]) / length + up * sun[1], 0) ** 12
        colour += glow[..., None] * np.array([60 * s for s in self.light.sun], np.float32)
        smooth = cv2.resize(colour, (columns, rows), interpolation=cv2.INTER_LINEAR)
        return cv2.copyTo(smooth, sky.astype(np.uint8), image)
