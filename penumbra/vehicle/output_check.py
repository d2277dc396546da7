"""Validation of a runner's outputs against the manifest, before anything of them is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penumbra.bundle import OutputSpec
from penumbra.vehicle.runners import RunnerError

# Roles that are standard deviations: never negative, and not 0 in every pixel, since the noise of
# the network reaches some of them.
_SPREADS = ("uncertainty", "epistemic", "aleatoric")
_ROUNDING = 1e-3  # of a probability in half precision


class OutputError(RunnerError):
    """An output contradicts the manifest; nothing of the frame may be used."""


def check_outputs(
    outputs: Mapping[str, np.ndarray],
    specs: Sequence[OutputSpec],
    size: tuple[int, int],
    classes: int,
) -> None:
    """Raise OutputError unless every output has the type, shape and range of the manifest.

    `size` is the height and width of the image, which replace None in a shape; `classes` is the
    number of labels, 0 for depth.
    """
    for spec in specs:
        found = outputs.get(spec.name)
        if found is None:
            raise OutputError(f"the runner returned no output {spec.name}: export the model again")
        expected = tuple(wanted or size[axis] for axis, wanted in enumerate(spec.shape))
        if found.dtype != np.dtype(spec.dtype) or found.shape != expected:
            raise OutputError(
                f"output {spec.name} is {found.dtype} {found.shape}, and the manifest states "
                f"{spec.dtype} {expected}: export the model again"
            )
        if found.size:
            _check_range(spec, found, classes)


def _check_range(spec: OutputSpec, found: np.ndarray, classes: int) -> None:
    lowest, highest = found.min(), found.max()  # NaN if any value is
    if not (np.isfinite(lowest) and np.isfinite(highest)):
        wrong = found.size - int(np.isfinite(found).sum())
        raise OutputError(f"output {spec.name} has {wrong} non-finite of {found.size} values")
    problem = ""
    if spec.role in _SPREADS:
        if lowest < 0:
            problem = "negative, and a standard deviation is not"
        elif highest == 0 and found.ndim:
            problem = "0 in every pixel: the noise of the network does not reach it"
    elif spec.role == "confidence" and not -_ROUNDING <= lowest <= highest <= 1 + _ROUNDING:
        problem = f"from {lowest:.3g} to {highest:.3g}, and a confidence is from 0 to 1"
    elif spec.role == "prediction" and classes and highest >= classes:
        problem = f"up to {int(highest)}, and there are {classes} classes"
    elif spec.role == "prediction" and lowest < 0:
        problem = f"down to {lowest:.3g}, and cannot be negative"
    if problem:
        raise OutputError(f"output {spec.name} is {problem}")
