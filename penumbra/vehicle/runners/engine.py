"""Which TensorRT engine a bundle needs here, and the cache of those that have been built.

An engine fits one model, one TensorRT, one GPU architecture, one image size. All of that is in its
file's name, so an engine that does not fit is not found rather than refused: there is no stale one.
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

RECIPE = 1  # count up when compiler.py builds differently from the same model


@dataclass(frozen=True)
class Key:
    """Everything that an engine depends on."""

    model: str  # SHA-256 of model.onnx
    precision: str
    height: int
    width: int
    backend: str
    version: str  # of TensorRT: it refuses an engine of any other
    capability: str  # of the GPU, such as 8.9
    gpu: str | None  # its name; None where an engine serves the whole architecture
    machine: str = platform.machine()
    recipe: int = RECIPE

    def file_name(self, bundle_name: str) -> str:
        """For people as far as it goes; the digest at the end makes it unmistakable."""
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
    """An engine that a bundle needs: what it depends on, and where it is or will be."""

    bundle: Bundle
    key: Key
    folder: Path
    workspace_mb: int | None = None  # a limit on memory, no part of what the engine is

    @property
    def path(self) -> Path:
        """Its file in the cache."""
        return self.folder / self.key.file_name(self.bundle.name)

    @property
    def built(self) -> bool:
        """Whether the file is there."""
        return self.path.is_file()

    def build(self, progress: Progress | None = None, force: bool = False) -> bool:
        """Build it unless it is there; True if it was built now.

        One process builds at a time, others wait and take its result: two builds would disturb each
        other's measurements. The file appears whole, when all is done; a build that is cut off
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
        """The engine as it was built."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise PenumbraError(
                f"cannot read the engine {self.path}: {error.strerror}; run "
                f"`penumbra build {self.bundle.path} --backend {self.key.backend}`"
            ) from error

    def _timing_cache_name(self) -> str:
        """What TensorRT measured on this GPU, which serves every model."""
        gpu = re.sub(r"[^A-Za-z0-9]+", "-", self.key.gpu or f"sm{self.key.capability}")
        return f"{self.key.backend}-{self.key.version}-{gpu}.timing"


def find(
    bundle: Bundle,
    backend: str,
    settings: RunnerSettings | None = None,
    capability: str | None = None,
    cuda: Cuda | None = None,
) -> Engine:
    """The engine that `bundle` needs with `backend`, for this machine's GPU or for `capability`.

    It may not have been built yet: see `Engine.built` and `Engine.build`.
    """
    settings = settings or RunnerSettings()
    module = compiler.load_backend(backend)
    gpu = None
    if backend == compiler.TENSORRT or capability is None:
        cuda = cuda or Cuda(settings.device)
        if capability not in (None, cuda.capability):
            raise PenumbraError(
                f"tensorrt builds for the GPU of this machine (compute capability "
                f"{cuda.capability}) and not for {capability}: build on the vehicle, or use "
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
    """The one height and width that the engine is for."""
    fixed = (bundle.input.height, bundle.input.width)
    height, width = settings.image_size or fixed
    if height is None or width is None:
        raise PenumbraError(
            f"{bundle.name} takes images of any size and an engine takes one: say which "
            "(--size 480x360, or the parameter image_size)"
        )
    for name, given, of_bundle in zip(("height", "width"), (height, width), fixed, strict=True):
        if of_bundle is not None and given != of_bundle:
            raise PenumbraError(
                f"an engine for images of {name} {given} was asked for and {bundle.name} takes "
                f"{of_bundle}: leave the size out, or export the model for it"
            )
    if height < 1 or width < 1:
        raise PenumbraError(f"{width}x{height} is no size of an image: give width x height")
    return height, width


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other builders; the lock ends with the process, however it ends."""
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
        # Only the holder of the lock writes here, so a half-written file is a killed builder's.
        for leftover in [*folder.glob(".*.engine.*"), *folder.glob(".*.timing.*")]:
            leftover.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)
