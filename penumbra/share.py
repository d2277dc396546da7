"""Locations of installed files: configuration, RViz layout, shipped models."""

from __future__ import annotations

from pathlib import Path

from penumbra.errors import PenumbraError

TASKS = ("segmentation", "depth")


def config_folder() -> Path:
    """The folder `config`: beside the package in a clone, in `share/penumbra` if installed."""
    for folder in Path(__file__).resolve().parents:
        for candidate in (folder / "config", folder / "share" / "penumbra" / "config"):
            if (candidate / "segmentation.yaml").is_file():
                return candidate
    raise PenumbraError("the configuration folder of penumbra is missing: install penumbra again")


def bundle_folder(name: str) -> Path:
    """The folder of a bundle: `name` is a path, or the name of a shipped model."""
    path = Path(name).expanduser()
    shipped = config_folder() / "models" / name
    return shipped if path.name == name and not path.exists() and shipped.is_dir() else path
