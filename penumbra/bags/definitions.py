"""Definitions of the message types installed on this machine, in the form of rosbags."""

from __future__ import annotations

import os
from pathlib import Path

from rosbags.interfaces import Nodetype
from rosbags.interfaces.typing import FieldDesc, Typesdict
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from penumbra.errors import PenumbraError


class InstalledTypes:
    """Message types of Jazzy, and of other installed packages such as penumbra_msgs."""

    def __init__(self) -> None:
        self.store: Typestore = get_typestore(Stores.ROS2_JAZZY)

    def add(self, type_name: str) -> None:
        """Register `package/msg/Name` and every type that it contains."""
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
    """The message type of a field or of its elements; None for numbers and strings."""
    if description[0] == Nodetype.ARRAY or description[0] == Nodetype.SEQUENCE:
        return _part(description[1][0])
    return description[1] if description[0] == Nodetype.NAME else None


def _file(type_name: str) -> Path:
    package, _, name = type_name.split("/")
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        file = Path(prefix) / "share" / package / "msg" / f"{name}.msg"
        if file.is_file():
            return file
    raise PenumbraError(
        f"the definition of {type_name} is not installed: source the workspace with {package}"
    )
