"""A SQLite file, or a database in memory."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from octet.store.connection import LOCK_SECONDS, Connection, Row
from octet.store.errors import Refused, Unavailable, Unknown

MEMORY = ":memory:"
_MOVED = "the file was removed, moved or replaced while it was open"
_DAMAGED = (
    "the file is damaged, or no database ({error}), and is left as it is: move {path} away, together with its -wal and "
    "-shm, and put a backup in its place, or nothing: then what routers that run still know is written to a new one"
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BAD_VALUES = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError, UnicodeEncodeError)


class SqliteFile:
    def __init__(self, path: Path, advice: str = "") -> None:
        """`advice` follows where the file cannot be opened."""
        self.name = f"SQLite file {path}"
        self._path = path
        self._advice = f"; {advice}" if advice else ""

    def open(self) -> Connection:
        try:
            self._create()
            return SqliteConnection(_connect(str(self._path)), self._path)
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(_damage(error, self._path) or f"cannot be opened: {error}{self._advice}") from error

    def _create(self) -> None:
        """For nobody else to read; what is there already stays as it is."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class SqliteMemory:
    """Everything is forgotten with the connection."""

    name = "SQLite in memory"

    def open(self) -> Connection:
        return SqliteConnection(_connect(MEMORY), None)


class SqliteConnection:
    blob = "BLOB"

    def __init__(self, raw: sqlite3.Connection, path: Path | None) -> None:
        self._raw = raw
        self._path = path
        self._identity = _identity(path)

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")

    def begin_reading(self) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        try:
            self._raw.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unknown(str(error)) from error
        if self._is_moved():
            raise Unknown(_MOVED)

    def rollback(self) -> None:
        if self._raw.in_transaction:
            self.execute("ROLLBACK")

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """A file that is not in its place any more would take rows that nobody ever reads, and tell old ones."""
        if not self._raw.in_transaction and self._is_moved():
            raise Unavailable(_MOVED)
        with _translated(self._path), closing(self._raw.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        with _translated(self._path):
            self._raw.executemany(sql, rows).close()

    def has_tables(self) -> bool:
        return bool(self.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'"))

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._raw.close()

    def abort(self) -> None:
        if self._path is not None:
            with suppress(sqlite3.Error):
                self._raw.interrupt()

    def _is_moved(self) -> bool:
        return _identity(self._path) != self._identity


def _connect(path: str) -> sqlite3.Connection:
    """The write-ahead log lets others read while one writes; FULL syncs it before a commit returns."""
    raw = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        raw.execute("PRAGMA journal_mode = WAL").close()
        raw.execute("PRAGMA synchronous = FULL").close()
        raw.execute("PRAGMA foreign_keys = OFF").close()
    except sqlite3.Error:
        raw.close()
        raise
    return raw


def _identity(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return stat.st_dev, stat.st_ino


def _damage(error: Exception, path: Path | None) -> str:
    """What to do where it is that; else nothing."""
    code = getattr(error, "sqlite_errorcode", None)
    return _DAMAGED.format(error=error, path=path) if code is not None and code & 0xFF in _DAMAGE else ""


@contextmanager
def _translated(path: Path | None) -> Iterator[None]:
    try:
        yield
    except _BAD_VALUES as error:
        raise Refused(str(error)) from error
    except sqlite3.Error as error:
        raise Unavailable(_damage(error, path) or str(error)) from error
