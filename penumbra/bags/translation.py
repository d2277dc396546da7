"""Convert messages of any ROS version to the definitions of ROS 2 Jazzy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rosbags.convert.converter import STATIC_MSGTYPE_RENAMES, is_same_wireformat, migrate_bytes
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from penumbra.bags.definition_text import DefinitionReader
from penumbra.bags.messages import jazzy
from penumbra.bags.stored import StoredTopic
from penumbra.errors import PenumbraError
from penumbra.text import printable

_WARNINGS = 5  # about definitions, of one bag
_LONGEST_REASON = 300  # characters


class Translation:
    """Converts the serialised messages of one bag to ROS 2, by message type.

    A type that Jazzy also has is converted to Jazzy's definition, so that rclpy can read it. Any
    other type keeps the definition embedded in the bag.
    """

    def __init__(self, topics: Sequence[StoredTopic], warn: Callable[[str], None]) -> None:
        self._is_ros1 = any(topic.ros1 for topic in topics)
        self._source = get_typestore(Stores.EMPTY)
        self.store: Typestore = get_typestore(Stores.ROS2_JAZZY)
        known = jazzy().fielddefs
        reader = DefinitionReader()
        unread = 0
        for definition, type_name in dict.fromkeys((t.definition, t.type) for t in topics):
            try:
                found = reader.types(definition, type_name)
                self._source.register(found)
                self.store.register({n: d for n, d in found.items() if n not in known})
            except Exception as error:  # rosbags raises many kinds of errors on odd definitions
                unread += 1
                if unread <= _WARNINGS:
                    kind, why = printable(type_name), one_line(error)
                    warn(f"the definition of {kind} cannot be read: {why}")
        if unread > _WARNINGS:
            warn(f"{unread - _WARNINGS} more definitions cannot be read")
        self._converters: dict[str, Callable[[bytes], bytes]] = {}

    def name(self, type_name: str) -> str:
        """The name of this type in ROS 2."""
        return STATIC_MSGTYPE_RENAMES.get(type_name, type_name) if self._is_ros1 else type_name

    def knows(self, type_name: str) -> bool:
        """Whether messages of this type can be decoded."""
        return type_name in self.store.fielddefs

    def convert(self, type_name: str, data: bytes) -> bytes:
        """The message in CDR, by the definitions of ROS 2 Jazzy."""
        if type_name not in self._converters:
            self._converters[type_name] = self._converter(type_name)
        return self._converters[type_name](data)

    def decode(self, type_name: str, data: bytes) -> Any:
        """The message, from the result of `convert`."""
        if not self.knows(type_name):
            raise PenumbraError(f"the definition of {printable(type_name)} is unknown")
        return self.store.deserialize_cdr(data, type_name)

    def _converter(self, type_name: str) -> Callable[[bytes], bytes]:
        target = self.name(type_name)
        known = type_name in self._source.fielddefs and target in self.store.fielddefs
        if not known:
            if self._is_ros1:
                raise PenumbraError(f"the definition of {printable(type_name)} is missing")
            return bytes
        if is_same_wireformat(self._source, self.store, type_name, target):
            if not self._is_ros1:
                return bytes
            return lambda data: bytes(self.store.ros1_to_cdr(data, target))
        migrate = partial(migrate_bytes, self._source, self.store, type_name, target, {},
                          src_is2=not self._is_ros1, dst_is2=True)  # fmt: skip
        return lambda data: bytes(migrate(data))


def one_line(error: object) -> str:
    """The message of an error in one printable line."""
    text = " ".join(str(error)[: 2 * _LONGEST_REASON].split())
    return printable(text, _LONGEST_REASON) or type(error).__name__
