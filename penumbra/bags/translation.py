"""Convert messages of any ROS version to the definitions of ROS 2 Jazzy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from rosbags.convert.converter import STATIC_MSGTYPE_RENAMES, is_same_wireformat, migrate_bytes
from rosbags.interfaces import (
    Connection,
    ConnectionExtRosbag1,
    MessageDefinition,
    MessageDefinitionFormat,
)
from rosbags.interfaces.typing import Typesdict
from rosbags.typesys import (
    Stores,
    TypesysError,
    get_types_from_idl,
    get_types_from_msg,
    get_typestore,
)
from rosbags.typesys.store import Typestore

from penumbra.bags.messages import jazzy
from penumbra.errors import PenumbraError

_IDL_RULE = "=" * 80 + "\n"


class Translation:
    """Converts the serialised messages of one bag to ROS 2, by message type.

    A type that Jazzy also has is converted to Jazzy's definition, so that rclpy can read it. Any
    other type keeps the definition embedded in the bag.
    """

    def __init__(self, connections: Sequence[Connection], warn: Callable[[str], None]) -> None:
        self._is_ros1 = any(isinstance(c.ext, ConnectionExtRosbag1) for c in connections)
        self._source = get_typestore(Stores.EMPTY)
        embedded: Typesdict = {}
        for connection in connections:
            try:
                embedded.update(_definitions(connection.msgdef, connection.msgtype))
            except (TypesysError, ValueError) as error:
                kind, why = connection.msgtype, one_line(error)
                warn(f"the definition of {kind} cannot be read: {why}")
        self._source.register(embedded)
        self.store: Typestore = get_typestore(Stores.ROS2_JAZZY)
        known = jazzy().fielddefs
        self.store.register({name: d for name, d in embedded.items() if name not in known})
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
            raise PenumbraError(f"the definition of {type_name} is unknown")
        return self.store.deserialize_cdr(data, type_name)

    def _converter(self, type_name: str) -> Callable[[bytes], bytes]:
        target = self.name(type_name)
        known = type_name in self._source.fielddefs and target in self.store.fielddefs
        if not known:
            if self._is_ros1:
                raise PenumbraError(f"the definition of {type_name} is missing")
            return bytes
        if is_same_wireformat(self._source, self.store, type_name, target):
            if not self._is_ros1:
                return bytes
            return lambda data: bytes(self.store.ros1_to_cdr(data, target))
        migrate = partial(migrate_bytes, self._source, self.store, type_name, target, {},
                          src_is2=not self._is_ros1, dst_is2=True)  # fmt: skip
        return lambda data: bytes(migrate(data))


def one_line(error: object) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@lru_cache(maxsize=256)  # parsing them takes most of the time of opening a bag
def _definitions(definition: MessageDefinition, type_name: str) -> Typesdict:
    if definition.format == MessageDefinitionFormat.NONE:
        return {}
    if definition.format == MessageDefinitionFormat.MSG:
        return get_types_from_msg(definition.data, type_name)
    if not definition.data.startswith(f"{_IDL_RULE}IDL: "):
        return get_types_from_idl(definition.data)
    found: Typesdict = {}
    for part in definition.data.split(_IDL_RULE)[1:]:
        found.update(get_types_from_idl(part.partition("\n")[2]))
    return found
