"""Recover the messages of a truncated bag: sequentially, without its index, up to the first gap.

Each function reads one file from its beginning and yields rosbags' (Connection, nanoseconds,
bytes). It ends, without an error, where the file is damaged.
"""

from __future__ import annotations

import bz2
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from lz4.frame import LZ4FrameDecompressor
from rosbags.interfaces import (
    Connection,
    ConnectionExtRosbag1,
    ConnectionExtRosbag2,
    MessageDefinition,
    MessageDefinitionFormat,
    Qos,
)
from rosbags.rosbag2.metadata import parse_qos
from rosbags.typesys.msg import normalize_msgtype

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # as rosbags does

Found = Iterator[tuple[Connection, int, bytes]]
_FORMATS = {"ros2msg": MessageDefinitionFormat.MSG, "ros2idl": MessageDefinitionFormat.IDL}
_NO_DEFINITION = MessageDefinition(MessageDefinitionFormat.NONE, "")
# Errors that a parser raises on damaged bytes.
_END = (EOFError, OSError, struct.error, KeyError, ValueError)
_MOST = 2**31  # bytes in one record: a larger size is damage, and must not be allocated
_ZSTD = b"\x28\xb5\x2f\xfd"  # magic number; CDR begins with a zero


def salvage(file: Path) -> Found:
    """The messages of a .mcap, .db3 or .bag file in the order of writing."""
    walk = {".mcap": _mcap, ".db3": _sqlite3, ".bag": _ros1}[file.suffix]
    return walk(file)


def unpacked_file(file: Path, folder: Path) -> Path:
    """Decompress a storage file that rosbag2 has compressed as a whole, as far as possible."""
    target = folder / file.stem
    with file.open("rb") as packed, target.open("wb") as plain:
        decompressor = zstd.ZstdDecompressor()
        try:
            while not decompressor.eof and (block := packed.read(1 << 20)):
                plain.write(decompressor.decompress(block))
        except zstd.ZstdError:  # damaged from here on
            pass
    return target


def unpacked_message(data: bytes) -> bytes:
    """Decompress a message if it is compressed; only metadata.yaml says whether it should be."""
    return zstd.decompress(data) if bytes(data[:4]) == _ZSTD else data


def _take(source: BinaryIO, size: int) -> bytes:
    data = _up_to(source, size)
    if len(data) != size:
        raise EOFError
    return data


def _up_to(source: BinaryIO, size: int) -> bytes:
    if not 0 <= size < _MOST:
        raise EOFError
    return source.read(size)


def _qos(text: str) -> list[Qos]:
    try:
        return parse_qos(text)
    except Exception:  # damaged YAML raises many kinds of errors, and the QoS is not essential
        return []


def _unpacked(decompressor: Any, data: bytes) -> BinaryIO:
    """Decompress data, of a truncated block as much as possible."""
    try:
        return BytesIO(decompressor.decompress(data))
    except Exception as error:  # bz2, lz4 and zstd each have their own error
        raise EOFError from error


class _Plain:
    """Stands in for a decompressor where data is not compressed."""

    def decompress(self, data: bytes) -> bytes:
        return data


# --- MCAP: records of one byte (what it is), eight (how long) and the content -------------------


def _mcap(file: Path) -> Found:
    schemas: dict[int, tuple[str, MessageDefinition]] = {}
    channels: dict[int, Connection] = {}
    try:
        with file.open("rb") as source:
            if source.read(8) == b"\x89MCAP0\r\n":
                yield from _mcap_records(source, file, schemas, channels)
    except _END:
        return


def _mcap_records(
    source: BinaryIO,
    file: Path,
    schemas: dict[int, tuple[str, MessageDefinition]],
    channels: dict[int, Connection],
) -> Found:
    while kind := source.read(1):
        (size,) = struct.unpack("<Q", _take(source, 8))
        if kind == b"\x06" and not isinstance(source, BytesIO):  # a chunk of records, never nested
            yield from _mcap_records(_mcap_chunk(source, size), file, schemas, channels)
            continue
        record = BytesIO(_take(source, size))
        if kind == b"\x03":
            (number,) = struct.unpack("<H", record.read(2))
            name, encoding, text = (_mcap_string(record) for _ in range(3))
            known = _FORMATS.get(encoding)
            schemas[number] = name, MessageDefinition(known, text) if known else _NO_DEFINITION
        elif kind == b"\x04":
            number, schema = struct.unpack("<HH", record.read(4))
            topic, encoding = _mcap_string(record), _mcap_string(record)
            _take(record, 4)  # the size of the pairs that follow
            pairs = {}
            while record.tell() < size:
                key = _mcap_string(record)
                pairs[key] = _mcap_string(record)
            qos = ConnectionExtRosbag2(encoding, _qos(pairs.get("offered_qos_profiles", "")))
            channels[number] = Connection(number, topic, *schemas[schema], "", 0, qos, file)
        elif kind == b"\x05":
            number, _, stamp, _ = struct.unpack("<HIQQ", _take(record, 22))
            yield channels[number], stamp, record.read()
        elif kind == b"\x0f":  # the end of the data
            return


def _mcap_chunk(source: BinaryIO, size: int) -> BinaryIO:
    """The records of a chunk; of a truncated one, the bytes that are left."""
    head = 28
    _take(source, head)
    compression = _mcap_string(source)
    (stored,) = struct.unpack("<Q", _take(source, 8))
    data = _up_to(source, stored)
    _up_to(source, size - head - 4 - len(compression.encode()) - 8 - stored)
    kinds: dict[str, Callable[[], Any]] = {
        "": _Plain, "lz4": LZ4FrameDecompressor, "zstd": zstd.ZstdDecompressor
    }  # fmt: skip
    return _unpacked(kinds[compression](), data)


def _mcap_string(source: BinaryIO) -> str:
    return _take(source, struct.unpack("<I", _take(source, 4))[0]).decode()


# --- sqlite3 -------------------------------------------------------------------------------------


def _sqlite3(file: Path) -> Found:
    """Rows by id, which does not need the index at the end of the file."""
    try:
        database = sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)
    except sqlite3.Error:
        return
    try:
        # Otherwise sqlite refuses a file with fewer pages than its header states.
        database.execute("PRAGMA writable_schema = ON")
        topics = _sqlite3_topics(database, file)
        for topic, stamp, data in database.execute(
            "SELECT topic_id, timestamp, data FROM messages ORDER BY id"
        ):
            if topic in topics and isinstance(data, bytes):
                yield topics[topic], stamp, data
    except (sqlite3.Error, *_END):
        return
    finally:
        database.close()


def _sqlite3_topics(database: sqlite3.Connection, file: Path) -> dict[int, Connection]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    definitions = {}
    if "message_definitions" in tables:
        query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
        for name, encoding, text in database.execute(query):
            if encoding in _FORMATS:
                definitions[name] = MessageDefinition(_FORMATS[encoding], text)
    columns = [row[1] for row in database.execute("PRAGMA table_info(topics)")]
    topics = {}
    for row in database.execute("SELECT * FROM topics"):
        values = dict(zip(columns, row, strict=True))
        qos = _qos(values.get("offered_qos_profiles", ""))
        topics[values["id"]] = Connection(
            values["id"],
            values["name"],
            values["type"],
            definitions.get(values["type"], _NO_DEFINITION),
            "",
            0,
            ConnectionExtRosbag2(values["serialization_format"], qos),
            file,
        )
    return topics


# --- ROS 1: records of a header (name=value fields) and data, both preceded by their length -------


def _ros1(file: Path) -> Found:
    connections: dict[int, Connection] = {}
    try:
        with file.open("rb") as source:
            if source.readline() == b"#ROSBAG V2.0\n":
                yield from _ros1_records(source, file, connections)
    except _END:
        return


def _ros1_records(source: BinaryIO, file: Path, connections: dict[int, Connection]) -> Found:
    while length := source.read(4):
        header = _ros1_fields(_take(source, *struct.unpack("<I", length)))
        (size,) = struct.unpack("<I", _take(source, 4))
        kind = header["op"][0]
        if kind == 5 and not isinstance(source, BytesIO):  # a chunk of records, never nested
            yield from _ros1_records(_ros1_chunk(source, size, header), file, connections)
            continue
        data = _take(source, size)
        if kind == 7:
            (number,) = struct.unpack("<I", header["conn"])
            inner = {name: value.decode() for name, value in _ros1_fields(data).items()}
            definition = MessageDefinition(MessageDefinitionFormat.MSG, inner["message_definition"])
            latching = int(inner.get("latching") or 0)
            connections[number] = Connection(
                number,
                header["topic"].decode(),
                normalize_msgtype(inner["type"]),
                definition,
                inner["md5sum"],
                0,
                ConnectionExtRosbag1(inner.get("callerid"), latching),
                file,
            )
        elif kind == 2:
            (number,) = struct.unpack("<I", header["conn"])
            seconds, nanoseconds = struct.unpack("<II", header["time"])
            yield connections[number], seconds * 10**9 + nanoseconds, data


def _ros1_chunk(source: BinaryIO, size: int, header: dict[str, bytes]) -> BinaryIO:
    kinds = {b"none": _Plain, b"bz2": bz2.BZ2Decompressor, b"lz4": LZ4FrameDecompressor}
    return _unpacked(kinds[header["compression"]](), _up_to(source, size))


def _ros1_fields(data: bytes) -> dict[str, bytes]:
    fields, place = {}, 0
    while place < len(data):
        (size,) = struct.unpack_from("<I", data, place)
        name, _, value = data[place + 4 : place + 4 + size].partition(b"=")
        fields[name.decode()] = value
        place += 4 + size
    return fields
