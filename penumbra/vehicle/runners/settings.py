"""Settings of runners, and their error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penumbra.errors import PenumbraError

# Called with the completed fraction (0 to 1) and the current phase.
Progress = Callable[[float, str], None]


class RunnerError(PenumbraError):
    """This runner does not work on this machine, or failed; another one may work."""


@dataclass(frozen=True)
class RunnerSettings:
    """How to run a bundle; each runner uses the settings that apply to it."""

    threads: int = 0  # of a CPU runner; 0: one per physical core
    image_size: tuple[int, int] | None = None  # height, width, for a bundle that accepts any size
    device: int = 0  # index of the GPU
    lanes: int = 2  # concurrent images on a GPU; each lane has its own scratch memory
    engine_cache_dir: Path | None = None  # None: see penumbra.vehicle.runners.engine
    workspace_mb: int | None = None  # scratch memory of a build; None: no limit
    progress: Progress | None = None  # called during an engine build
