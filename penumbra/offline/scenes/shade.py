"""How the surfaces that the rays met look: texture, light, paint, shadow, haze and sky.

Pictures are kept as three separate planes here: numpy is ten times slower on interleaved ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from penumbra.offline.scenes import textures
from penumbra.offline.scenes.camera import Camera
from penumbra.offline.scenes.light import Light, Stripe
from penumbra.offline.scenes.mesh import Mesh, cross
from penumbra.offline.scenes.raster import Hits
from penumbra.offline.scenes.shadows import ShadowMap

DIRT = np.float32(23.7)
"""Texels of the stain picture per tile: no simple fraction, so that stains and tiles drift."""

SHARP = 0.5
"""Levels finer than one texel per pixel: a little grain, as pictures have."""


@dataclass(frozen=True)
class Eye:
    """Where the picture is taken from, and the rays of its pixels."""

    place: np.ndarray
    rotation: np.ndarray
    x: np.ndarray
    y: np.ndarray
    focal: float

    @classmethod
    def of(cls, place: np.ndarray, rotation: np.ndarray, camera: Camera, scale: int) -> Eye:
        x, y = (axis.astype(np.float32) for axis in camera.rays(scale))
        x, y = (np.ascontiguousarray(axis) for axis in np.broadcast_arrays(x, y[:, None]))
        return cls(place, rotation, x, y, camera.focal * scale)


@dataclass(frozen=True)
class Look:
    """What is gathered for each pixel before it is coloured."""

    u: np.ndarray
    v: np.ndarray
    lod: np.ndarray
    layer: np.ndarray
    light: list[np.ndarray]
    """Tint times light, in three planes."""


@dataclass(frozen=True)
class Shader:
    """Turns hits into colours. One for both eyes: everything is fixed to the world."""

    mesh: Mesh
    light: Light
    shadows: ShadowMap
    stripes: tuple[Stripe, ...]

    def shade(self, hits: Hits, eye: Eye) -> np.ndarray:
        """float32 (height, width, 3), 0 to 255 before exposure and noise."""
        depth = 1 / hits.inverse_depth
        look = self._quads(hits, eye, depth)
        self._rounds(hits, eye, depth, look)
        tiles = textures.atlas().sample(look.layer, look.u, look.v, look.lod)
        dirt = cv2.remap(
            textures.stains(),
            look.u * DIRT,
            look.v * DIRT,
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_WRAP,
        )
        planes = [plane * dirt for plane in cv2.split(tiles)]
        self._ground(hits, eye, depth, planes, look)
        haze = cv2.exp(depth * np.float32(-1 / self.light.haze_m))
        for plane, light, far in zip(planes, look.light, self.light.horizon, strict=True):
            plane *= light
            plane -= np.float32(far)
            plane *= haze
            plane += np.float32(far)
        picture = cv2.merge(planes)
        sky = hits.surface == len(self.mesh.quads) + len(self.mesh.rounds)
        return self._sky(sky, eye, picture)

    def _quads(self, hits: Hits, eye: Eye, depth: np.ndarray) -> Look:
        """The looks of quads; what is not a quad reads the tables' spare last entry."""
        quads = self.mesh.quads
        forms, light = np.zeros((8, len(quads) + 1), np.float32), np.zeros((3, len(quads) + 1))
        corners = quads["corners"]
        normal = cross(corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0])
        area = np.maximum(np.linalg.norm(normal, axis=1), 1e-12)
        normal = normal / area[:, None]
        plane = np.einsum("ij,ij->i", normal, corners[:, 0] - eye.place)
        normal *= -np.sign(plane)[:, None]
        forms[0:6, :-1] = hits.quad_forms[:, :2].reshape(-1, 6).T
        # texels under a pixel: density x depth / (f √cos), where cos = plane / depth says how
        # aslant the surface, `plane` metres from the eye, is seen
        repeat = np.abs(quads["repeat"].astype(float).prod(axis=1))
        density = textures.SIZE * np.sqrt(repeat / area / np.maximum(np.abs(plane), 1e-6))
        forms[6, :-1] = np.log2(np.maximum(density / eye.focal, 1e-9)) - SHARP
        forms[7, :-1] = quads["texture"]
        sun, ambient = self.light.on(normal)
        # leaves let the light through: a card is lit from either side
        through = 0.7 * self.light.on(-normal)[0]
        sun = np.where(quads["cut"][:, None], np.maximum(sun, through), sun)
        light[:, :-1] = ((sun + ambient) * quads["tint"]).T

        which = np.minimum(hits.surface, len(quads)).astype(np.intp)
        ux, uy, u1, vx, vy, v1, density, layer = (form.take(which, mode="clip") for form in forms)
        return Look(
            u=(ux * eye.x + uy * eye.y + u1) * depth,
            v=(vx * eye.x + vy * eye.y + v1) * depth,
            lod=density + cv2.log(depth) * np.float32(1.5 / np.log(2)),
            layer=layer,
            light=[plane.take(which, mode="clip") for plane in light.astype(np.float32)],
        )

    def _rounds(self, hits: Hits, eye: Eye, depth: np.ndarray, look: Look) -> None:
        """The same where a round surface was met."""
        first, rounds = len(self.mesh.quads), self.mesh.rounds
        pixel = np.flatnonzero((hits.surface >= first) & (hits.surface < first + len(rounds)))
        if not len(pixel):
            return
        which = hits.surface.ravel()[pixel] - first
        inverse = np.linalg.inv(rounds["axes"])
        to_unit = (inverse @ eye.rotation).astype(np.float32)[which]
        start = np.einsum("nij,nj->ni", inverse, eye.place - rounds["centre"])
        away = depth.ravel()[pixel]
        ray = np.stack([eye.x.ravel()[pixel] * away, eye.y.ravel()[pixel] * away, away], -1)
        unit = start.astype(np.float32)[which] + np.einsum("nij,nj->ni", to_unit, ray)
        around = unit * np.where(rounds["tube"][which][:, None], np.float32([1, 0, 1]), 1)
        normal = np.einsum("nji,nj->ni", inverse.astype(np.float32)[which], around)
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-9)
        repeat = rounds["repeat"][which]
        turn = np.arctan2(unit[:, 0], unit[:, 2]) / np.float32(2 * np.pi)
        look.u.ravel()[pixel] = turn * repeat[:, 0] + which * np.float32(0.37)
        look.v.ravel()[pixel] = (0.5 - 0.5 * unit[:, 1]) * repeat[:, 1]
        size = np.cbrt(np.abs(np.linalg.det(rounds["axes"])))
        texels = (textures.SIZE / (4 * size * eye.focal)).astype(np.float32)[which]
        look.lod.ravel()[pixel] = np.log2(texels * away * np.sqrt(repeat.prod(1)))
        look.layer.ravel()[pixel] = rounds["texture"][which]
        sun, ambient = self.light.on(normal)
        colour = (sun + ambient) * rounds["tint"][which]
        for k, plane in enumerate(look.light):
            plane.ravel()[pixel] = colour[:, k]

    def _ground(
        self, hits: Hits, eye: Eye, depth: np.ndarray, planes: list[np.ndarray], look: Look
    ) -> None:
        """Painted lines and shadows where a horizontal surface near the road's level was met."""
        quads = self.mesh.quads
        corners = quads["corners"]
        level = (np.ptp(corners[..., 1], axis=1) < 1e-6) & (corners[:, 0, 1] < 0.3)
        level &= ~quads["casts"]
        flags = np.zeros(len(quads) + 1, np.uint8)
        flags[:-1] = np.where(corners[:, 0, 1] == 0, 2, 1) * level  # 1 ground, 2 the bare road
        flag = flags.take(np.minimum(hits.surface, len(quads)).astype(np.intp), mode="clip")
        rows = np.flatnonzero(flag.any(axis=1))
        if not len(rows):
            return
        band = slice(rows[0], rows[-1] + 1)
        flag, depth = flag[band], depth[band]
        x, z = (
            (r[0] * eye.x[band] + r[1] * eye.y[band] + r[2]) * depth + np.float32(e)
            for r, e in zip(eye.rotation.astype(np.float32)[[0, 2]], eye.place[[0, 2]], strict=True)
        )
        road = np.flatnonzero(flag == 2)
        self._stripes(road, x, z, depth, eye, [plane[band].reshape(-1) for plane in planes])
        reached = np.where(flag > 0, self.shadows.at(x, z), np.float32(1))
        sun, ambient = self.light.on(np.array([0.0, 1.0, 0.0]))
        # what the sun gives is missing, and a little of the sky, which the same thing hides
        left = (0.85 * ambient / (sun + ambient)).astype(np.float32)
        for plane, rest in zip(look.light, left, strict=True):
            plane[band] *= rest + reached * (1 - rest)

    def _stripes(
        self,
        road: np.ndarray,
        x: np.ndarray,
        z: np.ndarray,
        depth: np.ndarray,
        eye: Eye,
        planes: list[np.ndarray],
    ) -> None:
        """Lines, each pixel covered by the share of its footprint on the road."""
        x, z, depth = (field.ravel()[road] for field in (x, z, depth))
        across = depth * np.float32(1 / eye.focal)
        for stripe in self.stripes:
            off = np.abs(x - np.float32(stripe.x))
            near = np.flatnonzero(off < across + np.float32(stripe.width / 2))
            fx, pz = across[near], z[near]
            fz = fx * depth[near] / np.float32(eye.place[1])
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
            worn = 0.75 + 0.25 * planes[0][pixel] / 107.0  # the asphalt's grain shows through
            for plane, paint in zip(planes, stripe.colour, strict=True):
                under = plane[pixel]
                plane[pixel] = under + 0.88 * cover * (paint * worn - under)

    def _sky(self, sky: np.ndarray, eye: Eye, picture: np.ndarray) -> np.ndarray:
        """The sky is smooth: a quarter of the resolution, scaled up, looks the same."""
        if not sky.any():
            return picture
        rows, columns = sky.shape
        grid = (max(columns // 4, 2), max(rows // 4, 2))
        x, y = (cv2.resize(axis, grid, interpolation=cv2.INTER_AREA) for axis in (eye.x, eye.y))
        east, up, north = (r[0] * x + r[1] * y + r[2] for r in eye.rotation.astype(np.float32))
        length = np.sqrt(east**2 + up**2 + north**2)
        up = np.maximum(up / length, 0)
        low, high = np.float32(self.light.horizon), np.float32(self.light.zenith)
        colour = low + (1 - np.exp(-3.2 * up))[..., None] * (high - low)
        # clouds lie on a plane overhead, and fade where it meets the horizon
        rise = 60 / (length * (np.maximum(up, 0.03) + 0.12))
        field = cv2.remap(
            textures.clouds(),
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
        colour += glow[..., None] * np.float32([60 * s for s in self.light.sun])
        smooth = cv2.resize(colour, (columns, rows), interpolation=cv2.INTER_LINEAR)
        return cv2.copyTo(smooth, sky.astype(np.uint8), picture)
