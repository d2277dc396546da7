"""Atomic file writes, careful reads of files from outside, and the cache folder."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penumbra.errors import PenumbraError
from penumbra.text import printable

BLOCK = 1 << 20
_WORKING_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def write_atomically(path: Path, data: bytes | memoryview | str, mode: int | None = None) -> None:
    """Write `path` so that no reader, crash or full disk ever leaves a partial file.

    `mode` are the permissions of the file, from its first byte on; None leaves them to the umask.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a killed process that had this number
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        size = len(content) / 2**20
        raise PenumbraError(
            f"cannot write {path} ({size:.1f} MiB): {error.strerror}; free some space or choose "
            "another folder"
        ) from error


def exchange(one: Path, other: Path) -> bool:
    """Swap two files or folders in one step, so that both names exist at every moment.

    False, and nothing is done, where the kernel or the file system cannot: only Linux can.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    first, second = (ctypes.c_char_p(os.fsencode(path.absolute())) for path in (one, other))
    if rename(_WORKING_FOLDER, first, _WORKING_FOLDER, second, ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def replace_folder(staged: Path, target: Path, old: Path) -> None:
    """Replace `target` by `staged`, flushed to disk before; the previous folder moves to `old`.

    All three are on one file system. If the last step fails, the previous folder is back.
    """
    for file in staged.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if not target.exists():
        staged.rename(target)
        return
    if exchange(staged, target):  # a process that is killed leaves one folder or the other
        return
    target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        old.rename(target)
        raise


@contextmanager
def open_regular(path: Path, follow: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file for reading; FileNotFoundError or PenumbraError otherwise.

    A FIFO would block for ever, a device may never end, and a link leads out of the folder that
    was checked. `follow` permits a link, for files that the user names.
    """
    try:
        # Looked at before it is opened: opening alone starts some devices.
        _require_regular(path, path.stat() if follow else path.lstat())
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        stream = os.fdopen(os.open(path, flags), "rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except OSError as error:
        raise PenumbraError(f"cannot read {path}: {error.strerror}") from error
    with stream:
        _require_regular(path, os.fstat(stream.fileno()))  # what was opened, whatever was there
        try:
            yield stream
        except OSError as error:
            raise PenumbraError(f"cannot read {path}: {error.strerror}") from error


def read_regular(path: Path, limit: int, follow: bool = False) -> bytes:
    """The content of a regular file of at most `limit` bytes; otherwise as `open_regular`."""
    with open_regular(path, follow) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise PenumbraError(
            f"{path} has more than {limit} bytes, the most that is read: it is not the right file"
        )
    return data


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Raise PenumbraError unless these files, with their SHA-256, are in the folder."""
    for name, expected in files.items():
        file = folder / plain_name(name, folder)
        digest, size = hashlib.sha256(), 0
        try:
            with open_regular(file) as stream:
                while block := stream.read(BLOCK):
                    digest.update(block)
                    size += len(block)
        except FileNotFoundError as error:
            raise missing(file) from error
        check_digest(file, digest.hexdigest(), expected, size)


def check_digest(file: Path, found: str, expected: str, size: int) -> None:
    """Raise PenumbraError if the SHA-256 of a file is not the expected one."""
    if found != expected:
        raise PenumbraError(
            f"{file} ({size} bytes) is not the file that was exported: its SHA-256 begins with "
            f"{found[:12]}, in the manifest {printable(expected[:12])}; copy the folder again"
        )


def missing(file: Path) -> PenumbraError:
    """The error for a file that its manifest lists and that is not there."""
    return PenumbraError(f"{file} is missing from its folder: copy the whole folder again")


def plain_name(name: str, folder: Path) -> str:
    """`name` if it names a file directly in `folder` whatever the file system; else raise."""
    if _PLAIN_NAME.fullmatch(name) is None:
        raise PenumbraError(
            f"{folder} lists a file {printable(name)!r}: a name has letters, digits, '.', '_' and "
            "'-', and no folder"
        )
    return name


def cache_folder() -> Path:
    """`PENUMBRA_CACHE`, or `~/.cache/penumbra`: training runs, engines, reproducible files."""
    return Path(os.environ.get("PENUMBRA_CACHE") or Path.home() / ".cache" / "penumbra")


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = {
            stat.S_IFLNK: "a symbolic link",
            stat.S_IFDIR: "a folder",
            stat.S_IFIFO: "a FIFO",
            stat.S_IFSOCK: "a socket",
        }.get(stat.S_IFMT(status.st_mode), "a device")
        raise PenumbraError(f"{path} is {kind}: only regular files are read; copy the file itself")
