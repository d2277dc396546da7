"""The state of a training run: everything that the next step depends on, besides its number."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

FILE = "state.pt"


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state. A kill at any time leaves either the old one or the new one, whole."""
    buffer = io.BytesIO()  # torch.save to a full disk dies without saying why; plain writes tell
    torch.save(state, buffer)
    write_atomically(folder / FILE, buffer.getbuffer())


def load_state(folder: Path) -> dict[str, Any] | None:
    """The last saved state of a run, or None for a new one."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for one broken file
        raise PenumbraError(
            f"{file} cannot be read ({type(error).__name__}): delete it to start this run anew"
        ) from error


def seed_everything(*key: int) -> None:
    """Set the generators of torch (all devices), numpy and Python from `key`.

    The loop does this before every step with (seed, step, rank). Thus no generator has a past that
    would have to be saved: a resumed step, in whichever process, draws what it would have drawn.
    """
    first, second, third = np.random.SeedSequence(key).generate_state(3)
    torch.manual_seed(int(first))
    np.random.seed(second)  # noqa: NPY002 (other people's code draws from the global one)
    random.seed(int(third))
