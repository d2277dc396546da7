"""Read any bag, rosbag2 or ROS 1, as one stream of ROS 2 messages; name what is damaged.

with open_bag(path) as bag:
    for topic, stamp_ns, message in bag: ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rosbags.interfaces import Connection, ConnectionExtRosbag1, QosDurability, QosReliability
from rosbags.rosbag1 import Reader as Reader1
from rosbags.rosbag2 import Reader as Reader2
from rosbags.rosbag2.storage_mcap import McapReader
from rosbags.typesys.store import Typestore

from penumbra.bags.messages import IMAGES, SECOND, has_header, header_stamp
from penumbra.bags.salvage import salvage, unpacked_file, unpacked_message
from penumbra.bags.translation import Translation, one_line
from penumbra.errors import PenumbraError

GROUND_TRUTH = "/ground_truth/"
_SUFFIXES = (".mcap", ".db3", ".bag")
_PACKED = ".zstd"  # appended to the name of a file that rosbag2 has compressed as a whole
Read = Callable[[Collection[Connection]], Iterator[tuple[Connection, int, bytes]]]
Warn = Callable[[str], None]


class RawMessage(NamedTuple):
    """One message of a bag; `data` is its serialised form in ROS 2 (CDR)."""

    topic: str
    stamp_ns: int
    data: bytes


@dataclass(frozen=True)
class Topic:
    """One topic of a bag. `latched`: late subscribers still get the last message."""

    name: str
    type: str
    count: int
    latched: bool
    reliable: bool


def open_bag(path: Path, warn: Warn | None = None) -> Bag:
    """Open a rosbag2 folder, an .mcap or .db3 file of one, or a ROS 1 .bag.

    `warn` gets one line for each defect that does not prevent reading (default: standard error).
    """
    path = Path(path)
    warn = warn or _to_stderr
    files = storage_files(path)
    try:
        reader = Reader1(path) if path.suffix == ".bag" and path.is_file() else Reader2(path)
        reader.open()
    except Exception as error:  # rosbags raises many kinds of errors on damaged files
        return _salvaged(path, files, warn, error)
    if _without_index(reader):
        reader.close()
        return _salvaged(path, files, warn, None)
    return Bag(
        path, list(reader.connections), lambda c: reader.messages(list(c)), warn, reader.close
    )


class Bag:
    """The messages of a bag in the order of their time, decoded or as bytes."""

    def __init__(
        self,
        path: Path,
        connections: list[Connection],
        read: Read,
        warn: Warn,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.warn = warn
        self._connections = connections
        self._read = read
        self._close = close
        try:
            self._translation = Translation(connections, lambda text: warn(f"{path}: {text}"))
            self.topics = {c.topic: self._topic(c.topic) for c in connections}
            if not any(topic.count for topic in self.topics.values()):
                raise PenumbraError(f"{path} holds no messages: nothing was recorded")
        except BaseException:
            close()
            raise

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __iter__(self) -> Iterator[tuple[str, int, Any]]:
        """(topic, nanoseconds, message) of every message whose definition is known."""
        for recorded in self.raw():
            if self._translation.knows(self.topics[recorded.topic].type):
                yield recorded.topic, recorded.stamp_ns, self.decode(recorded)

    def raw(self, topics: Collection[str] | None = None) -> Iterator[RawMessage]:
        """The messages of `topics` (None: of all), serialised for ROS 2.

        Warns where time runs backwards, and where messages are lost because the bag is damaged.
        """
        wanted = self.topics if topics is None else {name: self.topic(name) for name in topics}
        connections = [c for c in self._connections if c.topic in wanted]
        expected = sum(connection.msgcount for connection in connections)
        clocks = _ClockCheck(self)
        done = 0
        messages = self._read(connections) if connections else iter(())
        while True:
            try:
                connection, stamp, data = next(messages)
                if not isinstance(connection.ext, ConnectionExtRosbag1):
                    data = unpacked_message(data)
                cdr = self._translation.convert(connection.msgtype, data)
            except StopIteration:
                if done < expected:
                    self.warn(
                        f"{self.path} is damaged: only {done} of {expected} messages are found"
                    )
                return
            except Exception as error:  # rosbags raises many kinds of errors on damaged files
                self.warn(
                    f"{self.path} is damaged after message {done}; the rest is lost:"
                    f" {one_line(error)}"
                )
                return
            recorded = RawMessage(connection.topic, stamp, cdr)
            clocks.check(recorded)
            yield recorded
            done += 1

    def decode(self, recorded: RawMessage) -> Any:
        """The message, with the fields that its definition names."""
        return self._translation.decode(self.topic(recorded.topic).type, recorded.data)

    def topic(self, name: str) -> Topic:
        """The topic of that name, or an error that lists the topics of the bag."""
        if name not in self.topics:
            there = ", ".join(sorted(self.topics))
            raise PenumbraError(f"no topic {name} in {self.path}: it has {there}")
        return self.topics[name]

    def image_topic(self, name: str | None = None) -> Topic:
        """The topic of the camera images: `name`, or the only one that is not ground truth."""
        if name is not None:
            topic = self.topic(name)
            if topic.type not in IMAGES:
                raise PenumbraError(
                    f"{name} in {self.path} holds {topic.type}: images are {' or '.join(IMAGES)}"
                )
            return topic
        images = [topic for topic in self.topics.values()
                  if topic.type in IMAGES and not topic.name.startswith(GROUND_TRUTH)]  # fmt: skip
        if len(images) == 1:
            return images[0]
        there = ", ".join(f"{t.name} ({t.type})" for t in images or self.topics.values())
        what = "several image topics" if images else f"no topic of type {' or '.join(IMAGES)}"
        raise PenumbraError(f"{self.path} has {what}: name one of {there}")

    def header_stamp(self, recorded: RawMessage) -> int | None:
        """The header stamp in nanoseconds; None for a message without header."""
        if not has_header(self._translation.store, self.topics[recorded.topic].type):
            return None
        return header_stamp(recorded.data)

    @property
    def store(self) -> Typestore:
        """rosbags' definitions of the messages in this bag."""
        return self._translation.store

    def _topic(self, name: str) -> Topic:
        parts = [c for c in self._connections if c.topic == name]
        types = sorted({self._translation.name(c.msgtype) for c in parts})
        if len(types) > 1:
            raise PenumbraError(
                f"{name} in {self.path} holds messages of two types: {', '.join(types)}"
            )
        latched, reliable = False, True
        for connection in parts:
            if isinstance(connection.ext, ConnectionExtRosbag1):
                latched |= bool(connection.ext.latching)
                continue
            for qos in connection.ext.offered_qos_profiles:
                latched |= qos.durability == QosDurability.TRANSIENT_LOCAL
                reliable &= qos.reliability != QosReliability.BEST_EFFORT
        return Topic(name, types[0], sum(c.msgcount for c in parts), latched, reliable)


class _ClockCheck:
    """Warns once for each topic, and once for the bag, when time runs backwards."""

    def __init__(self, bag: Bag) -> None:
        self._bag = bag
        self._last: dict[str, int] = {}
        self._warned: set[str] = set()

    def check(self, recorded: RawMessage) -> None:
        self._compare("the recording", recorded.stamp_ns, recorded.topic)
        stamp = self._bag.header_stamp(recorded)
        if stamp is not None:
            self._compare(recorded.topic, stamp, recorded.topic)

    def _compare(self, clock: str, now: int, topic: str) -> None:
        back = self._last.get(clock, now) - now
        if back > 0 and clock not in self._warned:
            self._warned.add(clock)
            self._bag.warn(
                f"{self._bag.path}: time runs backwards by {back / SECOND:.3f} s in {clock} (at a"
                f" message of {topic} with {now / SECOND:.3f} s): are these several recordings, or"
                " was a clock set? Messages keep their stored order"
            )
        self._last[clock] = now


def storage_files(path: Path) -> list[Path]:
    """The storage files of a bag, or an error with the reason why `path` is not one."""
    if not path.exists():
        raise PenumbraError(f"no bag {path}")
    if path.is_dir():
        names = ("*.mcap", "*.db3", f"*.mcap{_PACKED}", f"*.db3{_PACKED}")
        files = sorted(file for name in names for file in path.glob(name))
        if not files and not (path / "metadata.yaml").is_file():
            raise PenumbraError(
                f"{path} is not a bag: it has neither metadata.yaml nor .mcap nor .db3"
            )
        return files
    if path.suffix not in _SUFFIXES:
        raise PenumbraError(
            f"{path} is not a bag: give a rosbag2 folder, or a file {', '.join(_SUFFIXES)}"
        )
    return [path]


def _without_index(reader: Reader1 | Reader2) -> bool:
    """Whether it is an MCAP without chunks; rosbags reads only those with messages in order."""
    if isinstance(reader, Reader1) or reader.compression_mode or not reader.message_count:
        return False
    storages = getattr(reader.storage, "storages", [reader.storage])
    return any(isinstance(part, McapReader) and not part.chunks for part in storages)


def _salvaged(path: Path, files: list[Path], warn: Warn, why: Exception | None) -> Bag:
    """The readable part of a bag that rosbags refuses because of `why` (None: all is readable)."""
    reason = one_line(why)
    scratch = TemporaryDirectory()
    try:
        folder = Path(scratch.name)
        files = [unpacked_file(f, folder) if f.suffix == _PACKED else f for f in files]
    except OSError as error:
        scratch.cleanup()
        raise PenumbraError(f"cannot unpack {path}: {error.strerror}; free some space") from error
    connections: dict[tuple[Path, int], Connection] = {}
    total = 0
    for file in files:
        for connection, _, _ in salvage(file):
            known = connections.setdefault((file, connection.id), connection)
            connections[file, connection.id] = known._replace(msgcount=known.msgcount + 1)
            total += 1
    if not total:
        scratch.cleanup()
        raise PenumbraError(f"{path} cannot be read, and no message can be recovered: {reason}")
    if why is not None:
        warn(f"{path} is truncated or damaged ({reason}): {total} messages recovered")

    def read(wanted: Collection[Connection]) -> Iterator[tuple[Connection, int, bytes]]:
        ours = {(connection.owner, connection.id) for connection in wanted}
        for file in files:
            for connection, stamp, data in salvage(file):
                if (file, connection.id) in ours:
                    yield connection, stamp, data

    return Bag(path, list(connections.values()), read, warn, scratch.cleanup)


def _to_stderr(text: str) -> None:
    print(f"penumbra: warning: {text}", file=sys.stderr)
