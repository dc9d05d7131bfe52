"""One connection to a database, as the tables use it. Blocking; one thread at a time."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

Row = Sequence[Any]
LOCK_SECONDS = 2.0
"""How long a connection waits for others, and for an answer when it is opened."""
STATEMENT_SECONDS = 3.0


class Connection(Protocol):
    """Statements are written with `?`. What fails raises `Unavailable` (the connection is to be closed), a lost commit
    `Unknown`, a value that the database does not take `Refused`."""

    blob: str
    """The type of bytes."""

    def begin(self) -> None:
        """To write. Nobody else writes before the end."""

    def begin_reading(self) -> None:
        """Everything is read as of one moment."""

    def commit(self) -> None:
        """It is on the disk when this returns."""

    def rollback(self) -> None: ...

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]: ...

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None: ...

    def has_tables(self) -> bool:
        """Inside of `begin`, which also keeps others from creating them."""

    def close(self) -> None: ...

    def abort(self) -> None:
        """From any thread: whatever is under way fails soon."""


class Opener(Protocol):
    name: str
    """For people; without a password."""

    def open(self) -> Connection:
        """Raises `Unavailable`."""
