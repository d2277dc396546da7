"""A drive along a street, frame by frame, in which an anomaly may enter the road."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.offline.scenes import anomalies
from penumbra.offline.scenes.camera import Camera, View
from penumbra.offline.scenes.rendering import render
from penumbra.offline.scenes.scene import Actor, Ego, Scene
from penumbra.offline.scenes.street_layout import street

START = 4.0
"""Metres along the street at which a drive begins."""
AHEAD = 15.0
"""Distance in metres from the anomaly at which the driver begins to brake."""
HALT = 6.5
"""Distance in metres from the anomaly at which the vehicle stops."""
REACTION = 0.6
"""Seconds from the anomaly's appearance until the driver brakes."""
ASIDE, ENTRY_SPEED = 11.0, 5.0
"""The anomaly starts this many metres beside the lane, out of sight or behind the houses, and moves
at this many metres per second."""


@dataclass(frozen=True)
class RenderedFrame:
    """One moment of a drive; `right` is the view of the right camera, if asked for."""

    index: int
    time: float
    scene: Scene
    view: View
    right: View | None = None


def drive(
    seed: int,
    frames: int,
    fps: float = 10.0,
    *,
    camera: Camera | None = None,
    speed: float = 7.0,
    anomaly: str = "elephant",
    anomaly_at: float | None = None,
    stereo: bool = False,
    traffic: str | None = None,
) -> Iterator[RenderedFrame]:
    """Frames of a drive along one street, rendered lazily.

    The vehicle drives at `speed` m/s. At `anomaly_at` seconds (None: never) the anomaly appears
    beside the road and moves into the lane ahead, which it reaches 2.2 s later; the driver brakes
    and stops before it.
    """
    if isinstance(frames, bool) or not isinstance(frames, (int, np.integer)) or frames < 1:
        raise PenumbraError(f"drive: frames is {frames!r}: give an integer from 1 on")
    scene = journey(seed, frames / _positive(fps, "fps"), speed, anomaly, anomaly_at, traffic)
    return _frames(scene, int(frames), float(fps), camera or Camera(), stereo)


def journey(
    seed: int,
    seconds: float,
    speed: float = 7.0,
    anomaly: str = "elephant",
    anomaly_at: float | None = None,
    traffic: str | None = None,
) -> Scene:
    """The scene that `drive` renders; `journey(...).at(time)` is the scene at a time."""
    _positive(seconds, "seconds")
    if not 0 <= speed <= 40:
        raise PenumbraError(f"drive: speed is {speed!r} m/s: give 0 to 40")
    length = min(190.0 + speed * seconds, 5000.0)
    scene = street(seed, length=length, traffic=traffic, start=START)
    ego = replace(scene.ego, yaw=0.0, speed=speed, sway=0.15)
    scene = replace(scene, actors=tuple(_give_way(scene.actors, ego)))
    if anomaly_at is None:
        return replace(scene, ego=ego)
    if not anomaly_at >= 0:
        raise PenumbraError(f"drive: anomaly_at is {anomaly_at!r} s: give 0 or more, or None")
    body = anomalies.make(anomaly)
    keep = 1 if ego.x > 0 else -1
    entry = ego.pose(anomaly_at).z + speed * REACTION + AHEAD
    thing = Actor(
        body,
        (ego.x + keep * ASIDE, entry),
        (-keep * ENTRY_SPEED, 0.0),
        heading=0.35 * keep,
        since=anomaly_at,
        until=anomaly_at + ASIDE / ENTRY_SPEED,
        appears=anomaly_at,
    )
    ego = replace(ego, brake_from=anomaly_at + REACTION, brake_metres=AHEAD - HALT)
    return replace(scene.with_actors(thing), ego=ego)


def _give_way(actors: Iterable[Actor], ego: Ego) -> Iterator[Actor]:
    """Cars ahead in the own lane keep their distance; those within 35 m are left out."""
    for actor in actors:
        along = actor.velocity[1]
        if along <= 0 or abs(actor.start[0] - ego.x) > 1.5:
            yield actor
        elif actor.start[1] > ego.z + 35:
            yield replace(actor, velocity=(0.0, max(along, ego.speed)))


def _frames(
    scene: Scene, frames: int, fps: float, camera: Camera, stereo: bool
) -> Iterator[RenderedFrame]:
    for index in range(frames):
        now = scene.at(index / fps)
        right = render(now, camera, right=True) if stereo else None
        yield RenderedFrame(index, now.time, now, render(now, camera), right)


def _positive(value: float, name: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
        raise PenumbraError(f"drive: {name} is {value!r}: give a number above 0")
    return float(value)
