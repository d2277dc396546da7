"""Results of minutes, kept frame by frame, so that an interrupted run goes on where it was."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.files import write_atomically

FOLDER = "frames"  # below the experiment's own
_FACTS = "facts"


def kept(
    file: Path, facts: Mapping[str, Any], compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays in `file` if they were made from the same `facts`, or else computed and kept."""
    wanted = json.dumps(facts, sort_keys=True)
    found = _read(file)
    if found is not None and str(found.pop(_FACTS, "")) == wanted:
        return found
    arrays = compute()
    content = io.BytesIO()
    np.savez_compressed(content, **arrays, **{_FACTS: np.array(wanted)})
    write_atomically(file, content.getbuffer())
    return arrays


def _read(file: Path) -> dict[str, np.ndarray] | None:
    """None for a file that is not there or that somebody has damaged: it is made again."""
    try:
        with np.load(file, allow_pickle=False) as content:
            return dict(content)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.zlib.error):
        return None
