"""Bags that an attacker would write, byte by byte; and a process with limits that reads one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import StoragePlugin

from penumbra.bags.messages import START_NS

BOMB = Path(__file__).parent / "bags" / "bomb.bz2"
"""1,521 bytes that unpack to 2,113,929,216 zeros."""
STRING = b"\x00\x01\x00\x00\x02\x00\x00\x00a\x00\x00\x00"
"""CDR of std_msgs/String."""
BLOCK = 2**17  # the largest block of zstd
MEMORY = 700 * 2**20
"""Bytes that reading may take on top of the imports: two chunks of the largest size, and a bit."""
SECONDS = 20
"""Of computing time, imports included. A hostile bag is refused within 5 s on a slow machine."""

_CHILD = """
import json, resource, sys
from pathlib import Path
from penumbra.bags import open_bag
from penumbra.bags.messages import jazzy
from penumbra.errors import PenumbraError

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]),) * 2)
told, count, error = [], 0, None
try:
    with open_bag(Path(sys.argv[1]), told.append) as bag:
        for recorded in bag.raw():
            count += 1
            if count < 100:
                try:
                    bag.decode(recorded)
                except PenumbraError:
                    pass
except PenumbraError as problem:
    error = str(problem)
print(json.dumps({"warnings": told, "messages": count, "error": error}))
"""


@dataclass(frozen=True)
class Outcome:
    """What reading a bag came to."""

    warnings: list[str]
    messages: int
    error: str | None

    @property
    def lines(self) -> list[str]:
        """Everything that the user is told."""
        return [*self.warnings, *([] if self.error is None else [self.error])]


def read_within_limits(path: Path) -> Outcome:
    """Read a bag in a process whose memory and computing time are limited."""
    words = [sys.executable, "-c", _CHILD, str(path), str(MEMORY), str(SECONDS)]
    done = subprocess.run(words, cwd=path.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    assert done.stderr == ""
    outcome = Outcome(**json.loads(done.stdout))
    assert all(line.isprintable() and len(line) < 2000 for line in outcome.lines)
    return outcome


def zstd_bomb(unpacked: int, declared: bool, begin: bytes = b"") -> bytes:
    """A frame that begins with `begin` and repeats a zero: four bytes for each 128 KiB."""
    head = b"\xe0" + struct.pack("<Q", unpacked) if declared else b"\x00\x38"  # a window of 128 KiB
    blocks = [struct.pack("<I", len(begin) << 3)[:3] + begin] if begin else []
    count = max(1, (unpacked - len(begin)) // BLOCK)
    repeat = struct.pack("<I", BLOCK << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", BLOCK << 3 | 1 << 1 | 1)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd" + head + b"".join(blocks) + repeat * (count - 1) + last


def mcap_record(kind: int, content: bytes, size: int | None = None) -> bytes:
    """A record, with another size than it has if that is given."""
    return struct.pack("<BQ", kind, len(content) if size is None else size) + content


def mcap_chunk(compression: str, data: bytes, unpacked: int = 0) -> bytes:
    """An MCAP without an index and with one chunk."""
    name = compression.encode()
    head = struct.pack("<QQQII", 0, 1, unpacked, 0, len(name)) + name
    chunk = head + struct.pack("<Q", len(data)) + data
    return b"\x89MCAP0\r\n" + mcap_record(1, bytes(8)) + mcap_record(6, chunk)


def mcap_of(path: Path, schemas: list[tuple[str, str, str]], data: bytes = STRING) -> Path:
    """A whole MCAP with a topic and a message for each schema (name, encoding, text)."""
    with path.open("wb") as stream:
        writer = McapWriter(stream, compression=CompressionType.NONE)
        writer.start("ros2")
        for number, (name, encoding, text) in enumerate(schemas):
            schema = writer.register_schema(name, encoding, text.encode())
            channel = writer.register_channel(f"/topic{number}", "cdr", schema)
            writer.add_message(channel, START_NS, data, START_NS)
        writer.finish()
    return path


def ros1_record(head: dict[str, bytes], data: bytes, size: int | None = None) -> bytes:
    """A record, with another size of its data than it has if that is given."""
    fields = b"".join(
        struct.pack("<I", len(name) + 1 + len(value)) + name.encode() + b"=" + value
        for name, value in head.items()
    )
    length = len(data) if size is None else size
    return struct.pack("<I", len(fields)) + fields + struct.pack("<I", length) + data


def ros1_of(chunk: bytes, compression: str = "none", size: int | None = None) -> bytes:
    """A ROS 1 bag without an index and with one chunk."""
    bag = {"op": b"\x03", "index_pos": bytes(8), "conn_count": bytes(4), "chunk_count": bytes(4)}
    unpacked = struct.pack("<I", min(len(chunk) if size is None else size, 2**32 - 1))
    head = {"op": b"\x05", "compression": compression.encode(), "size": unpacked}
    return b"#ROSBAG V2.0\n" + ros1_record(bag, b" " * 64) + ros1_record(head, chunk)


def ros1_connection(number: int = 0, text: str = "string data\n") -> bytes:
    """The record of a topic."""
    fields = {"type": b"std_msgs/String", "md5sum": b"*", "message_definition": text.encode()}
    data = b"".join(
        struct.pack("<I", len(k) + 1 + len(v)) + k.encode() + b"=" + v for k, v in fields.items()
    )
    topic = f"/topic{number}".encode()
    return ros1_record({"op": b"\x07", "conn": struct.pack("<I", number), "topic": topic}, data)


def ros1_repeating(message: int, times: int) -> bytes:
    """A ROS 1 bag whose index names one message of so many bytes so many times."""
    stamp = struct.pack("<II", 1, 0)
    connection = ros1_connection()
    text = struct.pack("<I", message) + bytes(message)
    chunk = ros1_record({"op": b"\x02", "conn": bytes(4), "time": stamp}, text)
    magic = b"#ROSBAG V2.0\n"

    def bag(index: int) -> bytes:
        one = struct.pack("<I", 1)
        head = {"op": b"\x03", "index_pos": struct.pack("<Q", index), "conn_count": one}
        return ros1_record({**head, "chunk_count": one}, b" " * 64)

    place = len(magic) + len(bag(0))
    size = struct.pack("<I", len(chunk))
    stored = ros1_record({"op": b"\x05", "compression": b"none", "size": size}, chunk)
    entries = struct.pack("<III", 1, 0, 0) * times
    head = {"op": b"\x04", "ver": struct.pack("<I", 1), "conn": bytes(4)}
    index = ros1_record({**head, "count": struct.pack("<I", times)}, entries)
    info = {"op": b"\x06", "ver": struct.pack("<I", 1), "chunk_pos": struct.pack("<Q", place)}
    info |= {"start_time": stamp, "end_time": stamp, "count": struct.pack("<I", 1)}
    summary = connection + ros1_record(info, struct.pack("<II", 0, times))
    return magic + bag(place + len(stored) + len(index)) + stored + index + summary


TOPICS = "CREATE TABLE topics(id INTEGER PRIMARY KEY, name, type, serialization_format, " \
    "offered_qos_profiles)"  # fmt: skip
MESSAGES = "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id, timestamp, data)"
ONE_TOPIC = "INSERT INTO topics VALUES(1, '/words', 'std_msgs/msg/String', 'cdr', '')"
ONE_MESSAGE = f"INSERT INTO messages VALUES(1, 1, {START_NS}, x'{STRING.hex()}')"
NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


def db3_of(path: Path, *statements: str) -> Path:
    """A .db3 made by these statements."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)
    return path


def metadata_of(folder: Path, *names: str) -> None:
    """A metadata.yaml that names these files."""
    listed = "".join(f"\n    - {name}" for name in names)
    (folder / "metadata.yaml").write_text(
        "rosbag2_bagfile_information:\n  version: 9\n"
        f"  storage_identifier: {StoragePlugin.MCAP.value}\n  relative_file_paths:{listed}\n"
        "  topics_with_message_count: []\n"
    )
