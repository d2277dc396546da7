"""ROS 1: records of a header (name=value fields) and data, both preceded by their length."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat
from rosbags.typesys.msg import normalize_msgtype

from penumbra.bags.limits import MOST_TOPICS, Budget, LimitError
from penumbra.bags.stored import Found, StoredTopic

_MAGIC = b"#ROSBAG V2.0\n"
_MESSAGE, _BAG, _INDEX, _CHUNK, _CHUNK_INFO, _CONNECTION = 2, 3, 4, 5, 6, 7
_ENTRY = struct.Struct("<III")  # seconds, nanoseconds, offset in the chunk
Fields = dict[str, bytes]


@dataclass(frozen=True)
class _StoredChunk:
    compression: str
    begin: int
    size: int


class Ros1File:
    """A ROS 1 bag with an index."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._source = file.open("rb")
        self._size = file.stat().st_size
        self._chunks: dict[int, _StoredChunk] = {}
        self._index: dict[int, list[tuple[int, int, int]]] = {}
        self._entries = 0
        try:
            self.topics = self._summary()
        except BaseException:
            self._source.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _summary(self) -> list[StoredTopic]:
        magic = self._source.readline(80)
        if magic != _MAGIC:
            version = magic.decode(errors="replace").strip()
            raise ValueError(f"version {version!r} is not supported")
        budget = Budget(self._file, self._size)
        header = self._head(_BAG)
        (begin,) = struct.unpack("<Q", header["index_pos"])
        connections, chunks = (_number(header, name) for name in ("conn_count", "chunk_count"))
        if header.get("encryptor"):
            raise ValueError("it is encrypted")
        if not begin:
            raise EOFError("it has no index: it was not closed")
        self._source.seek(begin)
        topics = {}
        for _ in range(connections):
            budget.records(1)
            topic = _topic(self._head(_CONNECTION), _sized(self._source), self._file)
            topics[topic.number] = topic
            _check(len(topics), self._file)
        places = []
        for _ in range(chunks):
            budget.records(1)
            header = self._head(_CHUNK_INFO)
            (place,) = struct.unpack("<Q", header["chunk_pos"])
            places.append((place, _number(header, "count")))
            _sized(self._source)
        for place, count in places:
            self._read_index(place, count, budget)
        counts = {number: len(entries) for number, entries in self._index.items()}
        return [replace(topic, count=counts.get(n, 0)) for n, topic in topics.items()]

    def _read_index(self, place: int, count: int, budget: Budget) -> None:
        """The chunk at `place`, and the `count` index records after it."""
        if place in self._chunks:
            raise ValueError("its index names a chunk twice")
        self._source.seek(place)
        header = self._head(_CHUNK)
        budget.allow(_number(header, "size"), "chunk")
        size = budget.allow(_length(self._source), "chunk")
        compression = header["compression"].decode()
        self._chunks[place] = _StoredChunk(compression, self._source.tell(), size)
        self._source.seek(size, 1)
        for _ in range(count):
            budget.records(1)
            number = _number(self._head(_INDEX), "conn")
            data = _sized(self._source)
            self._entries += len(data) // _ENTRY.size
            if self._entries * _ENTRY.size > self._size:
                raise ValueError("its index is larger than the file")
            entries = self._index.setdefault(number, [])
            for seconds, nanoseconds, offset in _ENTRY.iter_unpack(data):
                entries.append((seconds * 10**9 + nanoseconds, place, offset))

    def _head(self, expected: int) -> Fields:
        header = _header(self._source)
        if header["op"][0] != expected:
            raise ValueError(f"record {header['op'][0]} stands where {expected} is expected")
        return header

    def messages(self, numbers: Collection[int]) -> Found:
        """The messages of these topics in the order of their time."""
        budget = Budget(self._file, self._size)
        by_number = {topic.number: topic for topic in self.topics if topic.number in numbers}
        entries = (sorted(self._index.get(number, [])) for number in by_number)
        opened, chunk, unread = -1, BytesIO(), 0
        for stamp, place, offset in heapq.merge(*entries):
            if place != opened:
                content = self._unpacked(self._chunks[place], budget)
                opened, chunk, unread = place, BytesIO(content), len(content)
            chunk.seek(offset)
            while True:
                budget.records(1)
                header, data = _header(chunk), _sized(chunk)
                unread -= len(data)
                if unread < 0:  # an index may name one record many times
                    budget.read(-unread)
                    unread = 0
                if header["op"][0] != _CONNECTION:  # some writers point to it
                    break
            if header["op"][0] != _MESSAGE or _stamp(header) != stamp:
                raise ValueError("its index names a message where there is none")
            yield by_number[_number(header, "conn")], stamp, data

    def _unpacked(self, chunk: _StoredChunk, budget: Budget) -> bytes:
        self._source.seek(chunk.begin)
        data = self._source.read(chunk.size)
        if len(data) < chunk.size:
            raise EOFError("a chunk is cut")
        return budget.unpack(chunk.compression, data, whole=True)


def salvage_ros1(file: Path) -> Found:
    """The messages in the order of writing, up to the first damage."""
    with file.open("rb") as source:
        if source.readline(80) != _MAGIC:
            return
        budget = Budget(file, file.stat().st_size)
        topics: dict[int, StoredTopic] = {}
        for header in _headers(source, budget):
            if header["op"][0] == _CHUNK:
                budget.allow(_number(header, "size"), "chunk")
                data = source.read(budget.allow(_length(source), "chunk"))
                unpacked = budget.unpack(header["compression"].decode(), data, whole=False)
                inside = BytesIO(unpacked)
                for inner in _headers(inside, budget):
                    yield from _take(inner, _sized(inside), file, topics)
            else:
                data = _sized(source)
                budget.read(len(data))
                yield from _take(header, data, file, topics)


def _headers(source: BinaryIO, budget: Budget) -> Iterator[Fields]:
    while length := source.read(4):
        budget.records(1)
        (size,) = struct.unpack("<I", length)
        yield _fields(_bytes(source, size))


def _take(header: Fields, data: bytes, file: Path, topics: dict[int, StoredTopic]) -> Found:
    kind = header["op"][0]
    if kind == _CONNECTION:
        topic = _topic(header, data, file)
        topics[topic.number] = topic
        _check(len(topics), file)
    elif kind == _MESSAGE:
        yield topics[_number(header, "conn")], _stamp(header), data


def _topic(header: Fields, data: bytes, file: Path) -> StoredTopic:
    fields = _fields(data)
    name = header["topic"].decode()
    parts = "/".join(part for part in name.split("/") if part)
    definition = fields["message_definition"].decode()
    return StoredTopic(
        _number(header, "conn"),
        f"/{parts}" if name.startswith("/") else parts,
        normalize_msgtype(fields["type"].decode()),
        MessageDefinition(MessageDefinitionFormat.MSG, definition),
        file,
        ros1=True,
        latched=fields.get("latching", b"0") == b"1",
    )


def _check(count: int, file: Path) -> None:
    if count > MOST_TOPICS:
        raise LimitError(f"{file} has more than {MOST_TOPICS} topics")


def _header(source: BinaryIO) -> Fields:
    return _fields(_bytes(source, _length(source)))


def _fields(data: bytes) -> Fields:
    fields, place = {}, 0
    while place < len(data):
        (size,) = struct.unpack_from("<I", data, place)
        if place + 4 + size > len(data):
            raise EOFError("a header is cut")
        name, _, value = data[place + 4 : place + 4 + size].partition(b"=")
        fields[name.decode()] = value
        place += 4 + size
    return fields


def _number(header: Fields, name: str) -> int:
    return int(struct.unpack("<I", header[name])[0])


def _stamp(header: Fields) -> int:
    seconds, nanoseconds = struct.unpack("<II", header["time"])
    return int(seconds) * 10**9 + int(nanoseconds)


def _length(source: BinaryIO) -> int:
    return int(struct.unpack("<I", source.read(4))[0])


def _sized(source: BinaryIO) -> bytes:
    return _bytes(source, _length(source))


def _bytes(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise EOFError("it ends within a record")
    return data
