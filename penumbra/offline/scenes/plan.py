"""The measures of a street's cross-section, and what has been put down in it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penumbra.offline.scenes.light import Stripe
from penumbra.offline.scenes.mesh import Mesh
from penumbra.offline.scenes.scene import Actor, Ego

Rng = np.random.Generator

LANE = 3.3
KERB = 0.12
START = -15.0
WIDE = 58.0
"""Metres from the middle of the road to where the world ends at either side."""


@dataclass
class StreetPlan:
    """The measures of the cross-section, and what has been put down so far."""

    rng: Rng
    length: float
    keep: int  # 1: traffic keeps right
    lanes: int
    parking: dict[int, bool]
    pavement: dict[int, float]
    junctions: list[tuple[float, float, tuple[int, ...]]]
    bare: bool
    busy: float
    start: float
    stripes: list[Stripe] = field(default_factory=list)
    parts: list[Mesh] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)

    @classmethod
    def draw(cls, rng: Rng, length: float, traffic: str | None) -> StreetPlan:
        keep = {"left": -1, "right": 1}.get(traffic, int(rng.choice([-1, 1])))
        junctions, z = [], float(rng.uniform(18, 60))
        while z < length - 30:
            width = float(rng.uniform(7, 10))
            sides = ((-1,), (1,), (-1, 1))[rng.integers(3)]
            junctions.append((z, z + width, sides))
            z += width + float(rng.uniform(40, 90))
        return cls(
            rng=rng,
            length=length,
            keep=keep,
            lanes=2 if rng.random() < 0.12 else 1,
            parking={side: bool(rng.random() < 0.5) for side in (-1, 1)},
            pavement={side: float(rng.uniform(1.6, 3.6)) for side in (-1, 1)},
            junctions=junctions,
            bare=bool(rng.random() < 0.2),
            busy=float(rng.uniform(0.4, 1.6)),
            start=float(rng.uniform(2, max(6.0, length - 130))),
        )

    def edge(self, side: int) -> float:
        """Metres from the middle to the kerb."""
        return LANE * self.lanes + (2.1 if self.parking[side] else 0.6)

    def front(self, side: int) -> float:
        """Metres from the middle to the pavement's outer edge."""
        return self.edge(side) + self.pavement[side]

    def blocks(self, side: int) -> list[tuple[float, float]]:
        """Stretches of z between the side streets of one side."""
        cuts = [z for a, b, sides in self.junctions if side in sides for z in (a, b)]
        ends = [START, *cuts, self.length]
        return list(zip(ends[::2], ends[1::2], strict=True))

    def free(self, side: int, z: float, margin: float) -> bool:
        return any(a + margin <= z <= b - margin for a, b in self.blocks(side))

    def ego(self) -> Ego:
        rng = np.random.default_rng(self.rng.integers(2**32))
        return Ego(
            x=self.keep * (LANE / 2 + (self.lanes - 1) * LANE) + float(rng.normal(0, 0.25)),
            z=self.start,
            yaw=float(rng.normal(0, 0.05)),
        )
