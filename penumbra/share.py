"""Where the package's own files are: configuration, RViz layout, the models that come with it."""

from __future__ import annotations

from pathlib import Path

from penumbra.errors import PenumbraError

TASKS = ("segmentation", "depth")


def config_folder() -> Path:
    """`config/`, beside the package in a clone, under `share/penumbra` where it is installed."""
    for folder in Path(__file__).resolve().parents:
        for candidate in (folder / "config", folder / "share" / "penumbra" / "config"):
            if (candidate / "segmentation.yaml").is_file():
                return candidate
    raise PenumbraError(
        "the folder config of penumbra is not where it was installed: install penumbra again"
    )


def bundle_folder(name: str) -> Path:
    """A bundle's folder: `name` as a path, or one of the models that come with Penumbra."""
    path = Path(name).expanduser()
    shipped = config_folder() / "models" / name
    return shipped if path.name == name and not path.exists() and shipped.is_dir() else path
