"""The networks, and the one file that each is kept in.

A model file is a `weights.safetensors` whose header also says which network it belongs to and the
arguments it was built with: one file, no pickle, nothing that could fall out of step.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.files import write_atomically

if TYPE_CHECKING:
    from torch import nn

WEIGHTS = "weights.safetensors"

# Name in the file → where the class is. A class keeps its constructor's arguments in `.config`.
ARCHITECTURES = {
    "segnet": "penumbra.offline.models.segnet:SegNet",
    "monodepth": "penumbra.offline.models.monodepth:Monodepth",
}


def build_model(architecture: str, config: dict[str, Any]) -> nn.Module:
    """A network with fresh weights from its name and its constructor's arguments."""
    if architecture not in ARCHITECTURES:
        raise PenumbraError(
            f"unknown architecture {architecture!r}: this version knows {', '.join(ARCHITECTURES)}"
        )
    module, _, name = ARCHITECTURES[architecture].partition(":")
    return getattr(importlib.import_module(module), name)(**config)


def save_model(model: nn.Module, path: Path, provenance: dict[str, Any] | None = None) -> Path:
    """Write `path`/weights.safetensors (or `path` itself if it ends so); returns the file."""
    from safetensors.torch import save

    file = _weights_file(Path(path))
    name = type(model).__name__
    architecture = next((a for a, c in ARCHITECTURES.items() if c.endswith(f":{name}")), None)
    if architecture is None:
        raise PenumbraError(
            f"{name} is not in penumbra.offline.models.ARCHITECTURES: add it to save it"
        )
    header = {"architecture": architecture, "config": model.config, "provenance": provenance or {}}
    tensors = {key: value.detach().contiguous().cpu() for key, value in model.state_dict().items()}
    write_atomically(file, save(tensors, metadata={"penumbra": json.dumps(header)}))
    return file


def load_model(path: Path | str) -> nn.Module:
    """The network that `save_model` wrote (a folder or the file), in evaluation mode on the CPU."""
    from safetensors.torch import load_file

    file = _weights_file(Path(path))
    header = read_header(file)
    model = build_model(header["architecture"], header["config"])
    try:
        model.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise PenumbraError(f"{file}: weights do not fit their own description: {error}") from error
    return model.eval()


def read_header(path: Path | str) -> dict[str, Any]:
    """What a model file says of itself: `architecture`, `config`, `provenance`."""
    from safetensors import SafetensorError, safe_open

    file = _weights_file(Path(path))
    if not file.is_file():
        raise PenumbraError(f"no model at {file}: give a folder that holds {WEIGHTS}, or the file")
    try:
        with safe_open(file, framework="numpy") as tensors:
            metadata = tensors.metadata() or {}
    except SafetensorError as error:
        raise PenumbraError(f"{file} is not a whole safetensors file: {error}") from error
    if "penumbra" not in metadata:
        raise PenumbraError(f"{file} has no Penumbra header: it was not written by Penumbra")
    return json.loads(metadata["penumbra"])


def _weights_file(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path / WEIGHTS
