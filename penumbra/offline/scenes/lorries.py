"""Lorries with a box, a tarpaulin, a tank or a flat bed. They face +z, wheels on y = 0."""

from __future__ import annotations

import numpy as np

from penumbra.offline.datasets.camvid_classes import CAR
from penumbra.offline.scenes.mesh import Builder, Mesh, Vector
from penumbra.offline.scenes.vehicles import PAINTS, Rng, add_wheel

LIVERIES = 4
_DARK = (0.09, 0.09, 0.10)
_STEEL = (0.55, 0.56, 0.57)


def lorry(rng: Rng, kind: str | None = None) -> Mesh:
    """A lorry of 6 to 14 m; `kind` is box, tarpaulin, tank or flat (None: random)."""
    kind = kind or str(rng.choice(["box", "tarpaulin", "tank", "flat"], p=[0.35, 0.3, 0.25, 0.1]))
    body = Builder(CAR)
    length, half = float(rng.uniform(6, 14)), float(rng.uniform(1.15, 1.28))
    tail, nose = -length / 2, length / 2
    cab = float(rng.uniform(1.7, 2.3))
    load = (tail, nose - cab - float(rng.uniform(0.2, 0.9)))
    floor, top = float(rng.uniform(0.9, 1.3)), float(rng.uniform(2.9, 4.0))
    _chassis(body, rng, tail, nose, half, floor)
    _cab(body, rng, (nose - cab, nose), half, float(rng.uniform(2.6, 3.6)))
    if kind == "tank":
        _tank(body, rng, load, half, floor, min(top, 3.6))
    else:
        _box(body, rng, kind, load, half, floor, top)
    return body.mesh()


def _paint(rng: Rng) -> np.ndarray:
    strong = [(0.12, 0.10, 0.70), (0.60, 0.25, 0.08), (0.10, 0.55, 0.75), (0.20, 0.42, 0.12)]
    choices = [*PAINTS, *strong, (0.88, 0.88, 0.88), (0.82, 0.84, 0.86)]
    return np.clip(np.array(choices[rng.integers(len(choices))]) * rng.normal(1, 0.08), 0.04, 1)


def _chassis(body: Builder, rng: Rng, tail: float, nose: float, half: float, floor: float) -> None:
    """Frame, wheels, and the tail bar with lamps and number plate."""
    frame = half * 0.55
    body.box((-frame, 0.55, tail + 0.1), (frame, floor, nose), "plain", _DARK, skip="top")
    low = float(rng.uniform(0.4, 0.55))
    bar = {"near": "car-rear", "*": "plain"}
    look = {"near": (0.9, 0.9, 0.9), "*": _DARK}
    body.box((-half, low, tail - 0.05), (half, floor - 0.1, tail + 0.08), bar, look, skip="")
    radius = float(rng.uniform(0.44, 0.52))
    rear = tail + float(rng.uniform(1.0, 2.2))
    axles = [rear + k * 1.3 for k in range(rng.integers(1, 4))] + [nose - 1.3]
    for side in (-1, 1):
        for axle in axles:
            add_wheel(body, side, side * half, axle, radius)
        if rng.random() < 0.5:  # a guard between the axles
            x, rail = side * half, floor - 0.35
            for y in (rail, rail - 0.3):
                body.rod((x, y, axles[-2] + 0.8), (x, y, nose - 2), 0.05, tint=_STEEL)


def _cab(body: Builder, rng: Rng, z: tuple[float, float], half: float, top: float) -> None:
    paint, waist = _paint(rng), 1.9
    body.box((-half, 0.5, z[0]), (half, waist, z[1]), {"far": "car-front", "*": "car-side"}, paint)
    upper = {"far": "car-glass", "left": "car-glass", "right": "car-glass", "*": "plain"}
    glass: dict[str, Vector] = {
        "far": (0.9,) * 3,
        "left": (0.9,) * 3,
        "right": (0.9,) * 3,
        "*": paint,
    }
    roof = min(waist + 0.8, top)
    inset = half - 0.05
    body.box((-inset, waist, z[0]), (inset, roof, z[1] - 0.1), upper, glass)
    if top > roof:
        body.box((-inset, roof, z[0]), (inset, top, z[1] - 0.6), "plain", paint)


def _box(
    body: Builder,
    rng: Rng,
    kind: str,
    z: tuple[float, float],
    half: float,
    floor: float,
    top: float,
) -> None:
    paint = _paint(rng)
    if kind == "flat":
        top = floor + float(rng.uniform(0.4, 0.9))
    side = "cloth" if kind == "tarpaulin" else "plain"
    if kind != "flat" and rng.random() < 0.6:
        side = f"livery-{rng.integers(LIVERIES)}"
    doors = str(rng.choice(["plain", "fence-panel", side]))
    body.box(
        (-half, floor, z[0]),
        (half, top, z[1]),
        {"near": doors, "left": side, "right": side, "*": side},
        paint,
    )
    for x in (-half, half):  # the frame of the doors
        body.rod((x, floor, z[0]), (x, top, z[0]), 0.05, tint=_STEEL)
    if rng.random() < 0.4:  # warning stripes along the floor
        body.box(
            (-half - 0.01, floor - 0.12, z[0] - 0.01), (half + 0.01, floor + 0.12, z[1]),
            "odd-hazard", tile=0.8,
        )  # fmt: skip


def _tank(
    body: Builder, rng: Rng, z: tuple[float, float], half: float, floor: float, top: float
) -> None:
    radius = min((top - floor) / 2, half * 1.05)
    y = floor + radius
    shade = float(rng.uniform(0.55, 0.95))
    tint = (shade,) * 3
    look = f"livery-{rng.integers(LIVERIES)}" if rng.random() < 0.5 else "plain"
    body.rod((0, y, z[0]), (0, y, z[1]), radius, look, tint, (2, 1))
    for end in z:
        body.ball((0, y, end), (radius, radius, 0.35), tint=tint)
    for share in (0.25, 0.75):  # cradles
        at = z[0] + share * (z[1] - z[0])
        body.box((-half, floor - 0.25, at - 0.15), (half, floor + 0.25, at + 0.15), "plain", _DARK)
    if rng.random() < 0.6:  # a ladder at the back
        for x in (0.35, 0.75):
            body.rod((x, 0.6, z[0] - 0.35), (x, top, z[0] - 0.35), 0.03, tint=_STEEL)
        for step in np.arange(0.8, top, 0.3):
            body.rod((0.35, step, z[0] - 0.35), (0.75, step, z[0] - 0.35), 0.02, tint=_STEEL)
