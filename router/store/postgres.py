"""A PostgreSQL database; the only module that loads psycopg."""

import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from router.store.connection import (
    LOCK_SECONDS,
    STATEMENT_SECONDS,
    BadStoreUrl,
    DatabaseConnection,
    DatabaseRow,
    StoreCommitUnknown,
    StoreConnectionLost,
    StoreRejected,
)

_SCHEMA = "octet"
_FORM = "the URL must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with / ? # @ : % in a password written as %XX"
_MIGRATING = 0x6F6374657400  # the advisory lock held while tables are created or changed
_DEFAULTS = {
    "connect_timeout": str(round(LOCK_SECONDS)),
    "tcp_user_timeout": str(round(1000 * STATEMENT_SECONDS)),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "2",
    "application_name": "octet",
}
# the timeouts prevent a process that stalls inside a transaction from blocking other processes
_SETTINGS = {
    "statement_timeout": f"{1000 * STATEMENT_SECONDS:.0f}",
    "lock_timeout": f"{1000 * LOCK_SECONDS:.0f}",
    "idle_in_transaction_session_timeout": f"{2000 * STATEMENT_SECONDS:.0f}",
    "search_path": _SCHEMA,
    "timezone": "UTC",
}


class PostgresUrl:
    def __init__(self, url: str) -> None:
        known = _parse_url(url)
        self._secrets = [known[name] for name in ("password", "sslpassword") if known.get(name)]
        self._conninfo = make_conninfo(**{**_DEFAULTS, **known})
        self.name = f"PostgreSQL at {known.get('host', 'the default host')}, database {known.get('dbname', 'default')}"

    def open(self) -> DatabaseConnection:
        try:
            raw = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        except (psycopg.Error, OSError) as error:
            text = " ".join(str(error).split())
            for secret in self._secrets:
                text = text.replace(secret, "***")
            raise StoreConnectionLost(f"the database cannot be reached: {text}") from None
        connection = PostgresConnection(raw)
        try:
            connection.prepare()
        except StoreConnectionLost:
            connection.close()
            raise
        return connection


class PostgresConnection:
    blob = "BYTEA"

    def __init__(self, raw: psycopg.Connection[TupleRow]) -> None:
        self._raw = raw
        # a duplicate descriptor, so that `abort` never closes one that was reused in the meantime
        self._socket = socket.socket(fileno=os.dup(raw.fileno()))

    def prepare(self) -> None:
        """Apply the session settings, and turn synchronous commit back on if the server disabled it."""
        for name, value in _SETTINGS.items():
            self.execute("SELECT set_config(?, ?, false)", (name, value))
        self.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )

    def begin(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")

    def begin_reading(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def commit(self) -> None:
        try:
            self._raw.execute("COMMIT")
        except psycopg.Error as error:
            raise StoreCommitUnknown(_first_line(error)) from error

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        with _translate_errors():
            cursor = self._raw.execute(_statement(sql), values)
            return list(cursor.fetchall()) if cursor.description else []

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        with _translate_errors(), self._raw.cursor() as cursor:
            cursor.executemany(_statement(sql), rows)

    def has_tables(self) -> bool:
        self.execute("SELECT pg_advisory_xact_lock(?)", (_MIGRATING,))
        if not self.execute("SELECT 1 FROM pg_namespace WHERE nspname = ?", (_SCHEMA,)):
            self.execute(f"CREATE SCHEMA {_SCHEMA}")
        return bool(self.execute("SELECT 1 WHERE to_regclass(?) IS NOT NULL", (f"{_SCHEMA}.meta",)))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
        with suppress(psycopg.Error):
            self._raw.close()

    def abort(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


@cache
def _statement(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()


def _parse_url(url: str) -> dict[str, str]:
    """Return the URL's parts. Raises BadStoreUrl if it is invalid or part of a password could be a host or port."""
    authority = re.split(r"[/?]", url.split("://", 1)[1], maxsplit=1)[0]
    if authority.count("@") > 1:
        raise BadStoreUrl("store.url: an @ in a user name or password must be written as %40")
    try:
        known = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        raise BadStoreUrl(f"store.url: {_FORM}") from None
    if not re.fullmatch(r"[0-9,]*", known.get("port", "")):
        raise BadStoreUrl(f"store.url: the port is not a number; {_FORM}")
    return known


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise StoreRejected(_first_line(error)) from error
    except psycopg.Error as error:
        raise StoreConnectionLost(_first_line(error)) from error
