"""The layout of a street, drawn from a seed."""

from __future__ import annotations

import numpy as np

from penumbra.errors import PenumbraError
from penumbra.offline.scenes import anomalies, ground, roadside
from penumbra.offline.scenes.light import Light
from penumbra.offline.scenes.mesh import Mesh
from penumbra.offline.scenes.scene import Actor, Scene, World
from penumbra.offline.scenes.street_plan import StreetPlan
from penumbra.offline.scenes.traffic import populate


def street(
    seed: int,
    *,
    length: float = 190.0,
    traffic: str | None = None,
    anomaly: str | None = None,
    start: float | None = None,
) -> Scene:
    """A street, the same for the same arguments.

    The own vehicle is in its lane at z = `start` (None: drawn from the seed), and the lane is free
    for ten metres. `traffic` keeps "left" or "right" (None: drawn from the seed). `anomaly` is one
    of `anomalies.KINDS` and stands on the road ahead.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise PenumbraError(f"street: seed is {seed!r}: give an integer from 0 on")
    if traffic not in (None, "left", "right"):
        raise PenumbraError(f"street: traffic is {traffic!r}: give 'left' or 'right', or None")
    if not 60 <= length <= 5000:
        raise PenumbraError(f"street: length is {length!r} m: give 60 to 5000")
    if start is not None and not 0 <= start <= length - 50:
        raise PenumbraError(
            f"street: start is {start!r} m: give 0 to {length - 50:g} (length - 50)"
        )
    plan = StreetPlan.draw(np.random.default_rng([int(seed), 1]), float(length), traffic)
    if start is not None:
        plan.start = float(start)
    ground.pave(plan)
    for side in (-1, 1):
        for block in plan.blocks(side):
            roadside.zone(plan, side, block)
        roadside.furnish(plan, side)
    roadside.close(plan)
    populate(plan)
    # its own generator, so that a change of the light does not move the houses
    light = Light.draw(np.random.default_rng([int(seed), 2]))
    world = World(int(seed), light, Mesh.join(plan.parts), tuple(plan.stripes), plan.length)
    scene = Scene(world, tuple(plan.actors), plan.ego())
    if anomaly is not None:
        rng = np.random.default_rng([int(seed), 3])
        pose = scene.pose
        ahead, beside = float(rng.uniform(8, 22)), float(rng.uniform(-1.2, 1.2))
        turn = float(rng.normal(0, 0.35))
        thing = Actor(anomalies.make(anomaly), (pose.x + beside, pose.z + ahead), heading=turn)
        scene = scene.with_actors(thing)
    return scene
