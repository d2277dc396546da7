"""Runs a bundle on an NVIDIA GPU, by TensorRT or TensorRT for RTX.

Each lane has a CUDA stream, pinned buffers on the host, buffers on the GPU and an execution context
of its own over the one engine. Upload, network and download go into the stream one after the other,
captured once as a CUDA graph and then launched with a single call. While one lane computes, another
copies: with two lanes the GPU need not wait for an image.
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
    """TensorRT 10 or 11: a vehicle's or a Jetson's own."""

    name = compiler.TENSORRT

    @classmethod
    def require(cls, settings: RunnerSettings) -> None:
        """A driver, a GPU, and TensorRT."""
        Cuda(settings.device)
        compiler.load_backend(cls.name)

    @property
    def description(self) -> str:
        """Version, GPU and lanes, once active."""
        return self._about if self.active else self.name

    def missing_engine(self) -> engine.Engine | None:
        """The engine for this GPU, unless it has been built."""
        needed = engine.find(self.bundle, self.name, self.settings)
        return None if needed.built else needed

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """The size that the engine is built for."""
        return self.settings.image_size or super().image_size

    def _open(self) -> list[Lane]:
        """Build the engine if it is not there, load it, make the lanes."""
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
    """TensorRT for RTX: the same for a desktop's GPU; engines can be built on any machine."""

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
                    "TensorRT cannot make an execution context: free GPU memory, or use one lane"
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
        """Upload, network, download; the outputs are copies."""
        self._cuda.make_current()  # in this thread, whichever it is
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
        """Memory for one input or output: always on the GPU, on the host where it is copied."""
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
            raise RunnerError(f"TensorRT does not take the memory for {name}: rebuild the engine")

    def _enqueue(self) -> None:
        image = self._image_name
        self._cuda.upload(self._addresses[image], self._buffers[image], self._stream)
        if not self._context.execute_async_v3(self._stream.value):
            raise RunnerError("TensorRT cannot start the engine: see its message in the log")
        for name in self._wanted:
            self._cuda.download(self._buffers[name], self._addresses[name], self._stream)

    def _capture(self) -> Any:
        """The work of `_enqueue` as a CUDA graph, or None where that is not possible."""
        self._buffers[self._image_name].fill(0)
        self._enqueue()  # the first time sets things up that cannot be captured
        self._cuda.synchronize(self._stream)
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._stream.value):
            log.info("TensorRT says that this engine cannot be captured: no CUDA graph")
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
    """The engine on the GPU."""
    logger = compiler.make_logger(trt)
    loaded = trt.Runtime(logger).deserialize_cuda_engine(needed.read())
    if loaded is None:
        raise RunnerError(
            f"cannot load the engine {needed.path} ({logger.last_error or 'no reason given'}): "
            f"run `penumbra build {needed.bundle.path} --backend {needed.key.backend} --force`"
        )
    return loaded


def _release(action: Callable[[], Any]) -> None:
    """After a sticky error even giving back fails: that is noted, and must not hide the error."""
    try:
        action()
    except RunnerError as error:
        log.warning("while releasing the GPU: %s", error)
