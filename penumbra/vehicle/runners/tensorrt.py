"""Runs a bundle on an NVIDIA GPU, with TensorRT or TensorRT for RTX.

Each lane has its own CUDA stream, pinned host buffers, GPU buffers and execution context of the
shared engine. Upload, network and download are captured once as a CUDA graph and then launched with
a single call. One lane copies while another computes, so that the GPU does not idle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import numpy as np

from penumbra.vehicle.runners import compiler, engine
from penumbra.vehicle.runners.base import Lane, Runner
from penumbra.vehicle.runners.cuda import Cuda
from penumbra.vehicle.runners.settings import RunnerError, RunnerSettings

log = logging.getLogger(__name__)


class TensorRTRunner(Runner):
    """TensorRT 10 or 11, for vehicles and Jetson."""

    name = compiler.TENSORRT

    @classmethod
    def require(cls, settings: RunnerSettings) -> None:
        """Requires a driver, a GPU and TensorRT."""
        Cuda(settings.device)
        compiler.load_backend(cls.name)

    @property
    def description(self) -> str:
        """Version, GPU and lanes, once active."""
        return self._about if self.active else self.name

    def missing_engine(self) -> engine.Engine | None:
        """The engine for this GPU, if it is not built yet."""
        needed = engine.find(self.bundle, self.name, self.settings)
        return None if needed.built else needed

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """The size of the engine."""
        return self.settings.image_size or super().image_size

    def _open(self) -> list[Lane]:
        """Build the engine if it is missing, load it, create the lanes."""
        trt = compiler.load_backend(self.name)
        cuda = Cuda(self.settings.device)
        with ExitStack() as unfinished:
            unfinished.callback(cuda.close)
            cuda.open()
            needed = engine.find(self.bundle, self.name, self.settings, cuda=cuda)
            needed.build(self.settings.progress)
            loaded = _load(trt, needed)
            names = [output.name for output in self.outputs]
            lanes: list[GpuLane] = []
            for _ in range(max(1, self.settings.lanes)):
                lane = GpuLane(trt, cuda, loaded, self.bundle.input.name, names)
                unfinished.callback(lane.close)
                lanes.append(lane)
            unfinished.pop_all()
        self._cuda = cuda
        graph = "no CUDA graph" if lanes[0].graph is None else "CUDA graph"
        self._about = f"{self.name} {trt.__version__} on {cuda.name}, {len(lanes)} lanes, {graph}"
        return list(lanes)

    def _close(self) -> None:
        _release(self._cuda.close)


class TensorRTRTXRunner(TensorRTRunner):
    """TensorRT for RTX, for desktop GPUs; engines can be built on any machine."""

    name = compiler.TENSORRT_RTX


class GpuLane:
    """A stream, its buffers and its execution context: one image at a time."""

    def __init__(
        self, trt: ModuleType, cuda: Cuda, loaded: Any, image_name: str, wanted: Sequence[str]
    ) -> None:
        self._cuda, self._image_name, self._wanted = cuda, image_name, tuple(wanted)
        self._addresses: dict[str, int] = {}  # on the GPU
        self._buffers: dict[str, np.ndarray] = {}  # pinned, on the host
        with ExitStack() as unfinished:
            self._context = loaded.create_execution_context()
            if self._context is None:
                raise RunnerError(
                    "TensorRT cannot create an execution context: free GPU memory, or use one lane"
                )
            self._stream = cuda.create_stream()
            unfinished.callback(cuda.destroy_stream, self._stream)
            for index in range(loaded.num_io_tensors):
                self._bind(trt, loaded, loaded.get_tensor_name(index), unfinished)
            self.graph = self._capture()
            if self.graph is not None:
                unfinished.callback(cuda.destroy_graph, self.graph)
            self._resources = unfinished.pop_all()

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """Upload, run the network, download; the outputs are copies."""
        self._cuda.make_current()  # in the calling thread
        np.copyto(self._buffers[self._image_name], image)
        if self.graph is None:
            self._enqueue()
        else:
            self._cuda.launch(self.graph, self._stream)
        self._cuda.synchronize(self._stream)
        return {name: self._buffers[name].copy() for name in self._wanted}

    def close(self) -> None:
        """Release stream, buffers and context."""
        _release(self._cuda.make_current)
        _release(self._resources.close)
        self._context = None

    def _bind(self, trt: ModuleType, loaded: Any, name: str, unfinished: ExitStack) -> None:
        """Allocate one input or output on the GPU, and on the host if it is copied."""
        shape = tuple(self._context.get_tensor_shape(name))
        dtype = np.dtype(trt.nptype(loaded.get_tensor_dtype(name)))
        address = self._cuda.allocate(int(np.prod(shape)) * dtype.itemsize)
        unfinished.callback(self._cuda.free, address)
        self._addresses[name] = address
        if name == self._image_name or name in self._wanted:
            buffer = self._cuda.allocate_pinned(shape, dtype)
            unfinished.callback(self._cuda.free_pinned, buffer)
            self._buffers[name] = buffer
        if not self._context.set_tensor_address(name, address):
            raise RunnerError(f"TensorRT rejects the memory for {name}: rebuild the engine")

    def _enqueue(self) -> None:
        image = self._image_name
        self._cuda.upload(self._addresses[image], self._buffers[image], self._stream)
        if not self._context.execute_async_v3(self._stream.value):
            raise RunnerError("TensorRT cannot start the engine: see its message in the log")
        for name in self._wanted:
            self._cuda.download(self._buffers[name], self._addresses[name], self._stream)

    def _capture(self) -> Any:
        """Capture `_enqueue` as a CUDA graph; None if that is not possible."""
        self._buffers[self._image_name].fill(0)
        self._enqueue()  # the first run performs set-up that cannot be captured
        self._cuda.synchronize(self._stream)
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._stream.value):
            log.info("this engine cannot be captured: no CUDA graph")
            return None
        try:
            self._cuda.begin_capture(self._stream)
            try:
                self._enqueue()
            except RunnerError:
                _release(lambda: self._cuda.end_capture(self._stream))  # to leave capture mode
                raise
            return self._cuda.end_capture(self._stream)
        except RunnerError as error:
            log.info("no CUDA graph: %s", error)
            return None


def _load(trt: ModuleType, needed: engine.Engine) -> Any:
    """Load the engine onto the GPU."""
    logger = compiler.make_logger(trt)
    loaded = trt.Runtime(logger).deserialize_cuda_engine(needed.read())
    if loaded is None:
        raise RunnerError(
            f"cannot load the engine {needed.path} ({logger.last_error or 'no reason given'}): "
            f"run `penumbra build {needed.bundle.path} --backend {needed.key.backend} --force`"
        )
    return loaded


def _release(action: Callable[[], Any]) -> None:
    """Run `action`; log its failure, so that it does not hide the original error.

    After a sticky CUDA error, releasing fails too.
    """
    try:
        action()
    except RunnerError as error:
        log.warning("while releasing the GPU: %s", error)
