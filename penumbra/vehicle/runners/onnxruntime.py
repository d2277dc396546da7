"""Runs a bundle with ONNX Runtime, on the CPU or on CUDA if its package supports it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from penumbra.vehicle.runners.base import Lane, Runner
from penumbra.vehicle.runners.pruning import prune
from penumbra.vehicle.runners.settings import RunnerError, RunnerSettings

log = logging.getLogger(__name__)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class OnnxRuntimeRunner(Runner):
    """The runner that works on every machine."""

    name = "onnxruntime"

    @classmethod
    def require(cls, settings: RunnerSettings) -> None:
        """Requires the package onnxruntime."""
        _module()

    @property
    def description(self) -> str:
        """Version, device and threads, once active."""
        if not self.active:
            return self.name
        threads = self.settings.threads
        where = f"CPU, {threads or 'all'} threads" if self._provider == CPU else "CUDA"
        return f"{self.name} {_module().__version__} on {where}"

    def _open(self) -> list[Lane]:
        ort = _module()
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.settings.threads
        options.log_severity_level = 3  # errors; its warnings concern internal choices
        # Spinning threads take cores from the rest of the vehicle: on a busy machine, two threads
        # were a third faster without spinning; with one thread there was no difference.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = self._providers(ort.get_available_providers())
        try:
            session = ort.InferenceSession(self._model(), options, providers=providers)
        except Exception as error:  # its exceptions have no other common base
            raise RunnerError(_reason("load", self.bundle.name, error)) from error
        self._provider = session.get_providers()[0]
        if len(providers) > 1 and self._provider == CPU:
            log.warning("ONNX Runtime's CUDA provider does not start: running on the CPU")
        return [SessionLane(session, self)]

    def _model(self) -> bytes:
        """The bundle's graph, without nodes that only other outputs need."""
        model = self.bundle.read_model()
        if len(self.outputs) == len(self.bundle.outputs):
            return model
        return prune(model, [output.name for output in self.outputs])

    def _providers(self, available: list[str]) -> list[Any]:
        if CUDA not in available:
            return [CPU]
        exact = "0" if self.bundle.precision == "fp32" else "1"  # TF32 rounds to ten bits
        return [(CUDA, {"device_id": self.settings.device, "use_tf32": exact}), CPU]


class SessionLane:
    """One session; ONNX Runtime distributes a single image over its threads."""

    def __init__(self, session: Any, runner: OnnxRuntimeRunner) -> None:
        self._session: Any = session
        self._bundle_name = runner.bundle.name
        self._image_name = runner.bundle.input.name
        self._wanted = [output.name for output in runner.outputs]

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for `image`."""
        try:
            arrays = self._session.run(self._wanted, {self._image_name: image})
        except Exception as error:  # its exceptions have no other common base
            raise RunnerError(_reason("run", self._bundle_name, error)) from error
        return dict(zip(self._wanted, map(np.asarray, arrays), strict=True))

    def close(self) -> None:
        """Release the session."""
        self._session = None


def _module() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise RunnerError("onnxruntime is not installed: pip install onnxruntime") from error
    return onnxruntime


def _reason(what: str, name: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"ONNX Runtime cannot {what} {name}: {text[:300]}"
