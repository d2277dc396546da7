"""All texture tiles by name.

Their seeds are fixed: the tiles are the same in every scene. Scenes differ in tints, scales and
offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from penumbra.offline.scenes import object_tiles, surface_tiles
from penumbra.offline.scenes import tile_drawing as draw
from penumbra.offline.scenes.tile_drawing import Rng

WALLS = ("brick", "stucco", "stone", "concrete")
WINDOWS = ("sash", "modern", "tall", "ribbon")
LEAVES = 6
SIGNS = ("limit", "warning", "stop", "turn", "parking", "crossing", "board", "lamp")


def painters() -> dict[str, Callable[[Rng], np.ndarray]]:
    """The function that paints each tile, in the order of the atlas."""
    table: dict[str, Callable[[Rng], np.ndarray]] = {
        "plain": lambda rng: draw.plain(0.97, (draw.noise(rng, 16, 3), 0.025)),
        "cloth": lambda rng: draw.plain(
            0.92, (draw.noise(rng, 64, 2), 0.08), (draw.noise(rng, 4, 3), 0.1)
        ),
        "asphalt": surface_tiles.asphalt,
        "asphalt-cracked": lambda rng: surface_tiles.asphalt(rng, 3),
        "asphalt-coarse": lambda rng: surface_tiles.asphalt(rng, 1, 0.47),
        "patch": lambda rng: surface_tiles.asphalt(rng, 0, 0.33),
        "slabs": lambda rng: surface_tiles.paving(rng, 4, 4),
        "bricks-ground": lambda rng: surface_tiles.paving(rng, 8, 16),
        "setts": lambda rng: surface_tiles.paving(rng, 16, 16, 0.6),
        "kerb": lambda rng: surface_tiles.paving(rng, 2, 1, 0.7),
        "paint": lambda rng: draw.plain(0.9, (draw.noise(rng, 32, 3), 0.08)),
        "grass": surface_tiles.grass,
        "manhole": surface_tiles.manhole,
        "glass-tower": surface_tiles.glass_tower,
        "roof-red": lambda rng: surface_tiles.roof(rng, (0.32, 0.36, 0.58)),
        "roof-slate": lambda rng: surface_tiles.roof(rng, (0.42, 0.38, 0.36)),
        "hedge": surface_tiles.foliage,
        "twigs": lambda rng: surface_tiles.leaves(rng, bare=True),
        "bark": surface_tiles.bark,
        "car-side": object_tiles.car_side,
        "car-front": lambda rng: object_tiles.car_end(rng, True),
        "car-rear": lambda rng: object_tiles.car_end(rng, False),
        "car-glass": object_tiles.car_glass,
        "wheel": object_tiles.wheel,
        "bike-wheel": object_tiles.bike_wheel,
        "leather": surface_tiles.leather,
        "hide": surface_tiles.hide,
    }
    table |= {f"leaves-{k}": surface_tiles.leaves for k in range(LEAVES)}
    table |= {f"shop-{k}": surface_tiles.shop for k in range(5)}
    for material in WALLS:
        table[material] = partial(surface_tiles.wall, kind=material)
        for style in WINDOWS:
            table[f"{material}-{style}"] = partial(
                surface_tiles.facade, material=material, style=style
            )
    for kind in ("panel", "picket", "railing", "barrier"):
        table[f"fence-{kind}"] = partial(object_tiles.fence, kind=kind)
    for kind in SIGNS:
        table[f"sign-{kind}"] = partial(object_tiles.sign, kind=kind)
    table |= {f"livery-{k}": object_tiles.livery for k in range(4)}
    for kind in ("stripes", "checker", "hazard", "dots"):
        table[f"odd-{kind}"] = partial(surface_tiles.odd, kind=kind)
    return table
