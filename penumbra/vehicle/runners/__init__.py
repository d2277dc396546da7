"""Runners execute a bundle's graph: one interface, each backend imported only if selected.

runner = RunnerSelector("auto", bundle).start()   # the fastest that works here
with create("onnxruntime", bundle) as runner:     # a specific one
    outputs = runner.infer(image)
"""

from penumbra.vehicle.runners.base import Runner
from penumbra.vehicle.runners.registry import AUTO, RUNNERS, create, runner_class
from penumbra.vehicle.runners.selector import RunnerSelector
from penumbra.vehicle.runners.settings import RunnerError, RunnerSettings

__all__ = [
    "AUTO",
    "RUNNERS",
    "Runner",
    "RunnerError",
    "RunnerSelector",
    "RunnerSettings",
    "create",
    "runner_class",
]
