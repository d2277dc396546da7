"""MCAP: records of one byte (what it is), eight (how long) and the content."""

from __future__ import annotations

import heapq
import struct
from binascii import crc32
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from rosbags.interfaces import MessageDefinition

from penumbra.bags.limits import LARGEST_CHUNK, MIB, MOST_TOPICS, Budget, LimitError
from penumbra.bags.stored import (
    FORMATS,
    NO_DEFINITION,
    Found,
    NoIndexError,
    StoredTopic,
    offered_qos,
)

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER = struct.Struct("<BQQQI8s")
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _CHUNK_INDEX, _STATISTICS = 3, 4, 5, 6, 8, 11
_DATA_END, _SUMMARY_END = 15, (2, 14)
_HEAD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")


@dataclass(frozen=True)
class _ChunkIndex:
    start: int
    offset: int
    numbers: frozenset[int]


class _Topics:
    """Schemas and channels, as records define them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._schemas: dict[int, tuple[str, MessageDefinition]] = {}
        self.channels: dict[int, StoredTopic] = {}

    def take(self, kind: int, content: bytes) -> None:
        """Take the record, if it is a schema or a channel."""
        if kind == _SCHEMA:
            number, name, encoding, text = _fields(content, "<H", 3)
            known = FORMATS.get(encoding)
            self._schemas[number] = name, MessageDefinition(known, text) if known else NO_DEFINITION
            self._check(len(self._schemas))
        elif kind == _CHANNEL:
            number, schema, name, _encoding, size = _fields(content, "<HH", 2, "<I")
            pairs = _pairs(memoryview(content)[len(content) - size :])
            kind_name, definition = self._schemas[schema]
            qos = offered_qos(pairs.get("offered_qos_profiles", ""))
            self.channels[number] = StoredTopic(
                number, name, kind_name, definition, self._file, **qos
            )
            self._check(len(self.channels))

    def _check(self, count: int) -> None:
        if count > MOST_TOPICS:
            raise LimitError(f"{self._file} has more than {MOST_TOPICS} topics or schemas")


class McapFile:
    """An MCAP with an index: chunks are found and read by their time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._source = file.open("rb")
        try:
            self._size = file.stat().st_size
            self._chunks: list[_ChunkIndex] = []
            self.topics = self._summary()
        except BaseException:
            self._source.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _summary(self) -> list[StoredTopic]:
        if self._source.read(8) != _MAGIC:
            raise ValueError("it does not begin as an MCAP")
        if self._size < 8 + _FOOTER.size:
            raise EOFError("it ends before its footer")
        self._source.seek(self._size - _FOOTER.size)
        kind, length, start, _, _, magic = _FOOTER.unpack(self._source.read())
        if (kind, length, magic) != (2, 20, _MAGIC):
            raise EOFError("it has no footer at its end")
        if not start:
            raise NoIndexError
        self._source.seek(start)
        budget = Budget(self._file, self._size)
        topics = _Topics(self._file)
        counts: dict[int, int] | None = None
        for kind, size in _heads(self._source, budget):
            if kind in _SUMMARY_END:
                break
            content = _exactly(self._source, budget.allow(size, "record"))
            topics.take(kind, content)
            if kind == _CHUNK_INDEX:
                self._chunks.append(_chunk_index(content))
            elif kind == _STATISTICS:
                (pairs,) = struct.unpack_from("<I", content, 42)
                counts = dict(struct.iter_unpack("<HQ", _slice(content, 46, pairs)))
        if counts is None or not counts.keys() <= topics.channels.keys() or not self._chunks:
            raise NoIndexError
        return [replace(c, count=counts.get(n, 0)) for n, c in topics.channels.items()]

    def messages(self, numbers: Collection[int]) -> Found:
        """The messages of these topics in the order of their time; chunks may overlap in it."""
        budget = Budget(self._file, self._size)
        by_number = {topic.number: topic for topic in self.topics if topic.number in numbers}
        chosen = [c for c in self._chunks if not c.numbers or c.numbers & by_number.keys()]
        waiting = sorted(chosen, key=lambda chunk: chunk.start, reverse=True)
        queue: list[tuple[int, int, int, int, int, bytes, Iterator[_Place]]] = []
        opened = held = 0

        def push(number: int, data: bytes, places: Iterator[_Place]) -> bool:
            for stamp, begin, end, channel in places:
                heapq.heappush(queue, (stamp, number, begin, end, channel, data, places))
                return True
            return False

        while waiting or queue:
            while waiting and (not queue or waiting[-1].start <= queue[0][0]):
                data = self._chunk(waiting.pop(), budget)
                held += len(data)
                if held > 2 * LARGEST_CHUNK:
                    raise LimitError(
                        f"{self._file} has more than {2 * LARGEST_CHUNK // MIB} MiB of chunks that"
                        " overlap in time"
                    )
                opened += 1
                places = sorted(_places(data, by_number.keys(), budget))
                if not push(opened, data, iter(places)):
                    held -= len(data)
            if queue:
                stamp, number, begin, end, channel, data, places_left = heapq.heappop(queue)
                yield by_number[channel], stamp, data[begin:end]
                if not push(number, data, places_left):
                    held -= len(data)

    def _chunk(self, index: _ChunkIndex, budget: Budget) -> bytes:
        self._source.seek(index.offset)
        kind, size = _HEAD.unpack(_exactly(self._source, _HEAD.size))
        if kind != _CHUNK:
            raise ValueError("its index names a chunk where there is none")
        return _chunk(self._source, size, budget, whole=True)


_Place = tuple[int, int, int, int]  # stamp, begin and end of the message, channel


def _places(data: bytes, wanted: Collection[int], budget: Budget) -> Iterator[_Place]:
    for kind, begin, end in _records(data, budget):
        if kind == _MESSAGE:
            channel, _, stamp, _ = _MESSAGE_HEAD.unpack_from(data, begin)
            if channel in wanted:
                yield stamp, begin + _MESSAGE_HEAD.size, end, channel


def salvage_mcap(file: Path) -> Found:
    """The messages in the order of writing, up to the first damage."""
    with file.open("rb") as source:
        if source.read(8) != _MAGIC:
            return
        budget = Budget(file, file.stat().st_size)
        topics = _Topics(file)
        for kind, size in _heads(source, budget):
            if kind == _DATA_END:
                return
            if kind == _CHUNK:
                data = _chunk(source, size, budget, whole=False)
            else:
                content = _exactly(source, budget.allow(size, "record"))
                data = _HEAD.pack(kind, size) + content
                budget.read(len(data))
            for inner, begin, end in _records(data, budget):
                if inner == _MESSAGE:
                    channel, _, stamp, _ = _MESSAGE_HEAD.unpack_from(data, begin)
                    yield topics.channels[channel], stamp, data[begin + _MESSAGE_HEAD.size : end]
                else:
                    topics.take(inner, data[begin:end])
    raise EOFError("it ends before the end of its data")


def _heads(source: BinaryIO, budget: Budget) -> Iterator[tuple[int, int]]:
    """Kind and size of each record; the caller reads its content."""
    while head := source.read(_HEAD.size):
        budget.records(1)
        yield _HEAD.unpack(head)


def _records(data: bytes, budget: Budget) -> Iterator[tuple[int, int, int]]:
    """Kind, begin and end of the records in `data`; raises where they are cut."""
    place, count, size = 0, 0, len(data)
    while place < size:
        kind, length = _HEAD.unpack_from(data, place)
        begin = place + _HEAD.size
        place = begin + length
        if place > size:
            raise EOFError("a record is cut")
        count += 1
        if not count & 1023:
            budget.records(1024)
        yield kind, begin, place
    budget.records(count & 1023)


def _chunk(source: BinaryIO, size: int, budget: Budget, whole: bool) -> bytes:
    """The records of a chunk whose head was read; of a cut one, if allowed, what is left."""
    _, _, unpacked, crc, name = struct.unpack("<QQQII", _exactly(source, 32))
    budget.allow(unpacked, "chunk")
    compression = _exactly(source, min(name, 64)).decode()
    (stored,) = struct.unpack("<Q", _exactly(source, 8))
    budget.allow(stored, "chunk")
    data = source.read(stored)
    rest = size - 40 - name - stored
    if rest < 0 or (whole and len(data) < stored):
        raise EOFError("a chunk is cut")
    source.seek(rest, 1)
    content = budget.unpack(compression, data, whole)
    if whole and (len(content) != unpacked or (crc and crc32(content) != crc)):
        raise ValueError("the checksum of a chunk is wrong")
    return content


def _chunk_index(content: bytes) -> _ChunkIndex:
    start, _, offset, _, size = struct.unpack_from("<QQQQI", content)
    pairs = struct.iter_unpack("<HQ", _slice(content, 36, size))
    return _ChunkIndex(start, offset, frozenset(number for number, _ in pairs))


def _fields(content: bytes | memoryview, head: str, strings: int, tail: str = "<") -> list[Any]:
    """Numbers, then strings that are preceded by their length, then numbers."""
    found: list[int | str] = [*struct.unpack_from(head, content)]
    place = struct.calcsize(head)
    for _ in range(strings):
        (size,) = struct.unpack_from("<I", content, place)
        found.append(_slice(content, place + 4, size).decode())
        place += 4 + size
    return [*found, *struct.unpack_from(tail, content, place)]


def _pairs(content: memoryview) -> dict[str, str]:
    pairs = {}
    while content:
        key, value = _fields(content, "<", 2)
        pairs[key] = value
        content = content[8 + len(key.encode()) + len(value.encode()) :]
    return pairs


def _slice(content: bytes | memoryview, place: int, size: int) -> bytes:
    if place + size > len(content):
        raise EOFError("a record is cut")
    return bytes(content[place : place + size])


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise EOFError("it ends within a record")
    return data
