"""The file that keeps the gains of a network's variance.

`calibration.safetensors` stands beside `weights.safetensors`, in a checkpoint as in a bundle: the
gains of each layer (see `propagation.gains`), and in its header what they were fitted to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

GAINS = "calibration.safetensors"
VARIANCES = ("truthful", "fast")


def gains_file(folder: Path, variance: str) -> Path:
    """Where the gains for a variance are kept beside the weights."""
    name = GAINS if variance == "truthful" else f"-{variance}.".join(GAINS.split("."))
    return Path(folder) / name


def save_gains(path: Path, gains: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
    """Write the file into the folder `path`, whole or not at all."""
    from safetensors.torch import save

    file = gains_file(path, facts.get("variance", "truthful"))
    tensors = {name: gain.contiguous() for name, gain in gains.items()}
    write_atomically(file, save(tensors, metadata={"penumbra": json.dumps(dict(facts))}))
    return file


def load_gains(
    path: Path | str, variance: str = "truthful"
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Gains and facts of a checkpoint or bundle (the folder, or a file in it), if it has them.

    A bundle has one calibration, whichever that is; a checkpoint may have one for each variance.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    file = gains_file(path.parent if path.suffix == ".safetensors" else path, variance)
    if not file.is_file():
        only = load_gains(path) if file.name != GAINS else None
        return only if only and only[1].get("variance") == variance else None
    try:
        with safe_open(file, framework="pt") as tensors:
            header = json.loads((tensors.metadata() or {})["penumbra"])
            return {name: tensors.get_tensor(name) for name in tensors.keys()}, header  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise PenumbraError(
            f"{file} is no whole calibration ({error}): run `penumbra fit-gains` again or remove it"
        ) from error
