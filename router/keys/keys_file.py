"""The file that keys are kept in: read whole, and replaced whole, by one writer at a time."""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

from router.keys.book import KeyBook
from router.keys.key import Key
from router.keys.keys_text import MOST_BYTES, KeysInvalid, keys_text, parse_keys

_MODE = 0o600


class Stamp(NamedTuple):
    """Another one whenever the file is written, replaced, or linked to elsewhere."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class KeysFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp | None:
        """None: it is not there, or out of reach."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def read(self) -> tuple[Key, ...]:
        """Raises KeysInvalid, which names the file, and OSError."""
        if not self.path.is_file() and self.path.exists():
            raise KeysInvalid(f"{self.path} is not a regular file")
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise KeysInvalid(f"{self.path} can be written by others than its owner: chmod go-w {self.path}")
            content = file.read(MOST_BYTES + 1)
        try:
            return parse_keys(content.decode())
        except UnicodeDecodeError:
            raise KeysInvalid(f"{self.path} is not UTF-8") from None
        except KeysInvalid as invalid:
            raise KeysInvalid(f"{self.path}: {invalid}") from None

    def book(self) -> KeyBook:
        """Raises KeysInvalid, OSError."""
        return KeyBook(self.read())

    def change(self, make: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
        """Whoever reads it meanwhile sees all of the change or nothing. Raises KeysInvalid, OSError."""
        target = self.path.resolve()  # whatever links lead to it
        with _alone(target.parent) as folder:
            self._write(make(self.read() if self.path.exists() else ()), target)
            os.fsync(folder)

    def _write(self, keys: tuple[Key, ...], target: Path) -> None:
        descriptor, name = mkstemp(prefix=f".{target.name}.", dir=target.parent)  # never one that somebody laid there
        beside = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                _make_alike(file.fileno(), target)
                file.write(keys_text(keys))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def _make_alike(descriptor: int, target: Path) -> None:
    """A router of another user that may read what is there may read what takes its place: else it would never hear
    that a key was revoked."""
    try:
        there = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, _MODE)
        return
    with suppress(PermissionError):
        os.fchown(descriptor, there.st_uid, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """The folder's descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
