"""Atomic file writes, and the cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from penumbra.errors import PenumbraError


def write_atomically(path: Path, data: bytes | memoryview | str) -> None:
    """Write `path` so that no reader, crash or full disk ever leaves a partial file."""
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        size = len(content) / 2**20
        raise PenumbraError(
            f"cannot write {path} ({size:.1f} MiB): {error.strerror}; free some space or choose "
            "another folder"
        ) from error


def cache_folder() -> Path:
    """`PENUMBRA_CACHE`, or `~/.cache/penumbra`: training runs, engines, reproducible files."""
    return Path(os.environ.get("PENUMBRA_CACHE") or Path.home() / ".cache" / "penumbra")
