"""What every storage format has in common: its topics, and messages in the order of their time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat

NO_DEFINITION = MessageDefinition(MessageDefinitionFormat.NONE, "")
FORMATS = {"ros2msg": MessageDefinitionFormat.MSG, "ros2idl": MessageDefinitionFormat.IDL,
           "omgidl": MessageDefinitionFormat.IDL}  # fmt: skip
_LONGEST_QOS = 2**16  # characters
_POLICY = re.compile(r"\b(durability|reliability)['\"]?:[ \t]*['\"]?(\w+)")


@dataclass(frozen=True)
class StoredTopic:
    """A topic as one file stores it, under a `number` of that file."""

    number: int
    name: str
    type: str
    definition: MessageDefinition
    file: Path
    ros1: bool = False
    latched: bool = False
    reliable: bool = True
    count: int = 0
    """Messages that the file says it has."""


Found = Iterator[tuple[StoredTopic, int, bytes]]
"""Topic, nanoseconds and serialised message."""


class Storage(Protocol):
    """An open file with an index."""

    topics: list[StoredTopic]

    def messages(self, numbers: Collection[int]) -> Found:
        """The messages of these topics in the order of their time."""

    def close(self) -> None:
        """Close the file."""


class NoIndexError(Exception):
    """The file is whole, but can be read only from its beginning to its end."""


def offered_qos(text: str) -> dict[str, bool]:
    """`latched` and `reliable` of the QoS that rosbag2 stores with a topic.

    The text is YAML, a list of profiles with numbers (to version 8) or names (from 9). Two policies
    are wanted, and a pattern finds them in any text, damaged or hostile.
    """
    latched, reliable = False, True
    for policy, value in _POLICY.findall(text[:_LONGEST_QOS]):
        if policy == "durability":
            latched |= value in ("1", "transient_local")
        else:
            reliable &= value not in ("2", "best_effort")
    return {"latched": latched, "reliable": reliable}
