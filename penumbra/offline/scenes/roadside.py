"""The sides of a street: zones of houses, gardens and parks, and street furniture."""

from __future__ import annotations

import numpy as np

from penumbra.offline.datasets.camvid_classes import BUILDING, PAVEMENT, ROAD, TREE
from penumbra.offline.scenes import furniture
from penumbra.offline.scenes.mesh import Builder
from penumbra.offline.scenes.street_plan import KERB, START, WIDE, StreetPlan


def zone(plan: StreetPlan, side: int, block: tuple[float, float]) -> None:
    """Fill one side between two side streets."""
    rng = plan.rng
    kind = ("terrace", "office", "suburb", "park")[rng.choice(4, p=[0.42, 0.2, 0.2, 0.18])]
    z0, z1 = block
    front = side * plan.front(side)
    green = kind in ("suburb", "park")
    land = Builder(TREE if green else PAVEMENT)
    look, tint = ("grass", (0.9, 0.95, 0.9)) if green else ("slabs", (0.85, 0.85, 0.85))
    low, high = sorted((front, side * WIDE))
    land.ground((low, high), block, KERB - 0.002, look, tint, 3.0)
    plan.parts.append(land.mesh())
    if kind == "park":
        _boundary(plan, front + side * 0.15, side, block)
        for _ in range(int((z1 - z0) / 5)):
            x = front + side * float(rng.uniform(1.5, 16))
            plan.parts.append(furniture.tree(rng, x, float(rng.uniform(z0 + 1, z1 - 1)), plan.bare))
        return
    setback = {
        "terrace": 0.0,
        "office": float(rng.uniform(0, 4)),
        "suburb": float(rng.uniform(4, 8)),
    }[kind]
    if kind == "suburb":
        _boundary(plan, front + side * 0.15, side, block)
    storeys = int(rng.integers(2, 5))
    z = z0 + 0.2
    while z < z1 - 5:
        width = {
            "terrace": float(rng.uniform(6, 14)),
            "office": float(rng.uniform(14, 28)),
            "suburb": float(rng.uniform(8, 13)),
        }[kind]
        end = min(z + width, z1 - 0.2)
        style = (
            "terrace"
            if kind != "office"
            else ("office", "tower", "shed")[rng.choice(3, p=[0.6, 0.25, 0.15])]
        )
        tall = {
            "terrace": storeys + int(rng.integers(-1, 2)),
            "office": int(rng.integers(3, 8)),
            "suburb": 2,
        }[kind]
        if style == "shed":
            tall = 2
        x = front + side * (setback + (float(rng.uniform(0, 0.25)) if kind == "terrace" else 0))
        plan.parts.append(furniture.building(rng, x, side, (z, end), max(tall, 2), style))
        gap = 0.0 if kind == "terrace" and rng.random() < 0.9 else float(rng.uniform(2.5, 6))
        if kind == "suburb" and rng.random() < 0.7:
            at = front + side * float(rng.uniform(1.2, 3.2)), float(rng.uniform(z, end))
            plan.parts.append(furniture.tree(rng, *at, plan.bare))
        z = end + gap


def _boundary(plan: StreetPlan, x: float, side: int, block: tuple[float, float]) -> None:
    """A fence or a hedge along a garden or park, with gates."""
    rng = plan.rng
    z = block[0] + 0.3
    while z < block[1] - 3:
        end = min(z + float(rng.uniform(8, 20)), block[1] - 0.3)
        if rng.random() < 0.6:
            plan.parts.append(furniture.fence(rng, x, (z, end)))
        else:
            plan.parts.append(furniture.hedge(rng, x, side, (z, end)))
        z = end + float(rng.uniform(0, 2.5))


def furnish(plan: StreetPlan, side: int) -> None:
    """Add lamps, signs, trees, bollards and railings along the kerb."""
    rng = plan.rng
    kerb = side * (plan.edge(side) + 0.45)
    for z in np.arange(START + rng.uniform(5, 20), plan.length, rng.uniform(22, 32)):
        if plan.free(side, z, 1):
            plan.parts.append(furniture.lamp_post(rng, kerb, side, float(z)))
    for _ in range(int(plan.length / 22)):
        z = float(rng.uniform(START + 5, plan.length - 5))
        if plan.free(side, z, 1):
            make = furniture.board if rng.random() < 0.12 else furniture.sign_post
            out = side * 0.8 if make is furniture.board else 0
            plan.parts.append(make(rng, kerb + out, z))
    for z, _, _ in plan.junctions:
        if rng.random() < 0.5:
            plan.parts.append(furniture.traffic_light(rng, kerb, z - 5.8))
    if rng.random() < 0.45 and plan.pavement[side] > 2:
        for z in np.arange(START + 4, plan.length - 4, rng.uniform(9, 15)):
            if plan.free(side, z, 2.5) and rng.random() < 0.8:
                plan.parts.append(furniture.tree(rng, kerb + side * 0.3, float(z) + 3, plan.bare))
    if rng.random() < 0.35:
        z0, z1 = plan.blocks(side)[0]
        start = float(rng.uniform(z0 + 12, max(z0 + 13, z1 - 12)))
        plan.parts.append(
            furniture.fence(rng, side * (plan.edge(side) + 0.25), (start, min(start + 16, z1)))
        )
    elif rng.random() < 0.4:
        start = float(rng.uniform(0, plan.length * 0.6))
        for z in start + np.arange(8) * 1.8:
            if plan.free(side, z, 0.5):
                plan.parts.append(furniture.bollard(kerb, float(z)))


def close(plan: StreetPlan) -> None:
    """Add rows of houses behind everything, so that no view ends at the edge of the world."""
    rng = plan.rng
    for side in (-1, 1):
        z = START
        while z < plan.length + 10:
            end = z + float(rng.uniform(14, 26))
            far = side * (WIDE - float(rng.uniform(9, 12)))
            plan.parts.append(
                furniture.building(rng, far, side, (z, end), int(rng.integers(2, 5)), "terrace")
            )
            z = end
    last = Builder(ROAD)
    last.ground((-WIDE, WIDE), (plan.length, plan.length + 9), 0.0, "asphalt", (1, 1, 1), 4.0)
    last.ground(
        (-WIDE, WIDE),
        (plan.length + 9, plan.length + 30),
        KERB,
        "slabs",
        (1, 1, 1),
        3.0,
        label=PAVEMENT,
    )
    plan.parts.append(last.mesh())
    x = -WIDE
    while x < WIDE:
        wide = float(rng.uniform(9, 18))
        z = plan.length + float(rng.uniform(12, 14))
        body = Builder(BUILDING)
        look = (
            f"{('brick', 'stucco', 'stone')[rng.integers(3)]}-{('sash', 'tall')[rng.integers(2)]}"
        )
        high = int(rng.integers(2, 5)) * 3.0
        wall = [(x, high, z), (x + wide, high, z), (x + wide, 0, z), (x, 0, z)]
        body.quad(wall, look, tuple(rng.uniform(0.75, 1.05, 3)), (round(wide / 3) / 2, high / 6))
        roof = [
            (x, high + 2.5, z + 5),
            (x + wide, high + 2.5, z + 5),
            (x + wide, high, z),
            (x, high, z),
        ]
        body.quad(roof, "roof-slate", repeat=(wide / 4, 1.5))
        plan.parts.append(body.mesh())
        x += wide
    for _ in range(6):
        at = float(rng.uniform(-20, 20)), plan.length + 10.5
        plan.parts.append(furniture.tree(rng, *at, plan.bare))
