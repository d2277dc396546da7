"""Compiles a bundle's graph to an engine, with TensorRT 10 and 11 or TensorRT for RTX.

The graph states all precisions: the network is strongly typed, and no type is chosen here.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from penumbra.bundle import Bundle, OutputSpec
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically
from penumbra.vehicle.runners.settings import Progress, RunnerError

log = logging.getLogger(__name__)

TENSORRT, TENSORRT_RTX = "tensorrt", "tensorrt-rtx"
# Without its meta package, TensorRT for RTX is importable only by the name of its bindings.
MODULES = {TENSORRT: ("tensorrt",), TENSORRT_RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}
INSTALL = {
    TENSORRT: "apt install python3-libnvinfer (Jetson), or pip install tensorrt",
    TENSORRT_RTX: "pip install tensorrt-rtx-cu12-bindings tensorrt-rtx-cu12-libs",
}


def load_backend(backend: str) -> ModuleType:
    """The Python module of TensorRT or TensorRT for RTX."""
    if backend not in MODULES:
        raise PenumbraError(f"unknown backend {backend!r}: choose from {', '.join(MODULES)}")
    for name in MODULES[backend]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as error:  # installed, but a library it needs is missing
            reason = " ".join(str(error).split())
            raise RunnerError(f"{backend} cannot be loaded ({reason}): reinstall it") from error
    raise RunnerError(f"{backend} is not installed: {INSTALL[backend]}")


def build(
    bundle: Bundle,
    backend: str,
    size: tuple[int, int],
    capability: str,
    workspace_mb: int | None = None,
    timing_cache: Path | None = None,
    progress: Progress | None = None,
) -> memoryview:
    """Build the serialised engine for images of `size` (height, width)."""
    trt = load_backend(backend)
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    network = _parse(trt, builder, bundle, size, logger)
    config = builder.create_builder_config()
    if workspace_mb is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_mb << 20)
    if bundle.precision == "fp32":
        config.clear_flag(trt.BuilderFlag.TF32)  # TF32 rounds to ten bits; fp32 means fp32
    cache = None
    if backend == TENSORRT_RTX:
        config.num_compute_capabilities = 1
        config.set_compute_capability(_compute_capability(trt, capability), 0)
        if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
            # Otherwise the engine allocates at run time and cannot be captured in a CUDA graph.
            config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    elif timing_cache is not None:  # TensorRT for RTX does not time kernels
        cache = _load_timing_cache(config, timing_cache)
    monitor = _make_monitor(trt, progress)
    config.progress_monitor = monitor
    serialized = builder.build_serialized_network(network, config)
    if monitor.interruption is not None:
        raise monitor.interruption
    if serialized is None:
        raise PenumbraError(
            f"{backend} {trt.__version__} cannot build {bundle.name}: "
            f"{logger.last_error or 'no reason given'}"
        )
    if progress is not None:
        progress(1.0, "done")
    if cache is not None and timing_cache is not None:
        write_atomically(timing_cache, memoryview(cache.serialize()))
    return memoryview(serialized)


def make_logger(trt: ModuleType) -> Any:
    """Create a TensorRT logger that forwards to `logging` and keeps the last error."""

    class Logger(trt.ILogger):  # type: ignore[name-defined] # a module imported at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last_error: str | None = None

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.last_error = " ".join(message.split())  # raised by the caller
            level = logging.WARNING if severity == trt.ILogger.WARNING else logging.DEBUG
            log.log(level, "%s", message)

    return Logger()


def _parse(
    trt: ModuleType, builder: Any, bundle: Bundle, size: tuple[int, int], logger: Any
) -> Any:
    """Parse the bundle's graph into a TensorRT network for images of `size`."""
    # TensorRT 10 also supports weak typing and needs the flag; 11 ignores it.
    strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(strongly_typed)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(bundle.read_model()):
        error = parser.get_error(0)
        raise PenumbraError(
            f"{trt.__name__} {trt.__version__} rejects the graph of {bundle.name}: "
            f"{error.node_operator()} {error.node_name() or ''} (node {error.node()}): "
            f"{' '.join(error.desc().split())}"
        )
    image = network.get_input(0)
    image.shape = (*size, 3)
    _check_outputs(trt, network, bundle.outputs, size)
    return network


def _check_outputs(
    trt: ModuleType, network: Any, outputs: Sequence[OutputSpec], size: tuple[int, int]
) -> None:
    """Reject a graph whose outputs differ from the manifest."""
    found = {
        tensor.name: (trt.nptype(tensor.dtype).__name__, tuple(tensor.shape))
        for tensor in map(network.get_output, range(network.num_outputs))
    }
    for output in outputs:
        # None in the manifest is an extent of the image: rows, then columns.
        shape = tuple(
            of_image if extent is None else extent
            for extent, of_image in zip(output.shape, size, strict=False)
        )
        if found.get(output.name) != (output.dtype, shape):
            raise PenumbraError(
                f"output {output.name} is {output.dtype} {shape} in the manifest, but "
                f"{found.get(output.name, 'missing')} in the graph: export the model again"
            )


def _compute_capability(trt: ModuleType, capability: str) -> Any:
    known = trt.ComputeCapability.__members__
    name = f"SM{capability.replace('.', '')}"
    if name not in known:
        names = [f"{n[2:-1]}.{n[-1]}" for n in known if n.startswith("SM")]
        raise PenumbraError(
            f"tensorrt-rtx {trt.__version__} does not support compute capability "
            f"{capability}: choose from {', '.join(names)}"
        )
    return known[name]


def _load_timing_cache(config: Any, file: Path) -> Any:
    """Load the timings of earlier builds; a file that TensorRT rejects counts as empty."""
    known = file.read_bytes() if file.is_file() else b""
    cache = config.create_timing_cache(known) or config.create_timing_cache(b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _make_monitor(trt: ModuleType, progress: Progress | None) -> Any:
    """Create a progress monitor; an exception raised by `progress` cancels the build."""

    class ProgressMonitor(trt.IProgressMonitor):  # type: ignore[name-defined] # as above
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.interruption: BaseException | None = None
            self._phases: list[Phase] = []  # open phases, outermost first

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._phases.append(Phase(phase_name, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            """False cancels the build. Exceptions must not reach C++, so they are stored."""
            try:
                for phase in self._phases:
                    if phase.name == phase_name:
                        phase.complete(step)
                if progress is not None:
                    progress(fraction(self._phases), phase_name)
            except BaseException as error:  # including KeyboardInterrupt
                self.interruption = error
            return self.interruption is None

        def phase_finish(self, phase_name: str) -> None:
            self._phases = [phase for phase in self._phases if phase.name != phase_name]
            if self._phases:
                self._phases[-1].parts += 1

    return ProgressMonitor()


class Phase:
    """A phase of a build: its steps, those done, and the inner phases of the current one."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.done = name, max(1, steps), 0
        self.parts = 0  # inner phases finished within the current step

    def complete(self, step: int) -> None:
        """Record that step number `step` is done."""
        self.done, self.parts = step + 1, 0


def fraction(phases: Sequence[Phase]) -> float:
    """The completed fraction, computed from the innermost open phase to the outermost.

    The number of inner phases of a step is unknown: each counts as half of the remainder.
    """
    inner = 0.0
    for phase in reversed(phases):
        within_step = 1 - (1 - inner / 2) / 2**phase.parts
        inner = min(1.0, (phase.done + within_step) / phase.steps)
    return inner
