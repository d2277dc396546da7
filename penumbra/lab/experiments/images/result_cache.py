"""Results of long computations, stored frame by frame, so that a run can be resumed."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.files import write_atomically

FOLDER = "frames"  # below the experiment's own
_FACTS = "facts"


def cached(
    file: Path, facts: Mapping[str, Any], compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays in `file` if they belong to the same `facts`; otherwise computed and stored."""
    wanted = json.dumps(facts, sort_keys=True)
    found = _read(file)
    if found is not None and str(found.pop(_FACTS, "")) == wanted:
        return found
    arrays = compute()
    stored: dict[str, Any] = {**arrays, _FACTS: np.array(wanted)}
    content = io.BytesIO()
    np.savez_compressed(content, **stored)
    write_atomically(file, content.getbuffer())
    return arrays


def _read(file: Path) -> dict[str, np.ndarray] | None:
    """None for a missing or damaged file, which is then computed again."""
    try:
        with np.load(file, allow_pickle=False) as content:
            return dict(content)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
