"""A stand-in for the CUDA driver and for TensorRT's runtime, as strict as the real ones.

Nothing of what is put into a stream happens before the stream is synchronised, every copy has to
fit the memory it names, every call needs a current context, and a stream that is being captured
refuses what the driver refuses. Engines are ONNX files: executing one runs ONNX Runtime on what the
"GPU memory" holds, so that the results of the runner above it can be compared bit by bit.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime

from penumbra.vehicle.runners.cuda import SIGNATURES

DEVICE_NAME, CAPABILITY, CONTEXT = "Stand-in GPU", (8, 7), 0x1000
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE = 1, 2, 201, 400
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
WITHOUT_CONTEXT = ("cuInit", "cuDevice", "cuCtxSetCurrent", "cuGetErrorString")


@dataclass
class Stream:
    """Work that waits to be done, or to become a graph."""

    waiting: list[Callable[[], None]] = field(default_factory=list)
    captured: list[Callable[[], None]] | None = None
    spoilt: bool = False

    def put(self, work: Callable[[], None]) -> None:
        (self.waiting if self.captured is None else self.captured).append(work)


class CudaStandIn:
    """Looks like `ctypes.CDLL("libcuda.so.1")`, and can be told to fail."""

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.calls: list[str] = []
        self.failures: dict[str, int] = {}  # of a function: the error code that it returns
        self.before: dict[str, Callable[[], None]] = {}  # what happens before a function runs
        self.memory: dict[int, ctypes.Array] = {}
        self.pinned: dict[int, ctypes.Array] = {}
        self.streams: dict[int, Stream] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.retained = 0
        self._current = threading.local()
        self._handles = iter(range(0x2000, 1 << 30, 0x10))
        self._texts: list[ctypes.Array] = []
        for name, arguments in SIGNATURES.items():
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)
            setattr(self, name, prototype(self._guarded(name)))

    def count(self, name: str) -> int:
        return Counter(self.calls)[name]

    def leftovers(self) -> dict[str, int]:
        """What was taken and not given back."""
        held = {
            "memory": len(self.memory),
            "pinned": len(self.pinned),
            "streams": len(self.streams),
            "graphs": len(self.graphs),
            "contexts": self.retained,
        }
        return {name: number for name, number in held.items() if number}

    def stream(self, handle: int) -> Stream:
        return self.streams[handle]

    def array(self, address: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """The GPU memory at `address`; it has to be just as large as that."""
        memory = self.memory[address]
        assert len(memory) == int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(memory, dtype).reshape(shape)

    def _guarded(self, name: str) -> Callable[..., int]:
        function = getattr(self, f"_{name}")

        def call(*arguments: Any) -> int:
            if name != "cuGetErrorString":
                self.calls.append(name)
            self.before.get(name, lambda: None)()
            if name in self.failures:
                return self.failures[name]
            current = getattr(self._current, "context", None)
            if not name.startswith(WITHOUT_CONTEXT) and (current != CONTEXT or not self.retained):
                return INVALID_CONTEXT
            try:
                return function(*arguments) or 0
            except KeyError:
                return INVALID_HANDLE
            except MemoryError:
                return OUT_OF_MEMORY

        return call

    def _new(self, target: Any, kept: dict[int, Any], value: Any) -> None:
        handle = next(self._handles)
        kept[handle] = value
        target[0] = handle

    def _refuse_in_capture(self) -> bool:
        """Allocating while a stream is captured spoils the capture."""
        capturing = [stream for stream in self.streams.values() if stream.captured is not None]
        for stream in capturing:
            stream.spoilt = True
        return bool(capturing)

    # The driver's functions, by their names in cuda.h.

    def _cuInit(self, flags: int) -> int | None:
        return None if flags == 0 else INVALID_VALUE

    def _cuGetErrorString(self, code: int, text: Any) -> None:
        self._texts.append(ctypes.create_string_buffer(f"stand-in error {code}".encode()))
        text[0] = ctypes.cast(self._texts[-1], ctypes.c_char_p)

    def _cuDeviceGetCount(self, count: Any) -> None:
        count[0] = self.devices

    def _cuDeviceGet(self, device: Any, ordinal: int) -> int | None:
        device[0] = 40 + ordinal  # a handle need not equal the ordinal
        return None if 0 <= ordinal < self.devices else INVALID_VALUE

    def _cuDeviceGetName(self, text: Any, size: int, device: int) -> int | None:
        assert size > len(DEVICE_NAME)
        ctypes.memmove(text, DEVICE_NAME.encode(), len(DEVICE_NAME) + 1)
        return None if device >= 40 else INVALID_VALUE

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int | None:
        if attribute not in (75, 76) or device < 40:
            return INVALID_VALUE
        value[0] = CAPABILITY[attribute - 75]
        return None

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        self.retained += 1
        context[0] = CONTEXT

    def _cuDevicePrimaryCtxRelease_v2(self, device: int) -> int | None:
        self.retained -= 1
        return None if device >= 40 else INVALID_VALUE

    def _cuCtxSetCurrent(self, context: int) -> None:
        self._current.context = context

    def _cuMemAlloc_v2(self, address: Any, size: int) -> int | None:
        if size == 0:
            return INVALID_VALUE
        if self._refuse_in_capture():
            return CAPTURE_UNSUPPORTED
        memory = (ctypes.c_ubyte * size).from_buffer_copy(b"\xcd" * size)  # never zeros by luck
        address[0] = ctypes.addressof(memory)
        self.memory[address[0]] = memory
        return None

    def _cuMemFree_v2(self, address: int) -> None:
        del self.memory[address]

    def _cuMemHostAlloc(self, address: Any, size: int, flags: int) -> int | None:
        if size == 0 or flags != 0:
            return INVALID_VALUE
        if self._refuse_in_capture():
            return CAPTURE_UNSUPPORTED
        memory = (ctypes.c_ubyte * size).from_buffer_copy(b"\xcd" * size)
        address[0] = ctypes.addressof(memory)
        self.pinned[address[0]] = memory
        return None

    def _cuMemFreeHost(self, address: int) -> None:
        del self.pinned[address]

    def _cuMemcpyHtoDAsync_v2(self, target: int, source: int, size: int, stream: int) -> int | None:
        return self._copy(self.memory, target, self.pinned, source, size, stream)

    def _cuMemcpyDtoHAsync_v2(self, target: int, source: int, size: int, stream: int) -> int | None:
        return self._copy(self.pinned, target, self.memory, source, size, stream)

    def _copy(
        self, to: dict, target: int, of: dict, source: int, size: int, stream: int
    ) -> int | None:
        """Whole buffers only, and pinned ones only: anything else is a mistake of the runner."""
        if len(to[target]) != size or len(of[source]) != size:
            return INVALID_VALUE
        self.streams[stream].put(lambda: ctypes.memmove(target, source, size) and None)
        return None

    def _cuStreamCreate(self, stream: Any, flags: int) -> int | None:
        self._new(stream, self.streams, Stream())
        return None if flags == 1 else INVALID_VALUE

    def _cuStreamSynchronize(self, handle: int) -> int | None:
        stream = self.streams[handle]
        if stream.captured is not None:
            stream.spoilt = True
            return CAPTURE_UNSUPPORTED
        waiting, stream.waiting = stream.waiting, []
        for work in waiting:
            work()
        return None

    def _cuStreamDestroy_v2(self, stream: int) -> None:
        del self.streams[stream]

    def _cuStreamBeginCapture_v2(self, handle: int, mode: int) -> int | None:
        stream = self.streams[handle]
        if stream.captured is not None or mode != 1:
            return INVALID_VALUE
        stream.captured, stream.spoilt = [], False
        return None

    def _cuStreamEndCapture(self, handle: int, graph: Any) -> int | None:
        stream = self.streams[handle]
        captured, stream.captured = stream.captured, None
        if captured is None:
            return INVALID_VALUE
        if stream.spoilt:
            return CAPTURE_INVALIDATED
        self._new(graph, self.graphs, captured)
        return None

    def _cuGraphInstantiateWithFlags(self, executable: Any, graph: int, flags: int) -> None:
        self._new(executable, self.graphs, self.graphs[graph])

    def _cuGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def _cuGraphLaunch(self, executable: int, stream: int) -> None:
        for work in self.graphs[executable]:
            self.streams[stream].put(work)

    def _cuGraphExecDestroy(self, executable: int) -> None:
        del self.graphs[executable]


def tensorrt_stand_in(cuda: CudaStandIn, **behaviour: Any) -> ModuleType:
    """A module like `tensorrt`, as far as running an engine goes; engines are ONNX files.

    `behaviour`: `capturable` (False: the engine cannot be captured), `starts` (False: execution is
    refused), `contexts` (how many fit into memory).
    """
    module = ModuleType("tensorrt")
    module.__version__ = "10.3.0"
    types = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
    contexts = iter(range(behaviour.get("contexts", 1000)))

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    class Context:
        def __init__(self, session: onnxruntime.InferenceSession) -> None:
            self._session = session
            self._tensors = {t.name: t for t in [*session.get_inputs(), *session.get_outputs()]}
            self._addresses: dict[str, int] = {}
            self._executed = False

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return tuple(self._tensors[name].shape)

        def set_tensor_address(self, name: str, address: int) -> bool:
            self._addresses[name] = address
            return address in cuda.memory

        def execute_async_v3(self, handle: int) -> bool:
            if self._addresses.keys() != self._tensors.keys() or not behaviour.get("starts", True):
                return False
            stream = cuda.stream(handle)
            if stream.captured is not None and (
                not self._executed or not behaviour.get("capturable", True)
            ):
                stream.spoilt = True
                return False
            self._executed = True
            stream.put(self._execute)
            return True

        def _execute(self) -> None:
            arrays = {name: self._array(name) for name in self._tensors}
            feed = {t.name: arrays[t.name] for t in self._session.get_inputs()}
            names = [t.name for t in self._session.get_outputs()]
            for name, value in zip(names, self._session.run(names, feed), strict=True):
                arrays[name][...] = value

        def _array(self, name: str) -> np.ndarray:
            tensor = self._tensors[name]
            dtype = np.dtype(types[tensor.type])
            return cuda.array(self._addresses[name], dtype, tuple(tensor.shape))

    class Engine:
        def __init__(self, data: bytes) -> None:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(data, options)
            self._tensors = [*self._session.get_inputs(), *self._session.get_outputs()]
            self.num_io_tensors = len(self._tensors)

        def get_tensor_name(self, index: int) -> str:
            return self._tensors[index].name

        def get_tensor_dtype(self, name: str) -> str:
            return next(tensor.type for tensor in self._tensors if tensor.name == name)

        def create_execution_context(self) -> Context | None:
            return Context(self._session) if next(contexts, None) is not None else None

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
            try:
                return Engine(data)
            except Exception as error:
                self._logger.log(ILogger.ERROR, f"cannot deserialise\n{type(error).__name__}")
                return None

    module.ILogger, module.Runtime, module.nptype = ILogger, Runtime, types.__getitem__
    return module
