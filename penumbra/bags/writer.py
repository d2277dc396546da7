"""Write a rosbag2 atomically: complete, or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
from rosbags.typesys.store import Typestore

from penumbra.bags.messages import jazzy
from penumbra.bags.reader import warn_on_stderr
from penumbra.errors import PenumbraError
from penumbra.text import printable

STORAGES = ("mcap", "sqlite3")
VERSION: Final = 9  # of rosbag2's metadata, as Jazzy writes it
_FOREVER = QosTime(9223372036, 854775807)
_WORK = re.compile(r"\.(.+)\.[a-z0-9_]{8}")  # the name of a folder in which a bag is written
_SHOWN = 5  # leftovers named in one line


def offered(latched: bool = False, reliable: bool = True) -> Qos:
    """The QoS that a publisher offered; `ros2 bag play` and `penumbra replay` offer the same."""
    return Qos(
        QosHistory.KEEP_LAST,
        1 if latched else 10,
        QosReliability.RELIABLE if reliable else QosReliability.BEST_EFFORT,
        QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        _FOREVER,
        _FOREVER,
        QosLiveliness.AUTOMATIC,
        _FOREVER,
        False,
    )


class BagWriter:
    """Writes a rosbag2, which appears at `path` when the `with` block ends without an error.

        with BagWriter(path) as bag:
            message = image(stamp_ns, "camera", array, "bgr8")
            bag.write("/camera/image_raw", IMAGE, stamp_ns, message)

    A message is one built by penumbra.bags.messages, or its CDR.
    Message definitions are embedded. `notes` go into the bag's metadata. `warn` gets one line if a
    killed run has left a recording beside `path` (default: standard error).
    """

    def __init__(
        self,
        path: Path,
        storage: str = "mcap",
        notes: Mapping[str, str] | None = None,
        store: Typestore | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._warn = warn or warn_on_stderr
        self.store = store or jazzy()
        self.count = 0
        self._notes = dict(notes or {})
        if storage not in STORAGES:
            raise PenumbraError(f"storage {storage!r} is unknown: choose {' or '.join(STORAGES)}")
        self._storage = StoragePlugin[storage.upper()]
        self._connections: dict[str, Connection] = {}
        refuse_existing(self.path)

    def __enter__(self) -> BagWriter:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _tell_leftovers(self.path.parent, self._warn)
            prefix = f".{self.path.name}."
            self._work = Path(tempfile.mkdtemp(prefix=prefix, dir=self.path.parent))
            self._work.chmod(0o755)  # mkdtemp makes it 0700, but others read the bag
            # Released when the process ends, however it does: see `leftovers`.
            self._lock = os.open(self._work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise self._failure(error) from error
        # The storage file is named after its folder, which therefore needs the final name.
        self._bag = Writer(self._work / self.path.name, version=VERSION,
                           storage_plugin=self._storage)  # fmt: skip
        self._bag.open()
        return self

    def add_topic(
        self, topic: str, type_name: str, latched: bool = False, reliable: bool = True
    ) -> None:
        """Announce a topic. `write` does so for topics that are reliable and not latched."""
        try:
            self._connections[topic] = self._bag.add_connection(
                topic,
                type_name,
                typestore=self.store,
                offered_qos_profiles=[offered(latched, reliable)],
            )
        except KeyError as error:
            raise PenumbraError(
                f"cannot write {topic}: the definition of {type_name} is unknown"
            ) from error

    def write(self, topic: str, type_name: str, stamp_ns: int, message: Any) -> None:
        """Add one message; `stamp_ns` is the time of reception, independent of its header."""
        if topic not in self._connections:
            self.add_topic(topic, type_name)
        connection = self._connections[topic]
        if connection.msgtype != type_name:
            raise PenumbraError(
                f"{topic} holds {connection.msgtype}: a {type_name} cannot be written to it"
            )
        if not isinstance(message, (bytes, memoryview)):
            message = self.store.serialize_cdr(message, type_name)
        try:
            self._bag.write(connection, int(stamp_ns), message)
        except (OSError, sqlite3.Error) as error:
            raise self._failure(error) from error
        self.count += 1

    def note(self, key: str, text: str) -> None:
        """Add a line to the bag's metadata (`custom_data`)."""
        self._notes[key] = text

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            if error_type is not None:
                self._bag.abort()
                return
            for key, text in self._notes.items():
                self._bag.set_custom_data(key, text)
            self._bag.close()
            refuse_existing(self.path)
            _flush(self._bag.path)
            self._bag.path.replace(self.path)
        except (OSError, sqlite3.Error, WriterError) as failure:
            raise self._failure(failure) from failure
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
            os.close(self._lock)

    def _failure(self, error: Exception) -> PenumbraError:
        reason = getattr(error, "strerror", None) or error
        return PenumbraError(
            f"cannot write {self.path}: {reason}; free some space or choose another folder"
        )


def leftovers(folder: Path) -> Iterator[Path]:
    """The unfinished bags in `folder` whose writers were killed; those being written are locked."""
    for work in sorted(folder.glob(".*.*")):
        name = _WORK.fullmatch(work.name)
        if name is None or work.is_symlink() or not (work / name[1]).is_dir():
            continue
        try:
            descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # of another user, or just removed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield work / name[1]
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _tell_leftovers(folder: Path, warn: Callable[[str], None]) -> None:
    found = list(leftovers(folder))
    if found:
        first, work = (shlex.quote(printable(path)) for path in (found[0], found[0].parent))
        shown = ", ".join(printable(path) for path in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        warn(
            f"a run that was killed has left {shown}{more}: `penumbra bag convert {first} --out"
            f" NAME` recovers what is in it, `rm -r {work}` deletes it"
        )


def refuse_existing(path: Path) -> None:
    """Raise if `path` exists: a recording is never overwritten."""
    if path.exists() or path.is_symlink():
        raise PenumbraError(f"{path} exists already: choose another name, or remove it first")
    if not path.name:
        raise PenumbraError(f"{str(path)!r} is not a name for a bag")


def _flush(folder: Path) -> None:
    """Sync to disk, so that a power cut leaves no bag with its name but without its data."""
    for file in (*folder.iterdir(), folder):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
