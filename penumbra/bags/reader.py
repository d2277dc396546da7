"""Read any bag, rosbag2 or ROS 1, as one stream of ROS 2 messages; name what is damaged.

with open_bag(path) as bag:
    for topic, stamp_ns, message in bag: ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rosbags.typesys.store import Typestore

from penumbra.bags.limits import Budget, LimitError, unpack_file
from penumbra.bags.messages import IMAGES, SECOND, has_header, header_stamp
from penumbra.bags.storages import (
    METADATA,
    PACKED,
    FolderMetadata,
    open_storage,
    read_metadata,
    salvage,
    storage_files,
)
from penumbra.bags.stored import Found, NoIndexError, Storage, StoredTopic
from penumbra.bags.translation import Translation, one_line
from penumbra.errors import PenumbraError
from penumbra.text import LONGEST_LINE, printable

GROUND_TRUTH = "/ground_truth/"
_SHOWN = 20  # names in one line
Read = Callable[[Collection[StoredTopic]], Found]
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
    warn = warn or warn_on_stderr
    files = storage_files(path)
    try:
        return _opened(path, files, warn)
    except PenumbraError:
        raise
    except NoIndexError:
        return _salvaged(path, files, warn, None)
    except Exception as error:  # damaged files raise errors of many kinds
        return _salvaged(path, files, warn, error)


class Bag:
    """The messages of a bag in the order of their time, decoded or as bytes."""

    def __init__(
        self,
        path: Path,
        stored: list[StoredTopic],
        read: Read,
        warn: Warn,
        close: Callable[[], None] = lambda: None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self.path = path
        self.warn = warn
        self._stored = stored
        self._read = read
        self._close = close
        try:
            self._translation = Translation(stored, lambda text: warn(f"{path}: {text}"))
            by_name: dict[str, list[StoredTopic]] = {}
            for topic in stored:
                by_name.setdefault(topic.name, []).append(topic)
            self.topics = {
                name: self._topic(name, parts, (counts or {}).get(name))
                for name, parts in by_name.items()
            }
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
        stored = [topic for topic in self._stored if topic.name in wanted]
        expected = sum(topic.count for topic in wanted.values())
        clocks = _ClockCheck(self)
        done = 0
        size = sum(file.stat().st_size for file in {topic.file for topic in stored})
        budget = Budget(self.path, size)
        messages = self._read(stored) if stored else iter(())
        while True:
            try:
                topic, stamp, data = next(messages)
                if not topic.ros1:
                    data = budget.unpack_message(data)
                recorded = RawMessage(
                    topic.name, stamp, self._translation.convert(topic.type, data)
                )
                clocks.check(recorded)
            except StopIteration:
                if done < expected:
                    self.warn(
                        f"{self.path} is damaged: only {done} of {expected} messages are found"
                    )
                return
            except LimitError:
                raise
            except Exception as error:  # damaged files raise errors of many kinds
                self.warn(
                    f"{self.path} is damaged after message {done}; the rest is lost:"
                    f" {one_line(error)}"
                )
                return
            yield recorded
            done += 1

    def decode(self, recorded: RawMessage) -> Any:
        """The message, with the fields that its definition names."""
        kind = self.topic(recorded.topic).type
        try:
            return self._translation.decode(kind, recorded.data)
        except PenumbraError:
            raise
        except Exception as error:  # rosbags raises many kinds of errors on damaged messages
            raise PenumbraError(
                f"a message of {printable(recorded.topic)} in {self.path} is damaged:"
                f" {one_line(error)}"
            ) from error

    def topic(self, name: str) -> Topic:
        """The topic of that name, or an error that lists the topics of the bag."""
        if name not in self.topics:
            there = _listed(sorted(self.topics))
            raise PenumbraError(f"no topic {printable(name)} in {self.path}: it has {there}")
        return self.topics[name]

    def image_topic(self, name: str | None = None) -> Topic:
        """The topic of the camera images: `name`, or the only one that is not ground truth."""
        if name is not None:
            topic = self.topic(name)
            if topic.type not in IMAGES:
                raise PenumbraError(
                    f"{printable(name)} in {self.path} holds {printable(topic.type)}: images are"
                    f" {' or '.join(IMAGES)}"
                )
            return topic
        images = [topic for topic in self.topics.values()
                  if topic.type in IMAGES and not topic.name.startswith(GROUND_TRUTH)]  # fmt: skip
        if len(images) == 1:
            return images[0]
        there = _listed([f"{t.name} ({t.type})" for t in images or self.topics.values()])
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

    def _topic(self, name: str, parts: list[StoredTopic], count: int | None) -> Topic:
        types = sorted({self._translation.name(part.type) for part in parts})
        if len(types) > 1:
            raise PenumbraError(
                f"{printable(name)} in {self.path} holds messages of two types: {_listed(types)}"
            )
        return Topic(
            name,
            types[0],
            sum(part.count for part in parts) if count is None else count,
            any(part.latched for part in parts),
            all(part.reliable for part in parts),
        )


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
                f"{self._bag.path}: time runs backwards by {back / SECOND:.3f} s in"
                f" {printable(clock)} (at a message of {printable(topic)} with"
                f" {now / SECOND:.3f} s): are these several recordings, or was a clock set?"
                " Messages keep their stored order"
            )
        self._last[clock] = now


def _opened(path: Path, files: list[Path], warn: Warn) -> Bag:
    """The bag, by the indexes of its files."""
    metadata = read_metadata(path) if path.is_dir() else FolderMetadata(files, {})
    scratch = _Scratch()
    storages: dict[Path, Storage] = {}

    def close() -> None:
        for storage in storages.values():
            storage.close()
        scratch.cleanup()

    try:
        for file in scratch.unpacked(metadata.files):
            storages[file] = open_storage(file)
        topics = [topic for storage in storages.values() for topic in storage.topics]
        named = {name for name, count in metadata.counts.items() if count}
        if named - {topic.name for topic in topics}:
            raise ValueError(f"its files lack topics that {METADATA} names")
    except BaseException:
        close()
        raise

    def read(wanted: Collection[StoredTopic]) -> Found:
        for file, storage in storages.items():
            numbers = {topic.number for topic in wanted if topic.file == file}
            if numbers:
                yield from storage.messages(numbers)

    return Bag(path, topics, read, warn, close, metadata.counts)


def _salvaged(path: Path, files: list[Path], warn: Warn, why: Exception | None) -> Bag:
    """The readable part of a bag that has no whole index because of `why` (None: all of it)."""
    scratch = _Scratch()
    try:
        files = scratch.unpacked(files)
        topics: dict[tuple[Path, int], StoredTopic] = {}
        counts: dict[tuple[Path, int], int] = {}
        found: list[Exception] = [] if why is None else [why]
        for file in files:
            for topic, _, _ in salvage(file, found.append):
                key = file, topic.number
                topics.setdefault(key, topic)
                counts[key] = counts.get(key, 0) + 1
        total = sum(counts.values())
        why = found[0] if found else None
        if not total and why is None:
            raise PenumbraError(f"{path} holds no messages: nothing was recorded")
        if not total:
            raise PenumbraError(
                f"{path} cannot be read, and no message can be recovered: {one_line(why)}"
            )
    except BaseException:
        scratch.cleanup()
        raise
    if why is not None:
        warn(f"{path} is truncated or damaged ({one_line(why)}): {total} messages recovered")

    def read(wanted: Collection[StoredTopic]) -> Found:
        ours = {(topic.file, topic.number) for topic in wanted}
        for file in files:
            for topic, stamp, data in salvage(file):
                if (file, topic.number) in ours:
                    yield topic, stamp, data

    counted = [replace(topic, count=counts[key]) for key, topic in topics.items()]
    return Bag(path, counted, read, warn, scratch.cleanup)


class _Scratch:
    """A temporary folder for unpacked files, made when there is one to unpack."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None

    def unpacked(self, files: list[Path]) -> list[Path]:
        """The files, those that are compressed as a whole replaced by their content."""
        try:
            return [self._unpack(file) if file.suffix == PACKED else file for file in files]
        except OSError as error:
            raise PenumbraError(
                f"cannot unpack {files[0].parent}: {error.strerror}; free some space"
            ) from error

    def _unpack(self, file: Path) -> Path:
        self._folder = self._folder or TemporaryDirectory()
        return unpack_file(file, Path(self._folder.name))

    def cleanup(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.cleanup()


def _listed(names: list[str]) -> str:
    """Names in one line; of very many, the first."""
    shown = [printable(name) for name in names[:_SHOWN]]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*shown, *more])


def warn_on_stderr(text: str) -> None:
    """Print a warning in one line, whatever it contains."""
    print(f"penumbra: warning: {printable(text, LONGEST_LINE)}", file=sys.stderr)
