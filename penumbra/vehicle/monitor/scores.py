"""One number for a map: how far a frame departs from ordinary ones."""

from __future__ import annotations

import numpy as np

from penumbra.errors import PenumbraError

_SAMPLED = 16  # one pixel in so many tells roughly where the highest begin


def frame_score(uncertainty: np.ndarray, fraction: float) -> float:
    """The mean of the most uncertain `fraction` of pixels (at least one).

    A mean over the whole frame never sees a small object. A non-finite pixel counts as infinitely
    uncertain, so that it cannot hide.
    """
    values = finite_or_infinite(uncertainty).ravel()
    count = min(values.size, max(1, round(fraction * values.size)))
    # Most pixels are far from the highest. What a sixteenth of them puts well under leaves only a
    # few to sort; should it have left too few, all are. The result is the same, in a third of the
    # time (numpy 1.26).
    sample = values[::_SAMPLED]
    well_under = sample.size - 2 * (count // _SAMPLED + 4)
    if well_under > 0:
        candidates = values[values >= np.partition(sample, well_under)[well_under]]
        values = candidates if candidates.size >= count else values
    return float(np.partition(values, values.size - count)[-count:].mean(dtype=np.float64))


def finite_or_infinite(uncertainty: np.ndarray) -> np.ndarray:
    """The map with +inf for every non-finite pixel; not copied if all are finite."""
    values = np.asarray(uncertainty)
    if values.ndim != 2 or not values.size:
        size = " x ".join(map(str, values.shape)) or "one number"
        raise PenumbraError(f"an uncertainty map must be height x width, not {size}")
    if np.isfinite(values.max()):  # a single NaN makes the maximum NaN
        return values
    return np.where(np.isfinite(values), values, np.float32(np.inf))
