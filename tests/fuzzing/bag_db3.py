"""Fuzz target: the bytes of a .db3."""

from __future__ import annotations

import contextlib
import sqlite3

from fuzzing.bag_files import read_as, rosbag2
from rosbags.rosbag2 import CompressionMode, StoragePlugin

SHORT = [
    "CREATE TABLE topics(id, name, type, serialization_format, offered_qos_profiles)",
    "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id, timestamp, data)",
    "INSERT INTO topics VALUES(1, '/words', 'std_msgs/msg/String', 'cdr', '')",
    "INSERT INTO messages VALUES(1, 1, 5, x'000100000200000061000000')",
]
VIEW = "CREATE VIEW messages AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n)"


def run_one(data: bytes) -> None:
    """Read one input; every exception but PenumbraError is a defect."""
    read_as(".db3", data)


def database(statements: list[str]) -> bytes:
    """The file of a database with pages of 512 bytes, so that a mutation meets something."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        made.execute("PRAGMA page_size = 512")
        for statement in statements:
            made.execute(statement)
        return made.serialize()


def seeds() -> list[bytes]:
    """Bags as rosbag2 writes them, a small one, one with an index and trigger, one with a view."""
    modes = (None, CompressionMode.MESSAGE)
    found = [(rosbag2(StoragePlugin.SQLITE3, mode) / "bag.db3").read_bytes() for mode in modes]
    index = "CREATE INDEX timestamp_idx ON messages (timestamp ASC)"
    trigger = "CREATE TRIGGER t AFTER INSERT ON topics BEGIN DELETE FROM messages; END"
    view = f"{VIEW} SELECT x AS id, 1 AS topic_id, x AS timestamp, x'00' AS data FROM n"
    found.append(database(SHORT))
    found.append(database([*SHORT, index, trigger]))
    found.append(database([SHORT[0], SHORT[2], view]))
    return found
