"""How a bundle is to be run, and the error of a runner that cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penumbra.errors import PenumbraError

# Called with how much is done (0 to 1) and what is being done.
Progress = Callable[[float, str], None]


class RunnerError(PenumbraError):
    """This runner cannot work here, or no longer; another one may."""


@dataclass(frozen=True)
class RunnerSettings:
    """How to run a bundle; each runner reads what concerns it."""

    threads: int = 0  # of a CPU runner; 0: one per physical core
    image_size: tuple[int, int] | None = None  # height, width of the engine of a bundle of any size
    device: int = 0  # which GPU
    lanes: int = 2  # images under way at once on a GPU; each takes its own scratch memory there
    engine_cache_dir: Path | None = None  # None: see penumbra.vehicle.runners.engine
    workspace_mb: int | None = None  # GPU memory for an engine's scratch; None: no limit
    progress: Progress | None = None  # of an engine being built
