"""The runners by name; a backend is imported only if its runner is selected."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.vehicle.runners.base import Runner
from penumbra.vehicle.runners.settings import RunnerSettings

# Module and class of each runner, fastest first: the order in which `auto` tries them.
RUNNERS = {
    "tensorrt": ("penumbra.vehicle.runners.tensorrt", "TensorRTRunner"),
    "tensorrt-rtx": ("penumbra.vehicle.runners.tensorrt", "TensorRTRTXRunner"),
    "openvino": ("penumbra.vehicle.runners.openvino", "OpenVinoRunner"),
    "onnxruntime": ("penumbra.vehicle.runners.onnxruntime", "OnnxRuntimeRunner"),
}
AUTO = "auto"  # not a runner: RunnerSelector resolves it to one


def create(
    name: str,
    bundle: Bundle,
    outputs: Sequence[str] | None = None,
    settings: RunnerSettings | None = None,
    **changes: Any,
) -> Runner:
    """Create the runner `name`, inactive; `changes` override single fields of `settings`."""
    settings = replace(settings or RunnerSettings(), **changes)
    return runner_class(name)(bundle, outputs, settings)


def runner_class(name: str) -> type[Runner]:
    """The class of a runner; its backend is not imported yet."""
    if name not in RUNNERS:
        raise PenumbraError(f"unknown runner {name!r}: choose from {', '.join(RUNNERS)}")
    module, attribute = RUNNERS[name]
    return cast("type[Runner]", getattr(importlib.import_module(module), attribute))
