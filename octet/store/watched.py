"""A connection that tells since when it waits for an answer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from octet.clock import Clock
from octet.store.connection import Connection, Row


class Pulse:
    """Set on one thread, read on another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._since = self._clock.now()
        try:
            yield
        finally:
            self._since = None

    @property
    def seconds(self) -> float:
        since = self._since
        return 0.0 if since is None else self._clock.now() - since


class Watched:
    def __init__(self, connection: Connection, pulse: Pulse) -> None:
        self._connection = connection
        self._pulse = pulse
        self.blob = connection.blob
        self.abort: Callable[[], None] = connection.abort

    def begin(self) -> None:
        with self._pulse.waiting():
            self._connection.begin()

    def begin_reading(self) -> None:
        with self._pulse.waiting():
            self._connection.begin_reading()

    def commit(self) -> None:
        with self._pulse.waiting():
            self._connection.commit()

    def rollback(self) -> None:
        with self._pulse.waiting():
            self._connection.rollback()

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        with self._pulse.waiting():
            return self._connection.execute(sql, values)

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        with self._pulse.waiting():
            self._connection.execute_each(sql, rows)

    def has_tables(self) -> bool:
        with self._pulse.waiting():
            return self._connection.has_tables()

    def close(self) -> None:
        with self._pulse.waiting():
            self._connection.close()
