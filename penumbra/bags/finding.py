"""Find the bags below a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penumbra.bags.storages import storage_files
from penumbra.errors import PenumbraError


def find_bags(path: Path) -> list[Path]:
    """The bag `path` itself, or all bags below the folder `path`, sorted by name."""
    if _is_bag(path):
        return [path]
    found = list(_below(path)) if path.is_dir() else []
    if not found:
        storage_files(path)  # raises with the reason
    return found


def _below(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if _is_bag(child):
            yield child
        elif child.is_dir() and not child.is_symlink():  # a link may lead back up
            yield from _below(child)


def _is_bag(path: Path) -> bool:
    try:
        storage_files(path)
    except PenumbraError:
        return False
    return True
