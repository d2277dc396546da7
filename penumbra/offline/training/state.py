"""The saved state of a training run."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

STATE_FILE = "state.pt"


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state atomically."""
    buffer = io.BytesIO()  # on a full disk torch.save gives no reason, a plain write does
    torch.save(state, buffer)
    write_atomically(folder / STATE_FILE, buffer.getbuffer())


def load_state(folder: Path) -> dict[str, Any] | None:
    """The last saved state of a run; None for a new one."""
    file = folder / STATE_FILE
    if not file.is_file():
        return None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for an invalid file
        raise PenumbraError(
            f"{file} cannot be read ({type(error).__name__}): delete it to restart this run"
        ) from error


def seed_everything(*key: int) -> None:
    """Seed the generators of torch (all devices), NumPy and Python from `key`.

    The loop calls this before every step with (seed, step, rank), so that the state of the
    generators need not be saved and a resumed run draws the same numbers.
    """
    first, second, third = np.random.SeedSequence(key).generate_state(3)
    torch.manual_seed(int(first))
    np.random.seed(second)  # noqa: NPY002 (libraries draw from the global one)
    random.seed(int(third))
