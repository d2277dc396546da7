"""What computes a bundle's graph: one interface, each backend imported only when it is chosen.

with create("auto", bundle) as runner:
    outputs = runner.infer(image)
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.vehicle.runners.base import Runner, RunnerError, RunnerSettings

__all__ = ["AUTO", "RUNNERS", "Runner", "RunnerError", "RunnerSettings", "create", "runner_class"]

AUTO = "auto"
# Module and class of each runner, fastest first: the order in which `auto` tries them.
RUNNERS = {
    "tensorrt": ("penumbra.vehicle.runners.tensorrt", "TensorRTRunner"),
    "tensorrt-rtx": ("penumbra.vehicle.runners.tensorrt", "TensorRTRTXRunner"),
    "openvino": ("penumbra.vehicle.runners.openvino", "OpenVinoRunner"),
    "onnxruntime": ("penumbra.vehicle.runners.onnxruntime", "OnnxRuntimeRunner"),
}


def create(
    name: str,
    bundle: Bundle,
    outputs: Sequence[str] | None = None,
    settings: RunnerSettings | None = None,
    **changes: Any,
) -> Runner:
    """The runner `name`, or `auto` for the best that works; `changes` override `settings`."""
    settings = replace(settings or RunnerSettings(), **changes)
    return runner_class(name)(bundle, outputs, settings)


def runner_class(name: str) -> type[Runner]:
    """The class behind a runner's name; its backend is not imported yet."""
    if name == AUTO:
        from penumbra.vehicle.runners.auto import AutoRunner

        return AutoRunner
    if name not in RUNNERS:
        names = ", ".join([AUTO, *RUNNERS])
        raise PenumbraError(f"there is no runner {name!r}: choose from {names}")
    module, attribute = RUNNERS[name]
    return getattr(importlib.import_module(module), attribute)
