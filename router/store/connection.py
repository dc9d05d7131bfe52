"""The interface of database connections, and its implementation for SQLite, in a file or in memory."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

DatabaseRow = Sequence[Any]
LOCK_SECONDS = 2.0  # the longest wait for a lock, and for the server's answer while a connection is opened
STATEMENT_SECONDS = 3.0
IN_MEMORY = ":memory:"
_MOVED = "the file was removed, moved or replaced while it was open"
_DAMAGED = (
    "the file is damaged or not a database ({error}) and was left untouched: move {path} away with its -wal and -shm "
    "files; then restore a backup, or let the running routers write their state to a new file"
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BAD_VALUES = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError, UnicodeEncodeError)


class BadStoreUrl(ValueError):
    """The store's URL is invalid or unsupported. The message says what to correct, and never contains a password."""


class StoreConnectionLost(Exception):
    """The connection is lost, and nothing was committed (but see StoreCommitUnknown). Internal to the store."""


class StoreCommitUnknown(StoreConnectionLost):
    """The connection was lost during a commit. It is unknown whether the commit was made."""


class StoreRejected(Exception):
    """The database rejects these values; the connection still works. Internal to the store."""


class DatabaseConnection(Protocol):
    """A database connection. Calls block, and only one thread at a time may use it. The placeholder in statements is
    `?`. After StoreConnectionLost the connection must be closed; after StoreRejected it can still be used."""

    blob: str  # the column type of bytes

    def begin(self) -> None: ...
    def begin_reading(self) -> None: ...

    def commit(self) -> None: ...
    def rollback(self) -> None: ...

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]: ...
    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None: ...

    def has_tables(self) -> bool:
        """Return whether Octet's tables exist. Call it in a transaction, so that no other process creates them."""

    def close(self) -> None: ...

    def abort(self) -> None:
        """Make the running statement fail soon. Any thread may call it."""


class DatabaseOpener(Protocol):
    name: str  # for messages; without a password

    def open(self) -> DatabaseConnection: ...


class SqliteFile:
    def __init__(self, path: Path, advice: str = "") -> None:
        """`advice` is appended to the error if the file cannot be opened."""
        self.name = f"SQLite file {path}"
        self._path = path
        self._advice = f"; {advice}" if advice else ""

    def open(self) -> DatabaseConnection:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):  # a new file is readable only by its owner
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            return SqliteConnection(_connect(str(self._path)), self._path)
        except (OSError, sqlite3.Error) as error:
            raise StoreConnectionLost(
                _damage_advice(error, self._path) or f"the database file cannot be opened: {error}{self._advice}"
            ) from error


class SqliteMemory:
    name = "SQLite in memory"

    def open(self) -> DatabaseConnection:
        return SqliteConnection(_connect(IN_MEMORY), None)


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
            raise StoreCommitUnknown(str(error)) from error
        if self._is_moved():
            raise StoreCommitUnknown(_MOVED)

    def rollback(self) -> None:
        if self._raw.in_transaction:
            self.execute("ROLLBACK")

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        """Execute a statement. If no transaction is open, first check that the file has not been moved."""
        if not self._raw.in_transaction and self._is_moved():
            raise StoreConnectionLost(_MOVED)
        with _translate_errors(self._path), closing(self._raw.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        with _translate_errors(self._path):
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
    raw = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        raw.execute("PRAGMA journal_mode = WAL").close()  # other processes can read during a write
        raw.execute("PRAGMA synchronous = FULL").close()  # the log is synced before a commit returns
        raw.execute("PRAGMA foreign_keys = OFF").close()
        raw.execute("PRAGMA secure_delete = FAST").close()  # overwrite deleted texts where that needs no more writes
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


def _damage_advice(error: Exception, path: Path | None) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    return _DAMAGED.format(error=error, path=path) if code is not None and code & 0xFF in _DAMAGE else ""


@contextmanager
def _translate_errors(path: Path | None) -> Iterator[None]:
    try:
        yield
    except _BAD_VALUES as error:
        raise StoreRejected(str(error)) from error
    except sqlite3.Error as error:
        raise StoreConnectionLost(_damage_advice(error, path) or str(error)) from error
