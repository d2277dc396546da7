"""Walking pedestrians and pedalling cyclists, made of ellipsoids. They face +z."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penumbra.offline.datasets.camvid_classes import BICYCLIST, PEDESTRIAN
from penumbra.offline.scenes import texture_atlas
from penumbra.offline.scenes.mesh import QUAD, ROUND, Builder, Mesh, Vector, rods
from penumbra.offline.scenes.tile_drawing import Colour
from penumbra.offline.scenes.vehicles import bicycle

Rng = np.random.Generator
SKIN = [(0.55, 0.68, 0.90), (0.42, 0.55, 0.76), (0.30, 0.42, 0.60), (0.20, 0.28, 0.42)]
HAIR = [
    (0.08, 0.08, 0.09),
    (0.12, 0.2, 0.3),
    (0.35, 0.6, 0.75),
    (0.55, 0.55, 0.56),
    (0.1, 0.25, 0.5),
]


def _dye(rng: Rng, grey: float, colourful: float) -> Colour:
    blue, green, red = np.clip(grey * rng.normal(1, colourful, 3), 0.03, 1).tolist()
    return blue, green, red


class _Limb(NamedTuple):
    start: Vector
    end: Vector
    radius: float
    colour: Colour


@dataclass(frozen=True)
class Person:
    """Size and clothes of a person; `at(phase)` is the body in a phase of its stride."""

    size: float
    shirt: Colour
    trousers: Colour
    skin: Colour
    hair: Colour
    coat: bool
    label: int = PEDESTRIAN
    mount: Mesh | None = None

    @classmethod
    def draw(cls, rng: Rng, cycling: bool = False) -> Person:
        """A random pedestrian, or cyclist."""
        mount = None
        if cycling:
            frame = Builder(BICYCLIST)
            bicycle(frame, rng)
            mount = frame.mesh()
        child = rng.random() < 0.12 and not cycling
        return cls(
            size=float(rng.uniform(1.1, 1.4) if child else rng.normal(1.72, 0.08)),
            shirt=_dye(rng, rng.uniform(0.08, 0.8), 0.28),
            trousers=_dye(rng, rng.uniform(0.08, 0.4), 0.15),
            skin=SKIN[rng.integers(len(SKIN))],
            hair=HAIR[rng.integers(len(HAIR))],
            coat=bool(rng.random() < 0.4),
            label=BICYCLIST if cycling else PEDESTRIAN,
            mount=mount,
        )

    def at(self, phase: float) -> Mesh:
        """The body at a phase of its stride (radians); 2π is two steps or a turn of the cranks."""
        limbs = self._riding(phase) if self.mount else self._walking(phase)
        start = np.array([limb.start for limb in limbs])
        end = np.array([limb.end for limb in limbs])
        # ellipsoids end in points: a little longer than the limb, they overlap at the joints
        along = (end - start) * 0.13
        centre, axes = rods(start - along, end + along, np.array([limb.radius for limb in limbs]))
        scale = self.size / 1.75
        rounds = np.zeros(len(limbs), ROUND)
        rounds["centre"], rounds["axes"] = centre * scale, axes * scale
        rounds["tint"] = [limb.colour for limb in limbs]
        rounds["repeat"] = (1, 1)
        rounds["texture"] = texture_atlas.find("cloth")[0]
        rounds["label"] = self.label
        rounds["casts"] = True
        # the trunk (the first limb) is wider than deep
        rounds["axes"][0, 0] *= 1.45
        body = Mesh(np.empty(0, QUAD), rounds)
        return Mesh.join([self.mount, body]) if self.mount else body

    def _head(self, x: float, y: float, z: float) -> list[_Limb]:
        return [
            _Limb((x, y - 0.11, z), (x, y + 0.10, z), 0.095, self.skin),
            _Limb((x, y - 0.02, z - 0.025), (x, y + 0.12, z - 0.02), 0.1, self.hair),
            _Limb((x, y - 0.2, z - 0.02), (x, y - 0.08, z), 0.06, self.skin),
        ]

    def _walking(self, phase: float) -> list[_Limb]:
        swing = 0.42 * np.sin(phase)
        parts = [_Limb((0, 0.88, 0), (0, 1.46, 0), 0.155, self.shirt)]
        parts.append(
            _Limb((0, 0.80, 0), (0, 1.02, 0), 0.165, self.shirt if self.coat else self.trousers)
        )
        if self.coat:
            parts.append(_Limb((0, 0.62, 0), (0, 1.1, 0), 0.18, self.shirt))
        parts += self._head(0, 1.64, 0.02)
        for side in (-1, 1):
            leg, arm = side * swing, -side * swing * 0.8
            hip = np.array([side * 0.09, 0.9, 0])
            knee = hip + 0.44 * np.array([0, -np.cos(leg), np.sin(leg)])
            bend = leg - max(0.0, -leg) * 0.9
            foot = knee + 0.42 * np.array([0, -np.cos(bend), np.sin(bend)])
            parts.append(_Limb(hip, knee, 0.092, self.trousers))
            parts.append(_Limb(knee, foot, 0.066, self.trousers))
            parts.append(
                _Limb(
                    np.add(foot, (0, 0, -0.06)),
                    np.add(foot, (0, -0.01, 0.16)),
                    0.05,
                    (0.12, 0.12, 0.13),
                )
            )
            shoulder = np.array([side * 0.215, 1.42, 0])
            elbow = shoulder + 0.28 * np.array([side * 0.12, -np.cos(arm), np.sin(arm)])
            hand = elbow + 0.27 * np.array([0, -np.cos(arm + 0.35), np.sin(arm + 0.35)])
            parts.append(_Limb(shoulder, elbow, 0.062, self.shirt))
            parts.append(_Limb(elbow, hand, 0.05, self.shirt))
            parts.append(_Limb(hand, np.add(hand, (0, -0.08, 0.02)), 0.04, self.skin))
        return parts

    def _riding(self, phase: float) -> list[_Limb]:
        parts = [_Limb((0, 0.95, -0.22), (0, 1.46, 0.1), 0.16, self.shirt)]
        parts.append(_Limb((0, 0.9, -0.3), (0, 1.05, -0.2), 0.17, self.trousers))
        parts += self._head(0, 1.64, 0.2)
        for side in (-1, 1):
            turn = phase + (np.pi if side < 0 else 0)
            hip = np.array([side * 0.1, 0.95, -0.22])
            foot = np.array([side * 0.12, 0.34 + 0.16 * np.cos(turn), -0.02 + 0.16 * np.sin(turn)])
            knee = (hip + foot) / 2 + (0, 0.12, 0.24)
            parts.append(_Limb(hip, knee, 0.085, self.trousers))
            parts.append(_Limb(knee, foot, 0.062, self.trousers))
            parts.append(
                _Limb(
                    np.add(foot, (0, 0, -0.05)), np.add(foot, (0, 0, 0.16)), 0.045, (0.1, 0.1, 0.1)
                )
            )
            shoulder, hand = np.array([side * 0.2, 1.42, 0.08]), np.array([side * 0.24, 1.06, 0.36])
            elbow = (shoulder + hand) / 2 + (side * 0.06, -0.06, -0.02)
            parts.append(_Limb(shoulder, elbow, 0.058, self.shirt))
            parts.append(_Limb(elbow, hand, 0.048, self.skin))
        return parts
