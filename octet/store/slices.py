"""Slices of time that processes measure each for itself and read from each other. A row is replaced as a whole by
whoever wrote it, and by nobody else: writing it twice, or late, changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from octet.rpc.refusal import invalid
from octet.store.database import Database
from octet.store.jobs import Ask
from octet.store.rows import SliceRow
from octet.store.values import check_slice

MOST_WRITTEN = 500
"""Rows at once."""
_PAGE = 4 * MOST_WRITTEN
"""Rows read at once: more than have the same number."""
_COLUMNS = "writer, series, key, start_ms, span_ms, until_ms, raw"


@dataclass(frozen=True, slots=True)
class SliceMark:
    """How far a reader has come, and in which database."""

    identity: str
    seq: int


@dataclass(frozen=True, slots=True)
class SliceNews:
    mark: SliceMark
    rows: Sequence[SliceRow]
    """Of others. Those that are known already may be among them."""
    whole: bool
    """Nothing that was read before counts: it is the first look, or another database."""
    more: bool
    """There are more to be read at once."""


class SliceStore:
    """Raises StoreUnavailable, and may then be asked again: it has one effect."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def exchange(
        self, writer: str, written: Sequence[SliceRow], mark: SliceMark | None, now_ms: int
    ) -> SliceNews:
        """Writes these, and tells what others have written since `mark` that somebody may still want. Raises Refusal
        for what cannot be kept."""
        if len(written) > MOST_WRITTEN:
            raise invalid("slices", f"at most {MOST_WRITTEN} at once", str(len(written)))
        for row in written:
            check_slice(row)
        return await self._ask(lambda database: _exchange(database, writer, written, mark, now_ms))


def _exchange(
    database: Database, writer: str, written: Sequence[SliceRow], mark: SliceMark | None, now_ms: int
) -> SliceNews:
    if written:
        _write(database, written)
    now = database.mark()
    whole = mark is None or mark.identity != now.identity or mark.seq > now.seq
    after = 0 if mark is None or whole else mark.seq
    found = [] if after == now.seq else _read(database, writer, after, now_ms)
    more = len(found) == _PAGE
    seq = found[-1][0] - 1 if more else max([now.seq, *(number for number, _ in found[-1:])])
    return SliceNews(SliceMark(now.identity, seq), [row for _, row in found], whole, more)


def _write(database: Database, rows: Sequence[SliceRow]) -> None:
    with database.writing():
        seq = database.next_mark().seq
        database.connection.execute_each(
            f"INSERT INTO slices ({_COLUMNS}, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT (writer, series, key, start_ms, span_ms) DO UPDATE SET until_ms = excluded.until_ms, "
            "raw = excluded.raw, seq = excluded.seq",
            [(*_values(row), seq) for row in rows],
        )


def _values(row: SliceRow) -> tuple[object, ...]:
    return row.writer, row.series, row.key, row.start_ms, row.span_ms, row.until_ms, row.raw


def _read(database: Database, writer: str, after: int, now_ms: int) -> list[tuple[int, SliceRow]]:
    """With their numbers, in that order."""
    rows = database.connection.execute(
        f"SELECT seq, {_COLUMNS} FROM slices WHERE seq > ? AND writer <> ? AND until_ms > ? ORDER BY seq LIMIT ?",  # noqa: S608
        (after, writer, now_ms, _PAGE),
    )
    return [
        (int(seq), SliceRow(of, series, key, int(start), int(span), int(until), bytes(raw)))
        for seq, of, series, key, start, span, until, raw in rows
    ]
