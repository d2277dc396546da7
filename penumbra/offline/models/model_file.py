"""The file of a trained network: `weights.safetensors`.

Its header names the network and the arguments that it was built with, so that one file without
pickled code is enough to load it.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.bundle import WEIGHTS
from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

if TYPE_CHECKING:
    from penumbra.offline.models.network import Network

# Name in the file → where the class is, a `Network`.
ARCHITECTURES = {
    "segnet": "penumbra.offline.models.segnet:SegNet",
    "monodepth": "penumbra.offline.models.monodepth:Monodepth",
}


@dataclass(frozen=True)
class ModelHeader:
    """The description in a model file.

    `config` are the arguments of the network's constructor; `provenance` describes its training.
    """

    architecture: str
    config: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)


def build_model(architecture: str, config: dict[str, Any]) -> Network:
    """A network with random weights, from its name and the arguments of its constructor."""
    if architecture not in ARCHITECTURES:
        raise PenumbraError(
            f"unknown architecture {architecture!r}: this version has {', '.join(ARCHITECTURES)}"
        )
    module, _, name = ARCHITECTURES[architecture].partition(":")
    return getattr(importlib.import_module(module), name)(**config)


def save_model(model: Network, path: Path, provenance: dict[str, Any] | None = None) -> Path:
    """Write `path`/weights.safetensors (or `path` if it has that suffix); returns the file."""
    from safetensors.torch import save

    file = _weights_file(Path(path))
    name = type(model).__name__
    architecture = next((a for a, c in ARCHITECTURES.items() if c.endswith(f":{name}")), None)
    if architecture is None:
        raise PenumbraError(
            f"{name} is not in penumbra.offline.models.ARCHITECTURES: add it to save it"
        )
    header = ModelHeader(architecture, model.config, provenance or {})
    tensors = {key: value.detach().contiguous().cpu() for key, value in model.state_dict().items()}
    write_atomically(file, save(tensors, metadata={"penumbra": json.dumps(asdict(header))}))
    return file


def load_model(path: Path | str) -> Network:
    """The network that `save_model` wrote (a folder or the file), in evaluation mode on the CPU."""
    from safetensors.torch import load_file

    file = _weights_file(Path(path))
    header = read_header(file)
    model = build_model(header.architecture, header.config)
    try:
        model.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise PenumbraError(f"{file}: the weights do not match the header: {error}") from error
    return model.eval()


def read_header(path: Path | str) -> ModelHeader:
    """The header of a model file (a folder or the file)."""
    from safetensors import SafetensorError, safe_open

    file = _weights_file(Path(path))
    if not file.is_file():
        raise PenumbraError(f"no model at {file}: give a folder with {WEIGHTS}, or the file")
    try:
        with safe_open(file, framework="numpy") as tensors:
            metadata = tensors.metadata() or {}
    except SafetensorError as error:
        raise PenumbraError(f"{file} is not a valid safetensors file: {error}") from error
    if "penumbra" not in metadata:
        raise PenumbraError(f"{file} has no Penumbra header: it was not written by Penumbra")
    header = json.loads(metadata["penumbra"])
    return ModelHeader(header["architecture"], header["config"], header.get("provenance", {}))


def _weights_file(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path / WEIGHTS
