"""The schedule of the learning rate: warm-up, constant, decay.

A run with a known end decays over its last steps. A run without an end stays at the full rate until
it is stopped, and any of its states can be annealed later (Hägele et al. 2024: as good as a cosine
schedule, whose length must be known beforehand).
"""

from __future__ import annotations

import math


def rate_factor(step: int, warmup: int, steps: int | None, decay_steps: int) -> float:
    """The factor on the learning rate at `step` (from 0) of `steps` (None: no known end).

    Linear over `warmup` steps, then constant, and `1 - √progress` over the last `decay_steps`.
    """
    factor = min(1.0, (step + 1) / max(1, warmup))
    if steps is not None and step >= steps - decay_steps:
        progress = (step - (steps - decay_steps)) / max(1, decay_steps)
        factor *= 1.0 - math.sqrt(min(1.0, progress))
    return factor
