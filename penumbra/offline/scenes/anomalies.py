"""Objects without a class, on which no model was trained; an alert should report them.

Each stands at the origin and faces -z, towards an approaching vehicle.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid_classes import VOID
from penumbra.offline.scenes.mesh import Builder, Mesh


def _ball(body: Builder) -> None:
    body.ball((0, 0.95, 0), (0.95, 0.95, 0.95), "odd-stripes", repeat=(2, 1), tilt=0.5)


def _sofa(body: Builder) -> None:
    red = (0.12, 0.10, 0.62)
    body.box((-1.05, 0.12, -0.45), (1.05, 0.48, 0.45), "leather", red, 1.2)
    body.box((-1.05, 0.48, 0.2), (1.05, 1.0, 0.5), "leather", red, 1.2)
    for side in (-1, 1):
        low, high = sorted((side * 0.85, side * 1.15))
        body.box((low, 0.1, -0.5), (high, 0.68, 0.48), "leather", red, 1.2)
        body.rod((side * 1.0, 0.7, -0.5), (side * 1.0, 0.7, 0.48), 0.16, "leather", red)
        body.ball((side * 0.45, 0.52, -0.08), (0.46, 0.12, 0.42), "leather", red)
        body.ball((side * 0.5, 0.8, 0.15), (0.3, 0.26, 0.12), "odd-dots")
        for z in (-0.4, 0.4):
            body.rod((side * 0.95, 0, z), (side * 0.95, 0.12, z), 0.04, tint=(0.1, 0.15, 0.2))


def _elephant(body: Builder) -> None:
    grey = (0.62, 0.56, 0.58)
    body.ball((0, 1.55, 0.5), (0.8, 0.8, 1.25), "hide", grey, (3, 2))
    body.ball((0, 1.9, -0.85), (0.5, 0.55, 0.5), "hide", grey, (2, 2))
    for side in (-1, 1):
        body.ball((side * 0.66, 1.9, -0.7), (0.42, 0.52, 0.08), "hide", (0.68, 0.6, 0.66))
        body.rod(
            (side * 0.22, 1.65, -1.2),
            (side * 0.3, 1.35, -1.6),
            0.07,
            tint=(0.85, 0.92, 0.95),
            tube=False,
        )
        body.ball((side * 0.2, 2.05, -1.27), (0.05, 0.05, 0.05), tint=(0.05,) * 3)
        for z in (-0.3, 1.25):
            body.rod((side * 0.45, 0, z), (side * 0.45, 1.4, z), 0.23, "hide", grey)
    joints = [(0, 1.75, -1.25), (0, 1.25, -1.5), (0, 0.75, -1.5), (0, 0.4, -1.7)]
    for (start, end), radius in zip(pairwise(joints), (0.22, 0.17, 0.13), strict=True):
        long = [b + 0.25 * (b - a) for a, b in zip(start, end, strict=True)]
        body.rod(start, long, radius, "hide", grey, tube=False)


def _crate(body: Builder) -> None:
    body.box((-1.0, 0, -0.9), (1.0, 1.8, 0.9), "odd-checker", tile=1.8)
    for y in (0.0, 1.66):
        body.box((-1.05, y, -0.95), (1.05, y + 0.16, 0.95), "odd-hazard", tile=1.2)


def _traffic_light(body: Builder) -> None:
    """A fallen traffic light, across the lane."""
    body.rod((-1.7, 0.12, 0.3), (1.0, 0.12, -0.2), 0.09, tint=(0.3, 0.32, 0.3))
    body.box((0.7, 0.02, -0.5), (1.75, 0.55, 0.1), "plain", (0.08, 0.08, 0.08))
    lamps = ((0.2, 0.2, 1.0), (0.15, 0.75, 1.0), (0.4, 0.95, 0.3))
    for x, tint in zip((0.9, 1.22, 1.54), lamps, strict=True):
        body.ball((x, 0.3, -0.5), (0.14, 0.14, 0.07), tint=tint)
    body.box((-1.9, 0, 0.0), (-1.4, 0.3, 0.6), "odd-hazard", tile=0.8)


def _duck(body: Builder) -> None:
    yellow, beak = (0.12, 0.82, 1.0), (0.1, 0.4, 0.95)
    body.ball((0, 0.65, 0.2), (0.75, 0.65, 1.0), tint=yellow)
    body.ball((0, 1.0, 1.1), (0.3, 0.3, 0.35), tint=yellow)
    body.ball((0, 1.5, -0.45), (0.5, 0.5, 0.5), tint=yellow)
    body.ball((0, 1.42, -0.95), (0.26, 0.09, 0.25), tint=beak)
    for side in (-1, 1):
        body.ball((side * 0.72, 0.75, 0.3), (0.14, 0.32, 0.55), tint=(0.1, 0.74, 0.95))
        body.ball((side * 0.24, 1.66, -0.86), (0.08, 0.09, 0.06), tint=(0.05,) * 3)


def _piano(body: Builder) -> None:
    black, gloss = (0.06, 0.06, 0.07), (0.75, 0.72, 0.15)
    body.box((-0.8, 0.0, -0.1), (0.8, 1.3, 0.4), "plain", gloss)
    body.box((-0.75, 0.62, -0.5), (0.75, 0.78, -0.1), "plain", gloss)
    body.box((-0.7, 0.78, -0.47), (0.7, 0.8, -0.15), "plain", (0.92, 0.95, 0.95))
    for k in range(14):
        x = -0.66 + k * 0.1
        body.box((x, 0.8, -0.32), (x + 0.05, 0.83, -0.15), "plain", black)
    for x in (-0.72, 0.66):
        body.box((x, 0.0, -0.48), (x + 0.07, 0.62, -0.4), "plain", gloss)


_MAKERS: dict[str, Callable[[Builder], None]] = {
    "ball": _ball,
    "sofa": _sofa,
    "elephant": _elephant,
    "crate": _crate,
    "traffic-light": _traffic_light,
    "duck": _duck,
    "piano": _piano,
}
KINDS = tuple(_MAKERS)


def make(kind: str) -> Mesh:
    """The mesh of one of KINDS, labelled VOID and marked as an anomaly."""
    if kind not in _MAKERS:
        raise PenumbraError(f"anomaly {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    body = Builder(VOID)
    _MAKERS[kind](body)
    return body.mesh().marked(VOID, anomaly=True)
