"""A street at one moment: the static world, the actors and the own vehicle."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from penumbra.offline.scenes.camera import Pose
from penumbra.offline.scenes.light import Light, Stripe
from penumbra.offline.scenes.mesh import Mesh
from penumbra.offline.scenes.people import Person
from penumbra.offline.scenes.shadows import ShadowMap

STRIDE = 1.5
"""Length of two steps of an adult, in metres."""


@dataclass(frozen=True)
class Actor:
    """A moving object: from `start` (x, z) with `velocity` (m/s) from `since` to `until`.

    It does not exist before `appears`.
    """

    body: Mesh | Person
    start: tuple[float, float]
    velocity: tuple[float, float] = (0.0, 0.0)
    heading: float = 0.0
    y: float = 0.0
    since: float = 0.0
    until: float = math.inf
    appears: float = -math.inf

    def place(self, time: float) -> tuple[float, float]:
        """Its position (x, z) at `time`."""
        moved = self._moved(time)
        return self.start[0] + self.velocity[0] * moved, self.start[1] + self.velocity[1] * moved

    def _moved(self, time: float) -> float:
        """Seconds of movement up to `time`."""
        return min(max(time, self.since), self.until) - self.since

    def at(self, time: float) -> Mesh | None:
        """Its mesh at `time`; None before it appears."""
        if time < self.appears:
            return None
        body = self.body
        if isinstance(body, Person):
            gone = math.hypot(*self.velocity) * self._moved(time)
            # the phase depends on the start, so that people do not walk in step
            body = body.at(2 * math.pi * gone / STRIDE + 7 * self.start[1])
        return body.moved(*self.place(time), self.heading, self.y)


@dataclass(frozen=True)
class Ego:
    """The own vehicle: constant speed in its lane with a slight sway; it may brake to a stop."""

    x: float
    z: float
    speed: float = 0.0
    yaw: float = 0.0
    sway: float = 0.0
    brake_from: float = math.inf
    brake_metres: float = 1.0

    def distance(self, time: float) -> float:
        """Metres driven by `time`: v t, then v τ - v² τ² / (4 brake_metres) until it stops."""
        free = min(time, self.brake_from)
        late = time - free
        if late <= 0 or self.speed == 0:
            return self.speed * free
        late = min(late, 2 * self.brake_metres / self.speed)
        slowing = self.speed**2 / (2 * self.brake_metres)
        return self.speed * (free + late) - slowing * late**2 / 2

    def pose(self, time: float) -> Pose:
        """Position and heading at `time`."""
        gone = self.distance(time)
        wave = 2 * math.pi / 55.0
        side = self.sway * math.sin(wave * gone)
        slope = self.sway * wave * math.cos(wave * gone)
        return Pose(self.x + side, self.z + gone, self.yaw + math.atan(slope))


@dataclass(frozen=True)
class World:
    """The static part of a scene."""

    seed: int
    light: Light
    standing: Mesh
    stripes: tuple[Stripe, ...]
    length: float

    @cached_property
    def shadows(self) -> ShadowMap:
        """The shadows of everything that stands."""
        empty = ShadowMap.empty((-32.0, 32.0), (-12.0, self.length + 12.0))
        return empty.with_casters(self.standing, self.light)


@dataclass(frozen=True)
class Scene:
    """A world at one moment; `at(time)` is the same street at another."""

    world: World
    actors: tuple[Actor, ...]
    ego: Ego
    time: float = 0.0

    def at(self, time: float) -> Scene:
        """The same scene at `time`."""
        return replace(self, time=time)

    def with_actors(self, *actors: Actor) -> Scene:
        """The same scene with more actors."""
        return replace(self, actors=(*self.actors, *actors))

    @property
    def pose(self) -> Pose:
        """The pose of the own vehicle."""
        return self.ego.pose(self.time)

    @cached_property
    def moving(self) -> Mesh:
        """The actors, except those far behind."""
        back = self.pose.z - 25
        near = (actor for actor in self.actors if actor.place(self.time)[1] > back)
        bodies = (actor.at(self.time) for actor in near)
        return Mesh.join(body for body in bodies if body is not None)

    @cached_property
    def mesh(self) -> Mesh:
        """Everything that is not entirely behind the vehicle."""
        both = Mesh.join([self.world.standing, self.moving])
        back = self.pose.z - 8
        ahead = both.quads["corners"][..., 2].max(axis=1) > back
        return Mesh(both.quads[ahead], both.rounds[both.rounds["centre"][:, 2] > back])

    @cached_property
    def shadows(self) -> ShadowMap:
        """The shadows of the world and the actors, near the vehicle."""
        light = self.world.light
        near = self.world.shadows.between(self.pose.z - 4, self.pose.z + 110)
        # under an overcast sky shadows are wide and soft
        blur = 0.15 if np.mean(light.sun) > 0.12 else 0.7
        return near.with_casters(self.moving, light).softened(blur)
