"""What is kept for how long: the oldest rows go in small bites, so that nobody waits for them."""

from dataclasses import dataclass

from octet.store.connection import Connection

LONGEST = 31 * 86_400
"""Seconds: no window is longer."""
_BITE = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows."""

    receipts: int
    comparisons: int
    audit: int


def prune(connection: Connection, limits: Limits, now: float) -> bool:
    """One bite of everything; inside of a transaction. Whether there is more to do."""
    oldest = int(now) - LONGEST
    more = [
        _keep_newest(connection, "receipts", "receipts", limits.receipts),
        _keep_newest(connection, "comparisons", "comparisons", limits.comparisons),
        _keep_newest(connection, "audit", "audits", limits.audit),
        _forget_buckets(connection, oldest),
        _forget_slices(connection, int(now * 1000)),
    ]
    connection.execute("DELETE FROM writers WHERE at_ms < ?", (oldest * 1000,))
    connection.execute("DELETE FROM documents WHERE body IS NULL AND changed_ms < ?", (oldest * 1000,))
    return any(more)


def _keep_newest(connection: Connection, table: str, counter: str, most: int) -> bool:
    """Rows have consecutive numbers, the last of which is the counter in `meta`."""
    ((first, last),) = connection.execute(f"SELECT (SELECT MIN(number) FROM {table}), {counter} FROM meta")  # noqa: S608
    if first is None or first > last - most:
        return False
    end = min(last - most, first + _BITE - 1)
    connection.execute(f"DELETE FROM {table} WHERE number <= ?", (end,))  # noqa: S608
    return bool(end < last - most)


def _forget_buckets(connection: Connection, before: int) -> bool:
    old = connection.execute(
        "SELECT series, key, start FROM buckets WHERE start < ? ORDER BY start LIMIT ?", (before, _BITE)
    )
    connection.execute_each("DELETE FROM buckets WHERE series = ? AND key = ? AND start = ?", old)
    return len(old) == _BITE


def _forget_slices(connection: Connection, now_ms: int) -> bool:
    old = connection.execute(
        "SELECT writer, series, key, start_ms, span_ms FROM slices WHERE until_ms < ? ORDER BY until_ms LIMIT ?",
        (now_ms, _BITE),
    )
    connection.execute_each(
        "DELETE FROM slices WHERE writer = ? AND series = ? AND key = ? AND start_ms = ? AND span_ms = ?", old
    )
    return len(old) == _BITE
