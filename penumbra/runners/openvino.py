"""Runs a bundle on the CPU by OpenVINO, where it is installed: faster there than ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from penumbra.runners.base import Lane, Runner, RunnerError, Settings


class OpenVinoRunner(Runner):
    """The faster of the two CPU runners; an optional package."""

    name = "openvino"

    @classmethod
    def obstacle(cls, settings: Settings) -> str | None:
        """Only that it is not installed."""
        try:
            _module()
        except RunnerError as error:
            return str(error)
        return None

    @property
    def description(self) -> str:
        if not self.active:
            return self.name
        version = _module().__version__.partition("-")[0]
        return f"{self.name} {version} on CPU, {self.settings.threads or 'all'} threads"

    def _open(self) -> list[Lane]:
        ov = _module()
        hints: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",  # one image over all threads, not one thread per image
            # Else it takes bfloat16 where the processor has it, which is eight bits of mantissa.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        if self.settings.threads:
            hints["INFERENCE_NUM_THREADS"] = self.settings.threads
        try:
            core = ov.Core()
            model = core.read_model(str(self.bundle.model_file))
            # Only what was asked for: the rest of the graph is cut off.
            outputs = [model.output(output.name) for output in self.outputs]
            model = ov.Model(outputs, model.get_parameters(), self.bundle.name)
            request = core.compile_model(model, "CPU", hints).create_infer_request()
        except Exception as error:  # OpenVINO raises plain RuntimeError and its own kinds alike
            raise RunnerError(_reason("load", self.bundle.name, error)) from error
        return [RequestLane(request, self)]


class RequestLane:
    """One inference request, which keeps its buffers from image to image."""

    def __init__(self, request: Any, runner: OpenVinoRunner) -> None:
        self._request: Any = request
        self._bundle_name = runner.bundle.name
        self._wanted = [output.name for output in runner.outputs]

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        try:
            results = self._request.infer([image], share_inputs=True)  # the outputs are copied
        except Exception as error:
            raise RunnerError(_reason("run", self._bundle_name, error)) from error
        return {name: np.asarray(results[index]) for index, name in enumerate(self._wanted)}

    def close(self) -> None:
        self._request = None


def _module() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise RunnerError("openvino is not installed: pip install openvino") from error
    return openvino


def _reason(what: str, name: str, error: Exception) -> str:
    return f"OpenVINO cannot {what} {name}: {' '.join(str(error).split())[:300]}"
