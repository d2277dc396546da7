"""TensorRT engines of a bundle, and the cache of built engines.

An engine is specific to a model, a TensorRT version, a GPU architecture and an image size. All of
these are in its file name, so that a stale engine is never found.

An engine is machine code. Beside it lies a record of its SHA-256 and its key, and only bytes that
match it are loaded; the folder belongs to the user alone, since whoever writes to it could replace
both.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from penumbra.bundle import Bundle
from penumbra.errors import PenumbraError
from penumbra.files import cache_folder, read_regular, write_atomically
from penumbra.vehicle.runners import compiler
from penumbra.vehicle.runners.cuda import Cuda
from penumbra.vehicle.runners.settings import Progress, RunnerSettings

log = logging.getLogger(__name__)

LARGEST_ENGINE = 1 << 34  # bytes
LARGEST_RECORD = 1 << 16
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
    def record(self) -> Path:
        """The file beside the engine that tells its SHA-256 and its key."""
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def built(self) -> bool:
        """Whether the engine is in the cache, undamaged."""
        if not self.path.exists():
            return False
        try:
            self._checked()
        except (PenumbraError, OSError):
            return False
        return True

    def build(self, progress: Progress | None = None, force: bool = False) -> bool:
        """Build the engine unless it exists; True if it was built now.

        A damaged engine, or one without its record, is built again. Only one process builds at a
        time, since concurrent builds would distort each other's timings; others wait for its
        result. The file is written atomically: an interrupted build leaves nothing.
        """
        if self.bundle.sha256 != self.key.model:  # replaced since its engine was asked for
            raise PenumbraError(f"{self.bundle.path} is another bundle than before: load it again")
        if self.built and not force:
            return False
        with _locked(self.folder):
            if self.built and not force:
                return False
            if self.path.exists() and not force:
                log.warning("%s; building it again", self._damage())
            data = compiler.build(
                self.bundle,
                self.key.backend,
                (self.key.height, self.key.width),
                self.key.capability,
                self.workspace_mb,
                self.folder / self._timing_cache_name(),
                progress,
            )
            self.store(data)
        return True

    def store(self, data: bytes | memoryview) -> None:
        """Write a serialised engine and its record; without its record it is never loaded."""
        record = {"sha256": hashlib.sha256(data).hexdigest(), "key": asdict(self.key)}
        write_atomically(self.path, data)
        write_atomically(self.record, json.dumps(record, indent=2) + "\n")

    def read(self) -> bytes:
        """The serialised engine: the very bytes whose SHA-256 was compared with the record."""
        try:
            return self._checked()
        except (PenumbraError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise PenumbraError(
                f"cannot read the engine {self.path}: {why}; run "
                f"`penumbra build {self.bundle.path} --backend {self.key.backend}`"
            ) from error

    def _checked(self) -> bytes:
        """The engine, if the folder, its record and its SHA-256 are in order."""
        with _opened(self.folder):
            pass
        data = read_regular(self.path, LARGEST_ENGINE)
        try:
            record = json.loads(read_regular(self.record, LARGEST_RECORD))
            matches = record["sha256"] == hashlib.sha256(data).hexdigest()
            matches = matches and record["key"] == asdict(self.key)
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise PenumbraError(f"the engine {self.path} has no valid record") from error
        if not matches:
            raise PenumbraError(f"the engine {self.path} is not the one that was built here")
        return data

    def _damage(self) -> str:
        try:
            self._checked()
        except (PenumbraError, OSError) as error:
            return str(error)
        return f"the engine {self.path} was damaged"

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
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    with _opened(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another process is building an engine in %s: waiting for it", folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Only the holder of the lock writes here: partial files are from a killed builder.
        for leftover in [*folder.glob(".*.engine.*"), *folder.glob(".*.timing.*")]:
            leftover.unlink(missing_ok=True)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open the folder, which must be the user's own, and which nobody else may write to."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PenumbraError(
                f"the engine cache {folder} belongs to another user (number {status.st_uid}), who "
                "could replace engines: set engine_cache_dir or PENUMBRA_CACHE"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PenumbraError(
                f"others may write to the engine cache {folder}, and could replace engines: run "
                f"`chmod 700 {folder}`, and delete the engines in it"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _unusable(folder: Path, error: OSError) -> PenumbraError:
    return PenumbraError(
        f"cannot use {folder} as the engine cache: {error.strerror}; set engine_cache_dir or "
        "PENUMBRA_CACHE"
    )
