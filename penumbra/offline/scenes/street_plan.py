"""The cross-section of a street, and the parts placed in it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penumbra.offline.scenes.light import Stripe
from penumbra.offline.scenes.mesh import Mesh
from penumbra.offline.scenes.scene import Actor, Ego

Rng = np.random.Generator

LANE = 3.3  # metres
KERB = 0.12  # metres
START = -15.0  # z at which the street begins
WIDE = 58.0
"""Half width of the world, in metres from the middle of the road."""


@dataclass
class StreetPlan:
    """Dimensions of the cross-section, and the parts placed so far."""

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
        """A random cross-section; `traffic` keeps "left" or "right" (None: random)."""
        either = int(rng.choice([-1, 1]))  # drawn in any case, so that the rest is the same
        keep = either if traffic is None else {"left": -1, "right": 1}[traffic]
        junctions: list[tuple[float, float, tuple[int, ...]]] = []
        z = float(rng.uniform(18, 60))
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
        """Ranges of z between the side streets of one side."""
        cuts = [z for a, b, sides in self.junctions if side in sides for z in (a, b)]
        ends = [START, *cuts, self.length]
        return list(zip(ends[::2], ends[1::2], strict=True))

    def free(self, side: int, z: float, margin: float) -> bool:
        """Whether `z` is at least `margin` metres from the side streets of one side."""
        return any(a + margin <= z <= b - margin for a, b in self.blocks(side))

    def ego(self) -> Ego:
        """The own vehicle, in its lane."""
        rng = np.random.default_rng(self.rng.integers(2**32))
        return Ego(
            x=self.keep * (LANE / 2 + (self.lanes - 1) * LANE) + float(rng.normal(0, 0.25)),
            z=self.start,
            yaw=float(rng.normal(0, 0.05)),
        )
