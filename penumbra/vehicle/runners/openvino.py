"""Runs a bundle on the CPU with OpenVINO, which is faster than ONNX Runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from penumbra.vehicle.runners.base import Lane, Runner
from penumbra.vehicle.runners.settings import RunnerError, RunnerSettings

_TOOLS = "openvino.tools.ovc"


class OpenVinoRunner(Runner):
    """The faster of the two CPU runners; an optional package."""

    name = "openvino"

    @classmethod
    def require(cls, settings: RunnerSettings) -> None:
        """Requires the package openvino."""
        _module()

    @property
    def description(self) -> str:
        """Version, device and threads, once active."""
        if not self.active:
            return self.name
        version = _module().__version__.partition("-")[0]
        return f"{self.name} {version} on CPU, {self.settings.threads or 'all'} threads"

    def _open(self) -> list[Lane]:
        ov = _module()
        hints: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",  # one image over all threads, not one thread per image
            # The default is bfloat16 on processors that support it: eight bits of mantissa.
            "INFERENCE_PRECISION_HINT": "f32",
            # Kernels kept for sizes seen before. The default of 5,000 grows with every new size:
            # from 352 to 488 MB over 800 sizes, with this one from 343 to 377.
            "CPU_RUNTIME_CACHE_CAPACITY": 128,
        }
        if self.settings.threads:
            hints["INFERENCE_NUM_THREADS"] = self.settings.threads
        try:
            core = ov.Core()
            model = core.read_model(self.bundle.read_model())
            # Only requested outputs: the rest of the graph is removed.
            outputs = [model.output(output.name) for output in self.outputs]
            model = ov.Model(outputs, model.get_parameters(), self.bundle.name)
            lane = RequestLane(model, lambda graph: core.compile_model(graph, "CPU", hints), self)
            lane.prepare(self.settings.image_size)
        except Exception as error:  # OpenVINO raises RuntimeError and its own types
            raise RunnerError(_reason("load", self.bundle.name, error)) from error
        return [lane]


class RequestLane:
    """Inference requests, whose buffers are reused from image to image.

    A graph that accepts any size is compiled for each size on its first image: for segnet-street at
    480x360 this takes 0.81 of the time per image and 50 MB less memory, with no delay of the first
    image. Sizes beyond the first `OWN` share one dynamic graph, which bounds the number of
    compilations.
    """

    OWN = 2  # sizes with their own graph: the wide and narrow cameras of a rig

    def __init__(self, model: Any, compiled: Callable[[Any], Any], runner: OpenVinoRunner) -> None:
        self._model: Any = model
        self._compiled: Any = compiled
        self._any_size = model.input(0).partial_shape.is_dynamic
        self._requests: dict[tuple[int, int] | None, Any] = {}
        self._bundle_name = runner.bundle.name
        self._wanted = [output.name for output in runner.outputs]

    @property
    def compiled_for(self) -> list[tuple[int, int] | None]:
        """The compiled sizes in order of arrival; None is the bundle's fixed size, or any."""
        return list(self._requests)

    def prepare(self, size: tuple[int, int] | None) -> None:
        """Compile in advance if the size is known."""
        if size is not None or not self._any_size:
            self._request(size)

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for `image`."""
        try:
            request = self._request((image.shape[0], image.shape[1]))
            results = request.infer([image], share_inputs=True)  # the outputs are copied
        except Exception as error:
            raise RunnerError(_reason("run", self._bundle_name, error)) from error
        return {name: np.asarray(results[index]) for index, name in enumerate(self._wanted)}

    def _request(self, size: tuple[int, int] | None) -> Any:
        """The request for images of `size` (height, width)."""
        key = size if self._any_size else None
        if key not in self._requests and len(self._requests) >= self.OWN:
            key = None
        if key not in self._requests:
            graph = self._model
            if key is not None:
                graph = graph.clone()
                graph.reshape([*key, 3])
            self._requests[key] = self._compiled(graph).create_infer_request()
        return self._requests[key]

    def close(self) -> None:
        """Release the compiled graphs."""
        self._requests.clear()
        self._model = self._compiled = None


def _module() -> Any:
    """OpenVINO's runtime, without the tools that its package also imports.

    They report every import to a server (`openvino_telemetry`), which is unacceptable on a vehicle,
    and take 70 ms. OpenVINO works without them; a later explicit import of the tools still works.
    """
    hide = _TOOLS not in sys.modules
    if hide:
        sys.modules[_TOOLS] = None  # type: ignore[assignment] # makes the import fail
    try:
        import openvino
    except ImportError as error:
        raise RunnerError("openvino is not installed: pip install openvino") from error
    finally:
        if hide:
            del sys.modules[_TOOLS]
    return openvino


def _reason(what: str, name: str, error: Exception) -> str:
    return f"OpenVINO cannot {what} {name}: {' '.join(str(error).split())[:300]}"
