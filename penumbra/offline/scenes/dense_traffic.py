"""Dense traffic around the camera, for training on near objects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penumbra.offline.scenes.lorries import lorry
from penumbra.offline.scenes.scene import Actor, Scene
from penumbra.offline.scenes.street_plan import LANE
from penumbra.offline.scenes.vehicles import car

_LORRIES = 0.5  # share of lorries beside the own lane
_QUEUE_LENGTH = 45.0  # metres


def with_dense_traffic(scene: Scene, random: np.random.Generator) -> Scene:
    """The same street with vehicles close ahead and queues on one or both sides."""
    here, inwards = scene.pose, -np.sign(scene.pose.x) or 1.0
    lanes = [(here.x, 3.0, 14.0)]
    sides = random.choice(3, p=[0.3, 0.2, 0.5])  # inwards, outwards, both
    if sides != 1:
        lanes.append((here.x + inwards * LANE, -8.0, 8.0))
    if sides != 0:
        lanes.append((here.x - inwards * LANE, -8.0, 8.0))
    queue: list[Actor] = []
    for x, nearest, furthest in lanes:
        beside = x != here.x
        gap = random.uniform(nearest, furthest)  # from the camera to the first vehicle
        heading = np.pi if beside and random.random() < 0.3 else 0.0
        while gap < _QUEUE_LENGTH:
            large = random.random() < (_LORRIES if beside else _LORRIES / 2)
            body = lorry(random) if large else car(random)
            tail, nose = (f(body.quads["corners"][..., 2]) for f in (np.min, np.max))
            place = (x + float(random.normal(0, 0.25)), here.z + gap - float(tail))
            if heading:  # oncoming: its front is the near end
                place = (place[0], here.z + gap + float(nose))
            queue.append(Actor(body, place, heading=heading + float(random.normal(0, 0.03))))
            gap += float(nose - tail) + random.uniform(1.0, 9.0)

    def in_the_way(actor: Actor) -> bool:
        x, z = actor.place(scene.time)
        return abs(x - here.x) < 1.5 * LANE and -15 < z - here.z < 60

    free = tuple(actor for actor in scene.actors if not in_the_way(actor))
    return replace(scene, actors=(*free, *queue))
