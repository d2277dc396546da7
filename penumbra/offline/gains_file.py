"""The file of the gains of a network's variance.

`gains.safetensors` is beside `weights.safetensors`, in a checkpoint as in a bundle. It contains the
gains of each layer (see `propagation.gains`), and in its header how they were fitted. Older files
are called `calibration.safetensors`; they are read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from penumbra.bundle import Bundle

GAINS = "gains.safetensors"
VARIANCES = ("truthful", "fast")

_OLD_GAINS = "calibration.safetensors"
_OLD_KEYS = {
    "strange": "corrupted",
    "pictures": "images",
    "pictures_sha256": "images_sha256",
    "began_with": "started_from",
}


@dataclass(frozen=True)
class Change:
    """A figure before and after the fit."""

    before: float
    after: float


@dataclass(frozen=True)
class GainFacts:
    """How gains were fitted; None is unknown. Gains are valid for their rules only.

    The figures are those of the standard deviation against Monte Carlo, on held-out views.
    """

    relu: str = "moment"
    softmax: str = "jacobian"
    variance: str = "truthful"
    views: int | None = None
    samples: int | None = None
    steps: int | None = None
    seed: int | None = None
    size: tuple[int, int] | None = None
    scales: tuple[float, float] | None = None
    corrupted: float | None = None
    rate: float | None = None
    images: int | None = None
    images_sha256: str | None = None
    std_relative_error: Change | None = None
    std_ratio: Change | None = None
    started_from: GainFacts | None = None

    @classmethod
    def from_json(cls, header: Mapping[str, Any]) -> GainFacts:
        """From the header of a file or the manifest of a bundle; older keys are translated."""
        values = {_OLD_KEYS.get(key, key): value for key, value in header.items()}
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for name in ("size", "scales"):
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        for name in ("std_relative_error", "std_ratio"):
            if known.get(name) is not None:
                known[name] = Change(**known[name])
        if known.get("started_from") is not None:
            known["started_from"] = cls.from_json(known["started_from"])
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """The known facts, as JSON and YAML store them."""
        return {name: _plain(value) for name, value in asdict(self).items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if part is not None}
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class StoredGains:
    """The gains of each layer, how they were fitted, and their file."""

    tensors: dict[str, Tensor]
    facts: GainFacts
    file: Path


def save_gains(folder: Path, tensors: Mapping[str, Tensor], facts: GainFacts) -> Path:
    """Write the gains into `folder`, atomically; returns the file."""
    from safetensors.torch import save

    file = Path(folder) / _named(GAINS, facts.variance)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = json.dumps(facts.to_json())
    write_atomically(file, save(contiguous, metadata={"penumbra": header}))
    return file


def load_gains(path: Path | str, variance: str = "truthful") -> StoredGains | None:
    """The gains of a checkpoint or bundle (the folder, or a file in it); None if it has none.

    A checkpoint may have gains for each variance. A bundle that was exported for one variance has
    them under the plain name.
    """
    path = Path(path)
    folder = path.parent if path.suffix == ".safetensors" else path
    for plain in (GAINS, _OLD_GAINS):
        file = folder / _named(plain, variance)
        if file.is_file():
            return _read(file)
        if (folder / plain).is_file():
            only = _read(folder / plain)
            if only.facts.variance == variance:
                return only
    return None


def load_gains_of(bundle: Bundle) -> StoredGains | None:
    """The gains in the graph of a bundle; None if it has none."""
    for name in (GAINS, _OLD_GAINS):
        if name in bundle.files:
            return _read(bundle.path / name)
    return None


def gains_name(variance: str) -> str:
    """The name of the file of the gains for a variance."""
    return _named(GAINS, variance)


def _named(plain: str, variance: str) -> str:
    return plain if variance == "truthful" else plain.replace(".", f"-{variance}.")


def _read(file: Path) -> StoredGains:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            header = json.loads((content.metadata() or {})["penumbra"])
            names = content.keys()
            tensors = {name: content.get_tensor(name) for name in names}
        return StoredGains(tensors, GainFacts.from_json(header), file)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise PenumbraError(
            f"{file} is not a valid file of gains ({error}): run `penumbra fit-gains` again or "
            "remove it"
        ) from error
