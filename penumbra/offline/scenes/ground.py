"""The ground: road, kerbs, pavements, lines, crossings, patches and manholes."""

from __future__ import annotations

import numpy as np

from penumbra.offline.datasets.camvid_classes import PAVEMENT, ROAD
from penumbra.offline.scenes.light import Stripe
from penumbra.offline.scenes.mesh import Builder
from penumbra.offline.scenes.street_plan import KERB, LANE, START, WIDE, StreetPlan


def pave(plan: StreetPlan) -> None:
    """Add the road, kerbs, pavements, lines, crossings, patches and manholes to `plan`."""
    rng, road = plan.rng, Builder(ROAD)
    grey = float(rng.normal(1.0, 0.13))
    look = ("asphalt", "asphalt-cracked", "asphalt-coarse")[rng.integers(3)]
    tint = tuple(np.clip(grey * rng.normal(1, 0.02, 3), 0.6, 1.35))
    tile = float(rng.uniform(2.5, 4.5))
    x = (-plan.edge(-1), plan.edge(1))
    road.ground(x, (START, plan.length), 0.0, look, tint, tile)
    slab = ("slabs", "bricks-ground", "setts", "asphalt-coarse")[
        rng.choice(4, p=[0.5, 0.2, 0.1, 0.2])
    ]
    slab_tint = tuple(np.clip(rng.normal(1.05, 0.1) * rng.normal(1, 0.04, 3), 0.7, 1.3))
    for side in (-1, 1):
        edge, front = side * plan.edge(side), side * plan.front(side)
        for z0, z1 in plan.blocks(side):
            inner, outer = sorted((edge + side * 0.15, front))
            road.ground((inner, outer), (z0, z1), KERB, slab, slab_tint, 2.4, label=PAVEMENT)
            low, high = sorted((edge, edge + side * 0.15))
            road.ground(
                (low, high), (z0, z1), KERB, "kerb", (1.15, 1.15, 1.15), 1.8, label=PAVEMENT
            )
            wall = [(edge, KERB, z0), (edge, KERB, z1), (edge, 0, z1), (edge, 0, z0)]
            tall = ((z1 - z0) / 1.8, 0.1)
            road.quad(wall, "kerb", (0.85,) * 3, tall, label=PAVEMENT, casts=False)
            for end in (z0, z1):
                corner = [
                    (edge, KERB, end),
                    (side * WIDE, KERB, end),
                    (side * WIDE, 0, end),
                    (edge, 0, end),
                ]
                road.quad(corner, "kerb", (0.85,) * 3, (20, 0.1), label=PAVEMENT, casts=False)
        for z0, z1, sides in plan.junctions:
            if side in sides:
                low, high = sorted((edge, side * WIDE))
                road.ground((low, high), (z0, z1), 0.0, look, tint, tile)
    _paint(plan, road)
    plan.parts.append(road.mesh())


def _paint(plan: StreetPlan, road: Builder) -> None:
    rng = plan.rng
    dash, period = ((2.0, 6.0), (3.0, 9.0), (4.0, 6.0), (0.0, 0.0))[rng.integers(4)]
    yellow = (70.0, 190.0, 225.0)
    edges = rng.random() < 0.6
    cuts = [z for a, b, _ in plan.junctions for z in (a, b)]
    ends = [START, *cuts, plan.length]
    spans = tuple(zip(ends[::2], ends[1::2], strict=True))
    plan.stripes.append(Stripe(0.0, 0.12, spans, dash, period))
    for side in (-1, 1):
        for lane in range(1, plan.lanes):
            plan.stripes.append(Stripe(side * lane * LANE, 0.1, spans, 2.0, 6.0))
        if plan.parking[side]:
            plan.stripes.append(Stripe(side * plan.lanes * LANE, 0.1, spans, 1.0, 2.0))
        elif edges:
            near_kerb = side * (plan.edge(side) - 0.3)
            plan.stripes.append(Stripe(near_kerb, 0.1, spans, colour=yellow))
    half = min(plan.edge(-1), plan.edge(1))
    for start, _, _ in plan.junctions:
        if rng.random() < 0.5:  # a zebra crossing before the junction
            z = start - 4.5
            for x in np.arange(-plan.edge(-1) + 0.4, plan.edge(1) - 0.4, 1.0):
                road.ground((x, x + 0.5), (z, z + 2.8), 0.004, "paint", (1, 1, 1), 1.0)
        line = (0.15, half - 0.3) if plan.keep > 0 else (-half + 0.3, -0.15)
        road.ground(line, (start - 5.6, start - 5.3), 0.004, "paint", (1, 1, 1), 1.0)
    for _ in range(int(plan.length / 14)):
        x, z = rng.uniform(-half + 1, half - 1.8), rng.uniform(START + 5, plan.length - 5)
        if rng.random() < 0.5:
            cover = [(x, z), (x + 0.7, z), (x + 0.7, z + 0.7), (x, z + 0.7)]
            road.quad([(a, 0.003, b) for a, b in cover], "manhole", casts=False)
        else:
            place = (x, x + rng.uniform(0.5, 1.8)), (z, z + rng.uniform(1, 6))
            road.ground(*place, 0.002, "patch", (rng.uniform(0.8, 1.3),) * 3, 3.0)
