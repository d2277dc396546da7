"""The definitions of message types that are installed on this machine, as rosbags wants them."""

from __future__ import annotations

import os
from pathlib import Path

from rosbags.interfaces import Nodetype
from rosbags.interfaces.typing import FieldDesc, Typesdict
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from penumbra.errors import PenumbraError


class InstalledTypes:
    """Jazzy's own message types, and those that other packages (penumbra_msgs) have installed."""

    def __init__(self) -> None:
        self.store: Typestore = get_typestore(Stores.ROS2_JAZZY)

    def add(self, type_name: str) -> None:
        """Make `package/msg/Name`, and every type that it is made of, known to the store."""
        found: Typesdict = {}
        self._collect(type_name, found)
        self.store.register(found)

    def _collect(self, type_name: str, found: Typesdict) -> None:
        if type_name in found or type_name in self.store.fielddefs:
            return
        file = _file(type_name)
        found |= get_types_from_msg(file.read_text(), type_name)
        for _, description in found[type_name][1]:
            part = _part(description)
            if part is not None:
                self._collect(part, found)


def _part(description: FieldDesc) -> str | None:
    """The type that a field, or each element of it, is of; None for a number or a string."""
    kind, value = description
    if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
        return _part(value[0])
    return value if kind == Nodetype.NAME else None


def _file(type_name: str) -> Path:
    package, _, name = type_name.split("/")
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        file = Path(prefix) / "share" / package / "msg" / f"{name}.msg"
        if file.is_file():
            return file
    raise PenumbraError(
        f"the definition of {type_name} is not installed: source the workspace that has {package}"
    )
