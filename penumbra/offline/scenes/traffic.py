"""Traffic of a street: parked and moving cars, cyclists, pedestrians."""

from __future__ import annotations

import numpy as np

from penumbra.offline.scenes.people import Person
from penumbra.offline.scenes.scene import Actor
from penumbra.offline.scenes.street_plan import KERB, LANE, START, StreetPlan
from penumbra.offline.scenes.vehicles import car


def populate(plan: StreetPlan) -> None:
    """Add parked and moving cars, cyclists and pedestrians to `plan`."""
    rng, keep = plan.rng, plan.keep
    for side in (-1, 1):
        heading = 0.0 if side == keep else np.pi
        if plan.parking[side]:
            z, x = START + 6, side * (plan.lanes * LANE + 1.05)
            while z < plan.length - 8:
                if rng.random() < 0.55 * plan.busy**0.5 and plan.free(side, z, 7):
                    body = car(rng, "lorry" if rng.random() < 0.02 else None)
                    turn = heading + float(rng.normal(0, 0.02))
                    plan.parts.append(body.moved(x + float(rng.normal(0, 0.07)), z, turn))
                    z += 2.5
                z += 4.2
        else:
            for _ in range(rng.poisson(1.6 * plan.busy)):  # no cyclists where cars park
                _cyclist(plan, side)
        for lane in range(plan.lanes):
            x = side * (lane + 0.5) * LANE
            own = side == keep and lane == plan.lanes - 1
            # one speed per lane, so that vehicles do not collide
            speed = float(rng.uniform(7.5, 9)) * (1 if side == keep else -1)
            z = plan.start + float(rng.exponential(25) + (13 if own else 7))
            while z < plan.length + 60:
                place = (x + float(rng.normal(0, 0.15)), z)
                plan.actors.append(Actor(car(rng), place, (0.0, speed), heading))
                z += float(14 + rng.exponential(45)) / plan.busy**0.5
        for _ in range(rng.poisson(plan.length / 190 * 12 * plan.busy)):
            _walker(plan, side)


def _cyclist(plan: StreetPlan, side: int) -> None:
    rng = plan.rng
    way = 1 if side == plan.keep else -1
    x = side * (plan.edge(side) - 0.55)
    speed = float(rng.uniform(3.5, 5.5)) * way
    z = plan.start + float(rng.uniform(7, 80))
    rider = Person.draw(rng, cycling=True)
    plan.actors.append(Actor(rider, (x, z), (0.0, speed), 0.0 if way > 0 else np.pi))


def _walker(plan: StreetPlan, side: int) -> None:
    rng = plan.rng
    x = side * float(rng.uniform(plan.edge(side) + 0.7, plan.front(side) - 0.35))
    z = float(rng.uniform(6, plan.length))
    way = int(rng.choice([-1, 0, 1], p=[0.42, 0.16, 0.42]))
    heading = {1: 0.0, -1: np.pi, 0: float(rng.uniform(0, 2 * np.pi))}[way]
    speed = float(rng.normal(1.35, 0.15)) * way
    y = KERB if plan.free(side, z, 0) else 0.0
    body = Person.draw(rng)
    plan.actors.append(Actor(body, (x, z), (0.0, speed), heading, y))
    if rng.random() < 0.35:  # a second person beside
        beside = x + side * 0.6 if plan.pavement[side] > 2.2 else x
        friend = (beside, z + (0.1 if beside != x else 0.9))
        plan.actors.append(Actor(Person.draw(rng), friend, (0.0, speed), heading, y))
