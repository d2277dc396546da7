"""Objects beside the road: buildings, trees, hedges, fences, poles and signs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from penumbra.offline.datasets.camvid_classes import BUILDING, FENCE, POLE, SIGN, TREE
from penumbra.offline.scenes.mesh import Builder, Mesh, Vector
from penumbra.offline.scenes.tile_catalogue import LEAVES, SIGNS, WALLS, WINDOWS

Rng = np.random.Generator
STOREY = 3.0


def building(
    rng: Rng, x: float, side: int, z: tuple[float, float], storeys: int, style: str
) -> Mesh:
    """A house whose front stands at `x`; `side` is -1 left of the road, 1 right of it.

    Styles: terrace (a pitched roof, perhaps a shop), office (flat roof), tower (glass), shed.
    """
    body = Builder(BUILDING)
    z0, z1 = z
    depth = float(rng.uniform(8, 13))
    low, high = sorted((x, x + side * depth))
    material = WALLS[rng.choice(len(WALLS), p=[0.45, 0.3, 0.15, 0.1])]
    tint = np.clip(rng.normal(0.92, 0.13) * rng.normal(1, 0.045, 3), 0.35, 1.2)
    if material == "stucco" and rng.random() < 0.5:
        tint = np.clip(tint * rng.uniform((0.82, 0.9, 0.92), 1.06), 0.3, 1.15)
    window = f"{material}-{WINDOWS[rng.integers(2) * 2 if style == 'terrace' else rng.integers(4)]}"
    plain = material
    if style == "tower":
        window = plain = "glass-tower"
    elif style == "shed":
        window = plain = "concrete"
    height = storeys * STOREY
    ground = 0.0
    if style != "shed" and rng.random() < (0.45 if style == "terrace" else 0.3):
        ground = 3.4
        shops = max(1, round((z1 - z0) / 5.5))
        front = "right" if side < 0 else "left"
        for k in range(shops):
            a, b = z0 + (z1 - z0) * k / shops, z0 + (z1 - z0) * (k + 1) / shops
            shop = {"*": plain, front: f"shop-{rng.integers(5)}", "top": "concrete"}
            edge = sorted((x - side * 0.08, x + side * 0.5))
            paint = np.clip(rng.uniform(0.45, 1.1) * rng.normal(1, 0.17, 3), 0.2, 1.2)
            body.box((edge[0], 0, a), (edge[1], ground, b), shop, tuple(paint))
        body.box((low, 0, z0), (high, ground, z1), plain, tuple(tint), 4.0, skip="bottom top")
    faces = {"*": window, "near": plain if rng.random() < 0.5 else window, "top": "concrete"}
    _storeys(body, (low, ground, z0), (high, ground + height, z1), faces, tint)
    top = ground + height
    if style == "terrace":
        _pitched_roof(body, rng, (low, high), (z0, z1), top, plain, tint)
    elif style != "shed":  # a parapet
        body.box((low - 0.15, top, z0), (high + 0.15, top + 0.5, z1), plain, tuple(tint * 0.9), 4.0)
    return body.mesh()


def _storeys(
    body: Builder, low: Vector, high: Vector, faces: Mapping[str, str], tint: np.ndarray
) -> None:
    """Walls with whole windows: a tile is two bays by two storeys."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    floors = (y1 - y0) / (2 * STOREY)
    across = max(round((x1 - x0) / STOREY), 1) / 2
    along = max(round((z1 - z0) / STOREY), 1) / 2
    walls = {
        "near": ([(x0, y1, z0), (x1, y1, z0), (x1, y0, z0), (x0, y0, z0)], across),
        "left": ([(x0, y1, z1), (x0, y1, z0), (x0, y0, z0), (x0, y0, z1)], along),
        "right": ([(x1, y1, z0), (x1, y1, z1), (x1, y0, z1), (x1, y0, z0)], along),
    }
    for name, (corners, bays) in walls.items():
        look = faces.get(name, faces["*"])
        body.quad(corners, look, tuple(tint), (bays, floors), closed=True)
    roof = [(x0, y1, z1), (x1, y1, z1), (x1, y1, z0), (x0, y1, z0)]
    body.quad(roof, faces["top"], tuple(tint), (4, 4), closed=True)


def _pitched_roof(
    body: Builder,
    rng: Rng,
    x: tuple[float, float],
    z: tuple[float, float],
    y: float,
    wall: str,
    tint: np.ndarray,
) -> None:
    (x0, x1), (z0, z1) = x, z
    middle, rise = (x0 + x1) / 2, float(rng.uniform(1.8, 3.2))
    look = "roof-red" if rng.random() < 0.5 else "roof-slate"
    tone = tuple(rng.uniform(0.8, 1.15) * np.ones(3))
    repeat = ((z1 - z0) / 4, 1.5)
    for eave in (x0 - 0.35, x1 + 0.35):
        slope = [
            (middle, y + rise, z0),
            (middle, y + rise, z1),
            (eave, y - 0.15, z1),
            (eave, y - 0.15, z0),
        ]
        body.quad(slope, look, tone, repeat)
    for end in (z0, z1):
        gable = [(x0, y, end), (x1, y, end), (middle, y + rise, end), (middle, y + rise, end)]
        body.quad(gable, wall, tuple(tint), (2, 0.5))
    for _ in range(rng.integers(0, 3)):
        at = float(rng.uniform(z0 + 0.5, max(z1 - 1.2, z0 + 0.6)))
        stack = (middle - 0.4, y + rise - 0.6, at), (middle + 0.4, y + rise + 1.1, at + 0.7)
        body.box(*stack, "brick", (0.8, 0.8, 0.8), 4.0)


def tree(rng: Rng, x: float, z: float, bare: bool) -> Mesh:
    """A tree with cards of leaves, or of twigs if `bare`."""
    body = Builder(TREE)
    height = float(rng.uniform(4.5, 9.5))
    trunk = height * float(rng.uniform(0.28, 0.4))
    lean = rng.normal(0, 0.15, 2)
    tone = tuple(rng.normal(0.9, 0.12) * rng.normal(1, (0.06, 0.04, 0.08)))
    girth = 0.02 * height + 0.04
    if bare:
        for turn in (0.3, 1.7):
            half = height * 0.42
            dx, dz = half * np.cos(turn), half * np.sin(turn)
            card = [
                (x - dx, height, z - dz),
                (x + dx, height, z + dz),
                (x + dx, 0, z + dz),
                (x - dx, 0, z - dz),
            ]
            body.quad(card, "twigs", tone, (0.8, 0.9), (0.1, 0.08))
        return body.mesh()
    crown = (x + lean[0], z + lean[1])
    body.rod((x, 0, z), (crown[0], trunk + 0.4, crown[1]), girth, "bark", tone, (1, 2))
    spread = height * float(rng.uniform(0.24, 0.34))
    middle = (trunk + height) / 2
    for k in range(8):
        size = float(rng.uniform(0.62, 0.95)) * spread * (1.35 if k == 0 else 1)
        offset = rng.uniform(-1, 1, 3) * (0 if k == 0 else 1)
        cx = crown[0] + offset[0] * spread * 0.75
        cy = middle + offset[1] * (height - trunk) * 0.33
        cz = crown[1] + offset[2] * spread * 0.75
        turn = float(rng.normal(0, 0.4))
        dx, dz = size * np.cos(turn), size * np.sin(turn)
        card = [
            (cx - dx, cy + size, cz - dz),
            (cx + dx, cy + size, cz + dz),
            (cx + dx, cy - size, cz + dz),
            (cx - dx, cy - size, cz - dz),
        ]
        shade = 0.8 + 0.25 * (offset[1] + 1) / 2
        body.quad(card, f"leaves-{rng.integers(LEAVES)}", tuple(np.array(tone) * shade))
    return body.mesh()


def hedge(rng: Rng, x: float, side: int, z: tuple[float, float]) -> Mesh:
    """A hedge along the street from z[0] to z[1]."""
    body = Builder(TREE)
    low, high = sorted((x, x + side * float(rng.uniform(0.7, 1.4))))
    tone = tuple(rng.normal(0.8, 0.1) * rng.normal(1, 0.05, 3))
    body.box((low, 0, z[0]), (high, float(rng.uniform(0.9, 1.9)), z[1]), "hedge", tone, 2.5)
    return body.mesh()


def fence(rng: Rng, x: float, z: tuple[float, float]) -> Mesh:
    """Panels of about two metres along the street; one kind and colour for the whole stretch."""
    body = Builder(FENCE)
    kind = ("panel", "picket", "railing", "barrier")[rng.choice(4, p=[0.3, 0.2, 0.35, 0.15])]
    height = {"panel": 1.8, "picket": 1.0, "railing": 1.3, "barrier": 0.9}[kind]
    height *= float(rng.uniform(0.85, 1.15))
    dark = {"panel": 0.9, "picket": 0.95, "railing": 0.22, "barrier": 0.7}[kind]
    tone = tuple(np.clip(dark * rng.normal(1, 0.1, 3), 0.05, 1.1))
    panels = max(1, round((z[1] - z[0]) / 2.0))
    edges = np.linspace(z[0], z[1], panels + 1)
    for a, b in pairwise(edges):
        panel = [(x, height, a), (x, height, b), (x, 0, b), (x, 0, a)]
        body.quad(panel, f"fence-{kind}", tone)
    return body.mesh()


def lamp_post(rng: Rng, x: float, side: int, z: float) -> Mesh:
    """A street lamp whose arm reaches over the road."""
    body = Builder(POLE)
    height = float(rng.uniform(5.5, 8.5))
    grey = tuple(rng.uniform(0.25, 0.6) * np.ones(3))
    body.rod((x, 0, z), (x, height, z), 0.075, tint=grey)
    body.rod((x, 0, z), (x, 1.2, z), 0.11, tint=grey)
    reach = x - side * 1.3
    body.rod((x, height - 0.05, z), (reach, height + 0.25, z), 0.045, tint=grey)
    body.ball((reach, height + 0.25, z), (0.4, 0.09, 0.16), tint=grey)
    return body.mesh()


def sign_post(rng: Rng, x: float, z: float) -> Mesh:
    """A pole with one or two plates facing the oncoming driver (towards -z)."""
    body = Builder(POLE)
    body.rod((x, 0, z), (x, 2.9, z), 0.04, tint=(0.5, 0.5, 0.5))
    y = 2.9
    for _ in range(1 + int(rng.random() < 0.3)):
        kind = SIGNS[rng.integers(6)]
        half = float(rng.uniform(0.3, 0.42))
        _plate(body, x, y - half, z - 0.05, half, half, f"sign-{kind}")
        y -= 2 * half + 0.06
    return body.mesh()


def board(rng: Rng, x: float, z: float) -> Mesh:
    """A direction board on two legs."""
    body = Builder(POLE)
    for dx in (-0.6, 0.6):
        body.rod((x + dx, 0, z), (x + dx, 2.9, z), 0.05, tint=(0.45, 0.45, 0.45))
    _plate(body, x, 2.5, z - 0.06, 1.0, 0.8, "sign-board")
    return body.mesh()


def traffic_light(rng: Rng, x: float, z: float) -> Mesh:
    """A traffic light on a pole."""
    body = Builder(POLE)
    body.rod((x, 0, z), (x, 3.2, z), 0.06, tint=(0.25, 0.25, 0.25))
    _plate(body, x, 2.7, z - 0.08, 0.5, 0.5, "sign-lamp")
    body.box((x - 0.2, 2.2, z - 0.07), (x + 0.2, 3.2, z + 0.15), "plain", (0.1,) * 3, label=SIGN)
    return body.mesh()


def bollard(x: float, z: float) -> Mesh:
    """A bollard."""
    body = Builder(POLE)
    body.rod((x, 0, z), (x, 1.0, z), 0.07, tint=(0.2, 0.2, 0.2))
    body.ball((x, 1.0, z), (0.07, 0.05, 0.07), tint=(0.25, 0.25, 0.25))
    return body.mesh()


def _plate(body: Builder, x: float, y: float, z: float, w: float, h: float, look: str) -> None:
    plate = [(x - w, y + h, z), (x + w, y + h, z), (x + w, y - h, z), (x - w, y - h, z)]
    body.quad(plate, look, label=SIGN)
