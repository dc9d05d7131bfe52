"""A PostgreSQL database. The only module that loads psycopg, and it is loaded for such a URL alone."""

import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from octet.store.connection import LOCK_SECONDS, STATEMENT_SECONDS, Connection, Row
from octet.store.errors import BadStoreUrl, Refused, Unavailable, Unknown

_SCHEMA = "octet"
_MIGRATING = 0x6F6374657400
"""The advisory lock of whoever creates or changes tables."""
_DEFAULTS = {
    "connect_timeout": str(round(LOCK_SECONDS)),
    "tcp_user_timeout": str(round(1000 * STATEMENT_SECONDS)),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "2",
    "application_name": "octet",
}
_SETTINGS = {
    "statement_timeout": f"{1000 * STATEMENT_SECONDS:.0f}",
    "lock_timeout": f"{1000 * LOCK_SECONDS:.0f}",
    "idle_in_transaction_session_timeout": f"{2000 * STATEMENT_SECONDS:.0f}",
    "search_path": _SCHEMA,
    "timezone": "UTC",
}
"""A process that stops in the middle of a transaction does not keep the others waiting for ever."""


class PostgresUrl:
    def __init__(self, url: str) -> None:
        """Raises BadStoreUrl."""
        known = _parsed(url)
        self._secrets = [known[name] for name in ("password", "sslpassword") if known.get(name)]
        self._conninfo = make_conninfo(**{**_DEFAULTS, **known})
        self.name = f"PostgreSQL at {known.get('host', 'the default host')}, database {known.get('dbname', 'default')}"

    def open(self) -> Connection:
        try:
            raw = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        except (psycopg.Error, OSError) as error:
            raise Unavailable(f"cannot be reached: {self._without_secrets(error)}") from None
        connection = PostgresConnection(raw)
        try:
            connection.prepare()
        except Unavailable:
            connection.close()
            raise
        return connection

    def _without_secrets(self, error: Exception) -> str:
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class PostgresConnection:
    blob = "BYTEA"

    def __init__(self, raw: psycopg.Connection[TupleRow]) -> None:
        self._raw = raw
        self._socket = socket.socket(fileno=os.dup(raw.fileno()))
        """Of its own, so that `abort` never meets a number that somebody else has got since."""

    def prepare(self) -> None:
        """What the server says of durability counts, unless it says that there need be none."""
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
            raise Unknown(_brief(error)) from error

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        with _translated():
            cursor = self._raw.execute(_statement(sql), values)
            return list(cursor.fetchall()) if cursor.description else []

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        with _translated(), self._raw.cursor() as cursor:
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


def _parsed(url: str) -> dict[str, str]:
    """Checked so far that no piece of a password can be taken for a host or a port, and then be told to everybody."""
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


_FORM = (
    "must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where each of / ? # @ : % in a password is written as %XX"
)


def _brief(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise Refused(_brief(error)) from error
    except psycopg.Error as error:
        raise Unavailable(_brief(error)) from error
