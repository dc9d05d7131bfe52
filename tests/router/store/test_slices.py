"""A slice holds a router's measurements of a short time. Every other router reads each slice once, and expired slices
are deleted."""

from collections.abc import Sequence

import pytest

from octet.rpc.refusal import Refusal
from router.store.database import StorePosition
from router.store.rows import MAX_SLICE_BYTES, SliceRow
from router.store.store import MAX_SLICES_WRITTEN, Store
from tests.router.store.stores import NOW, audit_row, eventually, eventually_returns, opened

NOW_MS = NOW * 1000


def slice_row(writer: str, number: int = 0, raw: bytes = b"raw", until_ms: int = NOW_MS + 1000) -> SliceRow:
    return SliceRow(writer, "slo", "debug", number * 1000, 1000, until_ms, raw)


async def read_slices(
    store: Store, reader: str, mark: StorePosition | None = None
) -> tuple[StorePosition, dict[int, SliceRow]]:
    found: dict[int, SliceRow] = {}
    while True:
        news = await store.exchange_slices(reader, (), mark, NOW_MS)
        found.update({row.start_ms: row for row in news.rows})
        mark = news.position
        if not news.more:
            return mark, found


async def test_a_writers_slices_are_read_by_others_and_not_by_itself(url: str) -> None:
    async with opened(url) as store:
        news = await store.exchange_slices("a", [slice_row("a"), slice_row("a", 1)], None, NOW_MS)
        assert (list(news.rows), news.whole) == ([], True)
        mark, found = await read_slices(store, "b")
        assert found == {0: slice_row("a"), 1000: slice_row("a", 1)}
        assert await read_slices(store, "b", mark) == (mark, {})


async def test_a_slice_is_replaced_and_writing_it_again_changes_nothing(url: str) -> None:
    async with opened(url) as store:
        for raw in (b"one", b"two", b"two"):
            await store.exchange_slices("a", [slice_row("a", raw=raw)], None, NOW_MS)
        _, found = await read_slices(store, "b")
        assert found == {0: slice_row("a", raw=b"two")}


async def test_expired_slices_are_not_read_and_are_deleted(url: str) -> None:
    async with opened(url) as store:
        rows = [slice_row("a", number, until_ms=NOW_MS - 1) for number in range(400)]
        await store.exchange_slices("a", [*rows, slice_row("a", 1000)], None, NOW_MS)
        assert (await read_slices(store, "b"))[1].keys() == {1_000_000}
        assert store._sync is not None
        store._sync._next_prune = 0.0
        await eventually(lambda: store._sync is not None and store._sync._next_prune > 0.0)

        async def all_rows() -> int:
            found = await store._open_worker().run(
                lambda database: database.connection.execute("SELECT COUNT(*) FROM slices")
            )
            return int(found[0][0])

        await eventually_returns(all_rows, 1)


async def test_many_slices_are_read_page_by_page_and_none_is_missed(url: str) -> None:
    async with opened(url) as store:
        number = 6 * MAX_SLICES_WRITTEN
        for start in range(0, number, MAX_SLICES_WRITTEN):
            rows = [slice_row("a", each) for each in range(start, start + MAX_SLICES_WRITTEN)]
            await store.exchange_slices("a", rows, None, NOW_MS)
        mark, found = await read_slices(store, "b")
        assert len(found) == number
        assert (await read_slices(store, "b", mark))[1] == {}


async def test_two_stores_on_one_database_read_each_others_slices(shared_url: str) -> None:
    async with opened(shared_url) as one, opened(shared_url) as other:
        marks: dict[str, StorePosition | None] = {"a": None, "b": None}
        for number in range(5):
            for name, store in (("a", one), ("b", other)):
                news = await store.exchange_slices(name, [slice_row(name, number)], marks[name], NOW_MS)
                marks[name] = news.position
                assert {row.writer for row in news.rows} <= {"a", "b"} - {name}
        assert len((await read_slices(one, "c"))[1]) == 5
        assert {row.start_ms for row in (await one.exchange_slices("a", (), None, NOW_MS)).rows} == {
            number * 1000 for number in range(5)
        }


async def test_another_database_in_the_same_place_is_reported(url: str) -> None:
    async with opened(url) as store:
        mark, _ = await read_slices(store, "b")
        await store.change_all([], audit_row())
        assert not (await store.exchange_slices("b", (), mark, NOW_MS)).whole
        for other in (mark._replace(identity="another"), mark._replace(seq=mark.seq + 1000)):
            assert (await store.exchange_slices("b", (), other, NOW_MS)).whole


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([slice_row("")], "slice.writer"),
        ([slice_row("a", raw=bytes(MAX_SLICE_BYTES + 1))], "slice.raw"),
        ([slice_row("a", -1)], "slice.start_ms"),
        ([slice_row("a", until_ms=1 << 60)], "slice.until_ms"),
        ([slice_row("a")] * (MAX_SLICES_WRITTEN + 1), "slices"),
    ],
)
async def test_an_invalid_slice_is_refused(rows: Sequence[SliceRow], field: str) -> None:
    async with opened("memory") as store:
        with pytest.raises(Refusal) as refused:
            await store.exchange_slices("a", rows, None, NOW_MS)
        assert refused.value.error.field == field
