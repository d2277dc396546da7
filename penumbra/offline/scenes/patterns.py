"""Every texture tile by name.

They are drawn from fixed seeds: the tiles are the same in every scene, and a scene's own tints,
scales and offsets tell its surfaces apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penumbra.offline.scenes import drawing as draw
from penumbra.offline.scenes import emblems, surfaces
from penumbra.offline.scenes.drawing import Rng

WALLS = ("brick", "stucco", "stone", "concrete")
WINDOWS = ("sash", "modern", "tall", "ribbon")
LEAVES = 6
SIGNS = ("limit", "warning", "stop", "turn", "parking", "crossing", "board", "lamp")


def painters() -> dict[str, Callable[[Rng], np.ndarray]]:
    """Every tile by name, in the order of the atlas."""
    table: dict[str, Callable[[Rng], np.ndarray]] = {
        "plain": lambda rng: draw.plain(0.97, (draw.noise(rng, 16, 3), 0.025)),
        "cloth": lambda rng: draw.plain(
            0.92, (draw.noise(rng, 64, 2), 0.08), (draw.noise(rng, 4, 3), 0.1)
        ),
        "asphalt": surfaces.asphalt,
        "asphalt-cracked": lambda rng: surfaces.asphalt(rng, 3),
        "asphalt-coarse": lambda rng: surfaces.asphalt(rng, 1, 0.47),
        "patch": lambda rng: surfaces.asphalt(rng, 0, 0.33),
        "slabs": lambda rng: surfaces.paving(rng, 4, 4),
        "bricks-ground": lambda rng: surfaces.paving(rng, 8, 16),
        "setts": lambda rng: surfaces.paving(rng, 16, 16, 0.6),
        "kerb": lambda rng: surfaces.paving(rng, 2, 1, 0.7),
        "paint": lambda rng: draw.plain(0.9, (draw.noise(rng, 32, 3), 0.08)),
        "grass": surfaces.grass,
        "manhole": surfaces.manhole,
        "glass-tower": surfaces.glass_tower,
        "roof-red": lambda rng: surfaces.roof(rng, (0.32, 0.36, 0.58)),
        "roof-slate": lambda rng: surfaces.roof(rng, (0.42, 0.38, 0.36)),
        "hedge": surfaces.foliage,
        "twigs": lambda rng: surfaces.leaves(rng, bare=True),
        "bark": surfaces.bark,
        "car-side": emblems.car_side,
        "car-front": lambda rng: emblems.car_end(rng, True),
        "car-rear": lambda rng: emblems.car_end(rng, False),
        "car-glass": emblems.car_glass,
        "wheel": emblems.wheel,
        "bike-wheel": emblems.bike_wheel,
        "leather": surfaces.leather,
        "hide": surfaces.hide,
    }
    table |= {f"leaves-{k}": surfaces.leaves for k in range(LEAVES)}
    table |= {f"shop-{k}": surfaces.shop for k in range(5)}
    for material in WALLS:
        table[material] = lambda rng, material=material: surfaces.wall(rng, material)
        for style in WINDOWS:
            table[f"{material}-{style}"] = lambda rng, m=material, s=style: surfaces.facade(
                rng, m, s
            )
    for kind in ("panel", "picket", "railing", "barrier"):
        table[f"fence-{kind}"] = lambda rng, kind=kind: emblems.fence(rng, kind)
    for kind in SIGNS:
        table[f"sign-{kind}"] = lambda rng, kind=kind: emblems.sign(rng, kind)
    table |= {f"livery-{k}": emblems.livery for k in range(4)}
    for kind in ("stripes", "checker", "hazard", "dots"):
        table[f"odd-{kind}"] = lambda rng, kind=kind: surfaces.odd(rng, kind)
    return table
