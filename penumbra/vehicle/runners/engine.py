"""TensorRT engines of a bundle, and the cache of built engines.

An engine is specific to a model, a TensorRT version, a GPU architecture and an image size. All of
these are in its file name, so that a stale engine is never found.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, write_atomically
from penumbra.vehicle.runners import compiler
from penumbra.vehicle.runners.cuda import Cuda
from penumbra.vehicle.runners.settings import Progress, RunnerSettings

log = logging.getLogger(__name__)

RECIPE = 1  # increment when compiler.py builds another engine from the same model


@dataclass(frozen=True)
class Key:
    """Everything an engine depends on."""

    model: str  # SHA-256 of model.onnx
    precision: str
    height: int
    width: int
    backend: str
    version: str  # of TensorRT, which rejects engines of other versions
    capability: str  # compute capability of the GPU, such as 8.9
    gpu: str | None  # name of the GPU; None if the engine serves the whole architecture
    machine: str = platform.machine()
    recipe: int = RECIPE

    def file_name(self, bundle_name: str) -> str:
        """A human-readable file name; the digest at the end makes it unique."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        parts = [
            re.sub(r"[^A-Za-z0-9._-]+", "-", bundle_name),
            f"{self.width}x{self.height}",
            self.precision,
            f"{self.backend}-{self.version}",
            f"sm{self.capability.replace('.', '')}",
            digest[:16],
        ]
        return f"{'-'.join(parts)}.engine"


@dataclass(frozen=True)
class Engine:
    """The engine of a bundle: its key and its location in the cache; possibly not built yet."""

    bundle: Bundle
    key: Key
    folder: Path
    workspace_mb: int | None = None  # memory limit of the build; not part of the key

    @property
    def path(self) -> Path:
        """The file in the cache."""
        return self.folder / self.key.file_name(self.bundle.name)

    @property
    def built(self) -> bool:
        """Whether the file exists."""
        return self.path.is_file()

    def build(self, progress: Progress | None = None, force: bool = False) -> bool:
        """Build the engine unless it exists; True if it was built now.

        Only one process builds at a time, since concurrent builds would distort each other's
        timings; others wait for its result. The file is written atomically: an interrupted build
        leaves nothing.
        """
        if self.built and not force:
            return False
        with _locked(self.folder):
            if self.built and not force:
                return False
            data = compiler.build(
                self.bundle,
                self.key.backend,
                (self.key.height, self.key.width),
                self.key.capability,
                self.workspace_mb,
                self.folder / self._timing_cache_name(),
                progress,
            )
            write_atomically(self.path, data)
        return True

    def read(self) -> bytes:
        """The serialised engine."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise PenumbraError(
                f"cannot read the engine {self.path}: {error.strerror}; run "
                f"`penumbra build {self.bundle.path} --backend {self.key.backend}`"
            ) from error

    def _timing_cache_name(self) -> str:
        """File of TensorRT's timings on this GPU, shared by all models."""
        gpu = re.sub(r"[^A-Za-z0-9]+", "-", self.key.gpu or f"sm{self.key.capability}")
        return f"{self.key.backend}-{self.key.version}-{gpu}.timing"


def find(
    bundle: Bundle,
    backend: str,
    settings: RunnerSettings | None = None,
    capability: str | None = None,
    cuda: Cuda | None = None,
) -> Engine:
    """The engine of `bundle` with `backend`, for the GPU of this machine or for `capability`.

    It may not be built yet: see `Engine.built` and `Engine.build`.
    """
    settings = settings or RunnerSettings()
    module = compiler.load_backend(backend)
    gpu = None
    if backend == compiler.TENSORRT or capability is None:
        cuda = cuda or Cuda(settings.device)
        if capability not in (None, cuda.capability):
            raise PenumbraError(
                f"tensorrt builds only for the GPU of this machine (compute capability "
                f"{cuda.capability}), not for {capability}: build on the vehicle, or use "
                "--backend tensorrt-rtx"
            )
        capability = cuda.capability
        gpu = cuda.name if backend == compiler.TENSORRT else None
    height, width = _size(bundle, settings)
    key = Key(
        model=bundle.sha256,
        precision=bundle.precision,
        height=height,
        width=width,
        backend=backend,
        version=module.__version__,
        capability=capability,
        gpu=gpu,
    )
    folder = settings.engine_cache_dir or cache_folder() / "engines"
    return Engine(bundle, key, folder, settings.workspace_mb)


def _size(bundle: Bundle, settings: RunnerSettings) -> tuple[int, int]:
    """The height and width of the engine."""
    fixed = (bundle.input.height, bundle.input.width)
    height, width = settings.image_size or fixed
    if height is None or width is None:
        raise PenumbraError(
            f"{bundle.name} accepts any image size, but an engine needs one: set it "
            "(--size 480x360, or the parameter image_size)"
        )
    for name, given, of_bundle in zip(("height", "width"), (height, width), fixed, strict=True):
        if of_bundle is not None and given != of_bundle:
            raise PenumbraError(
                f"requested image {name} is {given}, but {bundle.name} expects {of_bundle}: omit "
                "the size, or export the model for it"
            )
    if height < 1 or width < 1:
        raise PenumbraError(f"invalid image size {width}x{height}: give width x height")
    return height, width


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other builders; the lock is released when the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PenumbraError(
            f"cannot use {folder} as the engine cache: {error.strerror}; set engine_cache_dir or "
            "PENUMBRA_CACHE"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another process is building an engine in %s: waiting for it", folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Only the holder of the lock writes here: partial files are from a killed builder.
        for leftover in [*folder.glob(".*.engine.*"), *folder.glob(".*.timing.*")]:
            leftover.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)
