"""The learning rate over time: warm up, stay, and come down when told to.

A run that knows its end comes down over its last steps. A run without an end stays at the full
rate until it is stopped, and any of its states can be annealed later (Hägele et al. 2024 find
this as good as a cosine that has to know its length beforehand).
"""

from __future__ import annotations

import math


def rate_factor(step: int, warmup: int, steps: int | None, decay_steps: int) -> float:
    """The share of the full learning rate at `step` (0-based) of `steps`, or of no known end.

    Linear over `warmup` steps, constant, and over the last `decay_steps` `1 - √progress`: most of
    the way down early, then long and fine.
    """
    factor = min(1.0, (step + 1) / max(1, warmup))
    if steps is not None and step >= steps - decay_steps:
        progress = (step - (steps - decay_steps)) / max(1, decay_steps)
        factor *= 1.0 - math.sqrt(min(1.0, progress))
    return factor
