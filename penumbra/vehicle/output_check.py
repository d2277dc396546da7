"""Validation of a runner's outputs against the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penumbra.bundle import OutputSpec
from penumbra.vehicle.runners import RunnerError


def check_outputs(
    outputs: Mapping[str, np.ndarray], specs: Sequence[OutputSpec], size: tuple[int, int]
) -> None:
    """Raise RunnerError unless every output has the type and shape stated in the manifest.

    `size` is the height and width of the image, which replace None in a shape.
    """
    for spec in specs:
        found = outputs.get(spec.name)
        if found is None:
            raise RunnerError(f"the runner returned no output {spec.name}: export the model again")
        expected = tuple(wanted or size[axis] for axis, wanted in enumerate(spec.shape))
        if found.dtype != np.dtype(spec.dtype) or found.shape != expected:
            raise RunnerError(
                f"output {spec.name} is {found.dtype} {found.shape}, and the manifest states "
                f"{spec.dtype} {expected}: export the model again"
            )
