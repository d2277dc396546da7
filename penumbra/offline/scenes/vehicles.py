"""Cars, vans, lorries and bicycles. They face +z and stand at the origin, wheels on y = 0."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penumbra.offline.datasets.camvid_classes import CAR
from penumbra.offline.scenes.mesh import Builder, Mesh, Vector, cross

Rng = np.random.Generator

# BGR: silver, white, black, greys, blues, reds, greens, beige; roughly as on the road
PAINTS = [
    (0.72, 0.72, 0.70), (0.90, 0.90, 0.90), (0.10, 0.10, 0.10), (0.32, 0.32, 0.33),
    (0.42, 0.24, 0.14), (0.58, 0.44, 0.30), (0.16, 0.14, 0.52), (0.14, 0.15, 0.36),
    (0.22, 0.36, 0.16), (0.52, 0.62, 0.66), (0.55, 0.52, 0.48), (0.40, 0.38, 0.22),
]  # fmt: skip


@dataclass(frozen=True)
class CarShape:
    """The side view of a car, in metres.

    z of the tail, of the foot and the roof of the cabin (rear, front) and of the nose; y of the
    floor, the waist, the end of the bonnet and the roof; `inset` of the roof.
    """

    tail: float
    foot: tuple[float, float]
    roof: tuple[float, float]
    nose: float
    half_width: float
    floor: float
    waist: float
    bonnet: float
    top: float
    inset: float
    wheel: float
    axles: tuple[float, float]


SHAPES = {
    "hatchback": CarShape(
        -1.95,
        (-1.9, 0.95),
        (-1.5, 0.2),
        1.95,
        0.85,
        0.26,
        0.92,
        0.78,
        1.47,
        0.18,
        0.31,
        (-1.2, 1.25),
    ),
    "saloon": CarShape(
        -2.25,
        (-1.6, 0.85),
        (-0.95, 0.1),
        2.25,
        0.88,
        0.26,
        0.92,
        0.76,
        1.42,
        0.2,
        0.32,
        (-1.35, 1.4),
    ),
    "estate": CarShape(
        -2.25,
        (-2.2, 0.9),
        (-1.95, 0.15),
        2.25,
        0.88,
        0.28,
        0.95,
        0.8,
        1.52,
        0.16,
        0.32,
        (-1.35, 1.4),
    ),
    "suv": CarShape(
        -2.2, (-2.1, 1.0), (-1.8, 0.35), 2.2, 0.93, 0.36, 1.1, 0.98, 1.75, 0.16, 0.37, (-1.35, 1.4)
    ),
    "van": CarShape(
        -2.5,
        (-2.48, 1.75),
        (-2.45, 1.15),
        2.5,
        0.98,
        0.34,
        1.2,
        0.95,
        2.15,
        0.08,
        0.34,
        (-1.5, 1.6),
    ),
    "lorry": CarShape(
        -4.2, (-4.18, 4.15), (-4.16, 4.0), 4.2, 1.22, 0.5, 1.5, 1.45, 3.1, 0.02, 0.48, (-2.6, 3.0)
    ),
}


def car(rng: Rng, kind: str | None = None) -> Mesh:
    """A car of a random colour; `kind` is one of SHAPES (None: random)."""
    kinds = list(SHAPES)
    kind = kind or kinds[rng.choice(len(kinds), p=[0.3, 0.22, 0.16, 0.16, 0.1, 0.06])]
    shape = SHAPES[kind]
    paint = np.clip(np.array(PAINTS[rng.integers(len(PAINTS))]) * rng.normal(1, 0.08), 0.04, 1)
    cabin = paint
    if kind == "lorry":
        cabin = np.clip(rng.normal(0.8, 0.12) * rng.normal(1, 0.06, 3), 0.3, 1)
    body = Builder(CAR)
    w, roof_w = shape.half_width, shape.half_width - shape.inset
    tail, nose, (foot0, foot1), (roof0, roof1) = shape.tail, shape.nose, shape.foot, shape.roof
    floor, waist, bonnet, top = shape.floor, shape.waist, shape.bonnet, shape.top
    across = (
        (tail, waist),
        (foot0, waist),
        (roof0, top),
        (roof1, top),
        (foot1, waist),
        (nose, bonnet),
    )
    widths = (w, w, roof_w, roof_w, w, w)
    boxy = kind in ("van", "lorry")
    glass = (0.9, 0.9, 0.9)
    looks: list[tuple[str, Vector]] = [
        ("plain", paint),
        ("car-glass", glass),
        ("plain", paint),
        ("car-glass", glass),
        ("plain", paint),
    ]
    if boxy:  # no rear window: a painted door
        looks[1], looks[2] = ("car-side", cabin), ("plain", cabin)
    strips = zip(pairwise(across), pairwise(widths), looks, strict=True)
    for ((z0, y0), (z1, y1)), (w0, w1), (look, tint) in strips:
        near, far = ((z1, y1, w1), (z0, y0, w0)) if y1 > y0 else ((z0, y0, w0), (z1, y1, w1))
        _panel(
            body,
            [(-near[2], near[1], near[0]), (near[2], near[1], near[0]),
             (far[2], far[1], far[0]), (-far[2], far[1], far[0])],
            look, tint,
        )  # fmt: skip
    for z, y, look in ((tail, waist, "car-rear"), (nose, bonnet, "car-front")):
        _panel(body, [(-w, y, z), (w, y, z), (w, floor, z), (-w, floor, z)], look, paint)
    share = (foot1 - tail) / (nose - tail)
    for side in (-1, 1):
        x, roof_x = side * w, side * roof_w
        _panel(
            body,
            [(x, waist, tail), (x, waist, foot1), (x, floor, foot1), (x, floor, tail)],
            "car-side", paint, (share, 1),
        )  # fmt: skip
        _panel(
            body,
            [(x, waist, foot1), (x, bonnet, nose), (x, floor, nose), (x, floor, foot1)],
            "car-side", paint, (1 - share, 1), (share, 0),
        )  # fmt: skip
        window = [(roof_x, top, roof0), (roof_x, top, roof1), (x, waist, foot1), (x, waist, foot0)]
        _panel(body, window, "plain" if boxy else "car-glass", cabin if boxy else glass, (2, 1))
        for axle in shape.axles:
            add_wheel(body, side, x, axle, shape.wheel)
        mirror = (x + side * 0.08, waist + 0.08, foot1 - 0.35)
        body.ball(mirror, (0.1, 0.07, 0.06), tint=paint)
    return body.mesh()


def _panel(
    body: Builder,
    corners: list[tuple[float, float, float]],
    look: str,
    tint: Vector,
    repeat: tuple[float, float] = (1, 1),
    offset: tuple[float, float] = (0, 0),
) -> None:
    """A quad that faces away from the middle of the car."""
    p = np.array(corners, float)
    outward = p.mean(axis=0) - (0, 0.6, 0)
    if cross(p[1] - p[0], p[3] - p[0]) @ outward < 0:
        corners = [corners[1], corners[0], corners[3], corners[2]]
        offset = (offset[0] + repeat[0], offset[1])
        repeat = (-repeat[0], repeat[1])
    body.quad(corners, look, tuple(tint), repeat, offset, closed=True)


def add_wheel(body: Builder, side: int, x: float, z: float, radius: float) -> None:
    """Add a wheel whose outer face is at `x`; `side` is -1 left, 1 right."""
    rubber = (0.12, 0.12, 0.12)
    body.rod((x - side * 0.2, radius, z), (x + side * 0.01, radius, z), radius, tint=rubber)
    out, r = x + side * 0.012, radius
    # the outer and the inner face
    body.quad([(out, 2 * r, z - r), (out, 2 * r, z + r), (out, 0, z + r), (out, 0, z - r)], "wheel")
    inner = x - side * 0.2
    body.quad(
        [(inner, 2 * r, z - r), (inner, 2 * r, z + r), (inner, 0, z + r), (inner, 0, z - r)],
        "wheel",
        (0.15, 0.15, 0.15),
    )


def bicycle(body: Builder, rng: Rng) -> None:
    """Add a bicycle to `body`: wheels, frame, handlebar, saddle."""
    paint = tuple(rng.uniform(0.1, 0.8, 3))
    r = 0.34
    for z in (-0.52, 0.52):
        wheel = [(0, 2 * r, z - r), (0, 2 * r, z + r), (0, 0, z + r), (0, 0, z - r)]
        body.quad(wheel, "bike-wheel")
        body.rod((-0.02, r, z), (0.02, r, z), r, tint=(0.1, 0.1, 0.1))
    pedals, seat, head = (0, 0.3, -0.08), (0, 0.85, -0.25), (0, 0.85, 0.4)
    for start, end in (
        (pedals, seat), (pedals, head), (seat, head), ((0, r, -0.52), pedals),
        ((0, r, -0.52), seat), ((0, r, 0.52), (0, 1.02, 0.36)),
    ):  # fmt: skip
        body.rod(start, end, 0.022, tint=paint)
    body.rod((-0.26, 1.03, 0.36), (0.26, 1.03, 0.36), 0.018, tint=(0.15, 0.15, 0.15))
    body.ball((0, 0.93, -0.27), (0.07, 0.04, 0.13), tint=(0.1, 0.1, 0.1))
