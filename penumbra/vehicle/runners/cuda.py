"""The subset of the CUDA driver API that a runner needs, through ctypes.

Not cuda-python: its release must match the driver's (JetPack 6 is CUDA 12.6, a desktop may be 13),
and it is one more dependency on the vehicle. `libcuda.so.1` comes with every driver, and its
symbols are versioned and stable. It uses the same primary context as the CUDA runtime inside
TensorRT.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

import numpy as np

from penumbra.vehicle.runners.settings import RunnerError

LIBRARY = "libcuda.so.1"

# From cuda.h: CUdevice is an int, CUdeviceptr an unsigned long long, every handle a pointer. Names
# are those that the header's macros expand to (`cuMemAlloc` means `cuMemAlloc_v2`).
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (POINTER(c_char), c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_ulonglong), c_size_t),
    "cuMemFree_v2": (c_ulonglong,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_ulonglong, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_ulonglong, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
}

OUT_OF_MEMORY, NO_DEVICE = 2, 100
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile


class CudaError(RunnerError):
    """A driver call failed; `code` is its CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def driver_library() -> Any:
    """Load the driver's library; RunnerError if there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise RunnerError(
            f"no CUDA driver on this machine ({LIBRARY} cannot be loaded): install NVIDIA's "
            "driver, or use the runner onnxruntime"
        ) from error


class Cuda:
    """One GPU: its memory, streams and graphs. Every failed call raises RunnerError.

    The context must be current in the calling thread: see `make_current`.
    """

    def __init__(self, device: int = 0, library: Any = None) -> None:
        self._library = driver_library() if library is None else library
        for name, arguments in SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise RunnerError(
                    f"the CUDA driver is too old (it has no {name}): update NVIDIA's driver to "
                    "CUDA 11.4 or newer, or use the runner onnxruntime"
                ) from error
            function.argtypes, function.restype = arguments, c_int
        self._start(device)
        self._device = self._integer("cuDeviceGet", device)
        name_buffer = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name_buffer, len(name_buffer), self._device)
        self.name = name_buffer.value.decode(errors="replace")
        self.capability = ".".join(
            str(self._integer("cuDeviceGetAttribute", attribute, self._device))
            for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR)
        )
        self._context: c_void_p | None = None

    def open(self) -> None:
        """Retain the context of the GPU and make it current in this thread."""
        self._context = self._handle("cuDevicePrimaryCtxRetain", self._device)
        self.make_current()

    def close(self) -> None:
        """Release the context; allocations must be freed before."""
        if self._context is not None:
            self._context = None
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def make_current(self) -> None:
        """Direct this thread's calls, including TensorRT's, to this GPU."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes on the GPU and return their address."""
        address = c_ulonglong()
        self._call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Free memory returned by `allocate`."""
        self._call("cuMemFree_v2", address)

    def allocate_pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Allocate an array in pinned host memory; release it with `free_pinned`."""
        size = int(np.prod(shape)) * dtype.itemsize
        address = c_void_p()
        self._call("cuMemHostAlloc", byref(address), size, 0)
        memory = (ctypes.c_ubyte * size).from_address(address.value or 0)
        return np.frombuffer(memoryview(memory), dtype).reshape(shape)

    def free_pinned(self, array: np.ndarray) -> None:
        """Free an array returned by `allocate_pinned`."""
        self._call("cuMemFreeHost", array.ctypes.data)

    def upload(self, address: int, array: np.ndarray, stream: c_void_p) -> None:
        """Start copying a pinned array to the GPU."""
        self._call("cuMemcpyHtoDAsync_v2", address, array.ctypes.data, array.nbytes, stream)

    def download(self, array: np.ndarray, address: int, stream: c_void_p) -> None:
        """Start copying from the GPU into a pinned array."""
        self._call("cuMemcpyDtoHAsync_v2", array.ctypes.data, address, array.nbytes, stream)

    def create_stream(self) -> c_void_p:
        """Create a stream that does not synchronise with the default stream."""
        return self._handle("cuStreamCreate", NON_BLOCKING)

    def synchronize(self, stream: c_void_p) -> None:
        """Wait for all work in `stream`; raises its errors."""
        self._call("cuStreamSynchronize", stream)

    def destroy_stream(self, stream: c_void_p) -> None:
        """Release a stream."""
        self._call("cuStreamDestroy_v2", stream)

    def begin_capture(self, stream: c_void_p) -> None:
        """Start to record the work of `stream` instead of executing it."""
        self._call("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)

    def end_capture(self, stream: c_void_p) -> c_void_p:
        """Return the recorded work as an executable graph."""
        graph = self._handle("cuStreamEndCapture", before=(stream,))
        try:
            return self._handle("cuGraphInstantiateWithFlags", graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)

    def launch(self, graph: c_void_p, stream: c_void_p) -> None:
        """Launch a captured graph."""
        self._call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: c_void_p) -> None:
        """Release a graph."""
        self._call("cuGraphExecDestroy", graph)

    def _start(self, device: int) -> None:
        try:
            self._call("cuInit", 0)
            count = self._integer("cuDeviceGetCount")
        except CudaError as error:
            if error.code != NO_DEVICE:
                raise
            count = 0
        if count == 0:
            raise RunnerError(
                "the CUDA driver finds no GPU: check `nvidia-smi`, or use the runner onnxruntime"
            )
        if not 0 <= device < count:
            raise RunnerError(f"no GPU number {device}: choose from 0 to {count - 1}")

    def _integer(self, name: str, *arguments: Any) -> int:
        value = c_int()
        self._call(name, byref(value), *arguments)
        return value.value

    def _handle(self, name: str, *arguments: Any, before: tuple[Any, ...] = ()) -> c_void_p:
        handle = c_void_p()
        self._call(name, *before, byref(handle), *arguments)
        return handle

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code == 0:
            return
        text = c_char_p()
        self._library.cuGetErrorString(code, byref(text))
        what = (text.value or b"unknown error").decode(errors="replace")
        advice = (
            "free GPU memory, or use fewer lanes or a smaller image"
            if code == OUT_OF_MEMORY
            else "activate the runner again; if that fails, restart the process"
        )
        raise CudaError(f"CUDA error {code} in {name}: {what}; {advice}", code)
