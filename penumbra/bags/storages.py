"""The storage files of a bag: which there are, and how each is opened or salvaged."""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from penumbra.bags.limits import MIB
from penumbra.bags.mcap_file import McapFile, salvage_mcap
from penumbra.bags.ros1_file import Ros1File, salvage_ros1
from penumbra.bags.sqlite3_file import Sqlite3File, salvage_sqlite3
from penumbra.bags.stored import Found, Storage
from penumbra.errors import PenumbraError
from penumbra.files import read_regular

PACKED = ".zstd"  # appended to the name of a file that rosbag2 has compressed as a whole
METADATA = "metadata.yaml"
_OPEN: dict[str, Callable[[Path], Storage]] = {
    ".mcap": McapFile, ".db3": Sqlite3File, ".bag": Ros1File
}  # fmt: skip
_SALVAGE = {".mcap": salvage_mcap, ".db3": salvage_sqlite3, ".bag": salvage_ros1}
# Errors that a parser raises on damaged bytes; SQLite, where a page states an absurd size, asks for
# memory that there is not.
_END = (EOFError, OSError, struct.error, KeyError, IndexError, ValueError, OverflowError,
        sqlite3.Error, MemoryError)  # fmt: skip
_LARGEST_METADATA = 2 * MIB
_DEEPEST_METADATA = 16  # lists within lists; 7 as rosbag2 writes it


@dataclass(frozen=True)
class FolderMetadata:
    """What metadata.yaml says that the files do not: which they are, and what they should hold."""

    files: list[Path]
    counts: dict[str, int]


def storage_files(path: Path) -> list[Path]:
    """The storage files of a bag, or an error with the reason why `path` is not one."""
    if not path.exists():
        raise PenumbraError(f"no bag {path}")
    if path.is_dir():
        names = ("*.mcap", "*.db3", f"*.mcap{PACKED}", f"*.db3{PACKED}")
        # A FIFO would block for ever, and a device may never end.
        found = (file for name in names for file in path.glob(name) if file.is_file())
        files = sorted(found, key=_by_numbers)
        if not files and not (path / METADATA).is_file():
            raise PenumbraError(
                f"{path} is not a bag: it has neither {METADATA} nor .mcap nor .db3"
            )
        return files
    if path.suffix not in _OPEN or not path.is_file():
        raise PenumbraError(
            f"{path} is not a bag: give a rosbag2 folder, or a file {', '.join(_OPEN)}"
        )
    return [path]


def open_storage(file: Path) -> Storage:
    """Open a file by its index. Damage raises errors of many kinds."""
    return _OPEN[file.suffix](file)


def salvage(file: Path, damage: Callable[[Exception], None] = lambda error: None) -> Found:
    """The messages of a file in the order of writing. It ends at damage, which `damage` gets."""
    try:
        yield from _SALVAGE[file.suffix](file)
    except _END as error:
        damage(error)


def read_metadata(folder: Path) -> FolderMetadata:
    """Read metadata.yaml; a file that is missing or damaged raises errors of several kinds."""
    try:
        text = read_regular(folder / METADATA, _LARGEST_METADATA, follow=True).decode()
    except PenumbraError as error:  # damaged, but the files beside it may be whole
        raise ValueError(str(error)) from error
    information = _plain_yaml(text)["rosbag2_bagfile_information"]
    files = [folder / PurePath(name).name for name in information["relative_file_paths"]]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"files are missing: {', '.join(missing)}")
    version = int(information["version"])
    if version > 9:
        raise ValueError(f"version {version} of rosbag2's metadata is not supported")
    counts: dict[str, int] = {}
    for entry in information["topics_with_message_count"]:
        name = entry["topic_metadata"]["name"]
        counts[name] = counts.get(name, 0) + int(entry["message_count"])
    return FolderMetadata(files, counts)


def _plain_yaml(text: str) -> Any:
    """Lists, maps and strings of a YAML document, without aliases.

    Not yaml.load: it recurses as deep as the text is nested, which ends the process.
    """
    stack: list[list[Any]] = [[]]
    maps: list[bool] = [False]
    for event in yaml.parse(text, getattr(yaml, "CLoader", yaml.Loader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not expected")
        if isinstance(event, yaml.ScalarEvent):
            stack[-1].append(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(stack) > _DEEPEST_METADATA:
                raise ValueError(f"nested deeper than {_DEEPEST_METADATA}")
            stack.append([])
            maps.append(isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, yaml.CollectionEndEvent):
            items = stack.pop()
            is_map = maps.pop()
            pairs = zip(items[::2], items[1::2], strict=True) if is_map else ()
            stack[-1].append(dict(pairs) if is_map else items)
    return stack[0][0]


def _by_numbers(file: Path) -> list[tuple[bool, int, str]]:
    """drive_2.mcap before drive_10.mcap."""
    parts = re.findall(r"\d{1,18}|\D+|\d+", file.name)
    return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]
