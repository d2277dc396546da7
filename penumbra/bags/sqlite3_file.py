"""sqlite3: a table of topics and one of messages, read as data: nothing in the file is executed."""

from __future__ import annotations

import sqlite3
import struct
import sys
from array import array
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import MessageDefinition

from penumbra.bags.limits import LARGEST_CHUNK, MOST_TOPICS, Budget, LimitError
from penumbra.bags.stored import FORMATS, NO_DEFINITION, Found, StoredTopic, offered_qos

_TABLES = ("messages", "topics", "message_definitions")
_FREE_STEPS = 50 * 10**6  # of SQLite's virtual machine; about a second
_STEPS_PER_BYTE = 20  # a row of 30 bytes takes about 10 steps
_LEAST_PAGE = 512  # bytes; larger pages are multiples of it
_OFTEN = 10**5  # steps between two looks at the limit


class Sqlite3File:
    """A .db3 whose rows can all be found; they are read by their id, in the order of time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._size = file.stat().st_size
        _refuse_cut(file, self._size)
        self._database = _connect(file, self._size)
        try:
            budget = Budget(file, self._size)
            with _as_limit(file):
                topics = _topics(self._database, file)
                # Sorted here: SQLite would copy the messages to sort them, without a limit.
                rows, numbers, stamps = array("q"), array("q"), array("q")
                query = "SELECT rowid, topic_id, timestamp FROM messages"
                for row, number, stamp in self._database.execute(query):
                    budget.records(1)
                    rows.append(row)
                    numbers.append(number)
                    stamps.append(stamp)
            self._rows, self._numbers, self._stamps = (
                np.frombuffer(part, np.int64) for part in (rows, numbers, stamps)
            )
            found, counts = np.unique(self._numbers, return_counts=True)
            count = dict(zip(found.tolist(), counts.tolist(), strict=True))
            self.topics = [replace(t, count=count.get(n, 0)) for n, t in topics.items()]
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def messages(self, numbers: Collection[int]) -> Found:
        """The messages of these topics in the order of their time, and of writing."""
        budget = Budget(self._file, self._size)
        by_number = {topic.number: topic for topic in self.topics if topic.number in numbers}
        chosen = np.flatnonzero(np.isin(self._numbers, list(by_number)))
        order = chosen[np.lexsort((self._rows[chosen], self._stamps[chosen]))]
        with _as_limit(self._file):
            for place in order.tolist():
                row, number, stamp = (
                    int(part[place]) for part in (self._rows, self._numbers, self._stamps)
                )
                query = "SELECT data FROM messages WHERE rowid = ?"
                ((data,),) = self._database.execute(query, (row,))
                if not isinstance(data, bytes):
                    raise ValueError(f"row {row} is no message")
                budget.read(len(data))
                yield by_number[number], stamp, data


def salvage_sqlite3(file: Path) -> Found:
    """The messages in the order of writing, without the index at the end of the file."""
    size = file.stat().st_size
    budget = Budget(file, size)
    with closing(_connect(file, size)) as database, _as_limit(file):
        # Otherwise SQLite refuses a file with fewer pages than its header states.
        database.execute("PRAGMA writable_schema = ON")
        topics = _topics(database, file)
        query = "SELECT topic_id, timestamp, data FROM messages ORDER BY rowid"
        # SQLite fills a page that is cut with zeros, and the last message ends there: it is held
        # back until the next has been asked for.
        last: tuple[StoredTopic, int, bytes] | None = None
        damage: sqlite3.Error | None = None
        rows = iter(database.execute(query))
        while True:
            try:
                row = next(rows, None)
            except sqlite3.Error as error:
                row, damage = None, error
            if row is None:
                break
            number, stamp, data = row
            budget.records(1)
            budget.read(len(data) if isinstance(data, bytes) else 0)
            if last is not None:
                yield last
            known = number in topics and isinstance(data, bytes) and isinstance(stamp, int)
            last = (topics[number], stamp, data) if known else None
        cut = damage is None and size % _LEAST_PAGE != 0
        if last is not None and not (cut and last[2].endswith(b"\0")):
            yield last
        if damage is not None:
            raise damage


def _refuse_cut(file: Path, size: int) -> None:
    """Raise EOFError if the file has fewer pages than its header states."""
    with file.open("rb") as source:
        header = source.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise EOFError("it has no header of SQLite")
    (page,) = struct.unpack_from(">H", header, 16)
    changed, pages = struct.unpack_from(">II", header, 24)
    (counted,) = struct.unpack_from(">I", header, 92)
    if changed == counted and (65536 if page == 1 else page) * pages > size:
        raise EOFError("it has fewer pages than its header states")


def _connect(file: Path, size: int) -> sqlite3.Connection:
    where = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
    database = sqlite3.connect(where, uri=True)
    try:
        if sys.version_info >= (3, 11):  # before, SQLite's own limit of 1 GB holds
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CHUNK)
        left = _FREE_STEPS + _STEPS_PER_BYTE * size

        def too_long() -> bool:
            nonlocal left
            left -= _OFTEN
            return left < 0

        database.set_progress_handler(too_long, _OFTEN)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _as_limit(file: Path) -> Iterator[None]:
    """Raise LimitError where SQLite was interrupted, or met a value above its limit."""
    try:
        yield
    except sqlite3.Error as error:
        if str(error) == "interrupted":
            raise LimitError(
                f"{file} keeps SQLite busy for longer than a bag of its size can: it is not read"
                " further"
            ) from error
        if "too big" in str(error):
            raise LimitError(
                f"{file} has a value of more than {LARGEST_CHUNK >> 20} MiB: record smaller"
                " messages"
            ) from error
        raise


def _topics(database: sqlite3.Connection, file: Path) -> dict[int, StoredTopic]:
    tables = {name for name in _TABLES if _is_plain_table(database, file, name)}
    definitions = {}
    if "message_definitions" in tables:
        query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
        for name, encoding, text in _rows(database, file, query):
            if encoding in FORMATS and isinstance(text, str):
                definitions[name] = MessageDefinition(FORMATS[encoding], text)
    columns = [row[1] for row in database.execute("PRAGMA table_info(topics)")]
    topics = {}
    for row in _rows(database, file, "SELECT * FROM topics"):
        values = dict(zip(columns, row, strict=True))
        number, name, kind = values["id"], values["name"], values["type"]
        if not isinstance(number, int) or not isinstance(name, str) or not isinstance(kind, str):
            raise ValueError("a row of its topics is damaged")
        qos = offered_qos(str(values.get("offered_qos_profiles", "")))
        definition = definitions.get(kind, NO_DEFINITION)
        topics[number] = StoredTopic(number, name, kind, definition, file, **qos)
    return topics


def _is_plain_table(database: sqlite3.Connection, file: Path, name: str) -> bool:
    """Whether there is such a table. A view or a computed column is a program: it is refused."""
    query = "SELECT type, sql FROM sqlite_master WHERE name = ? LIMIT 2"
    found = database.execute(query, (name,)).fetchall()
    if not found:
        return False
    ((kind, sql),) = found
    hidden = [row for row in database.execute(f"PRAGMA table_xinfo({name})") if row[6]]
    if kind != "table" or hidden or not str(sql).upper().startswith("CREATE TABLE"):
        raise LimitError(
            f"{file}: {name} must be a plain table, but is a view, virtual or computed: convert the"
            " bag with the tool that wrote it"
        )
    return True


def _rows(database: sqlite3.Connection, file: Path, query: str) -> Iterator[Any]:
    for count, row in enumerate(database.execute(query)):
        if count >= MOST_TOPICS:
            raise LimitError(f"{file} has more than {MOST_TOPICS} topics or definitions")
        yield row
