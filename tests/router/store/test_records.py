"""Queries return the newest receipts with the given labels. A router also finds receipts that it has buffered but not
yet written."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.store import sync
from router.store.buffer import VerdictBuffer, WriteBuffer
from router.store.migrations import ADD_JOBS, INITIAL_SCHEMA
from router.store.rows import (
    ComparisonRow,
    ReceiptLabels,
    ReceiptQuery,
    ReceiptRow,
    StoreUnavailable,
    VerdictRow,
)
from router.store.store import opener_for_url
from tests.patience import PATIENCE
from tests.router.store.stores import NOW, audit_row, eventually, make_store, opened

TENANTS, SPECIALISTS, OUTCOMES = ("", "ann", "bob"), ("", "stl", "debug"), ("answered", "refused", "failed")


def receipt(number: int, at_ms: int = 0, *labels: str) -> ReceiptRow:
    return ReceiptRow(
        f"r{number}", at_ms or number, f"raw {number}".encode(), ReceiptLabels(*(labels or ("", "stl", "answered")))
    )


@st.composite
def rows(draw: st.DrawFn) -> list[ReceiptRow]:
    kinds = st.tuples(st.sampled_from(TENANTS), st.sampled_from(SPECIALISTS), st.sampled_from(OUTCOMES))
    drawn = draw(st.lists(st.tuples(st.integers(1, 30), kinds), max_size=40))
    return [receipt(number, at_ms, *kind) for number, (at_ms, kind) in enumerate(drawn)]


queries = st.builds(
    ReceiptQuery,
    st.integers(1, 12),
    st.integers(0, 32),
    st.builds(ReceiptLabels, st.sampled_from(TENANTS), st.sampled_from(SPECIALISTS), st.sampled_from(("", *OUTCOMES))),
)


def expected(kept: Sequence[ReceiptRow], query: ReceiptQuery) -> list[int]:
    wanted = query.labels
    found = [
        row.at_ms
        for row in kept
        if (not query.before_ms or row.at_ms < query.before_ms)
        and wanted.tenant in ("", row.labels.tenant)
        and wanted.specialist in ("", row.labels.specialist)
        and wanted.outcome in ("", row.labels.outcome)
    ]
    return sorted(found, reverse=True)[: query.most]


async def emptied(url: str) -> None:
    connection = opener_for_url(url, "test", None).open()
    connection.begin()
    connection.execute("DELETE FROM receipts")
    connection.commit()
    connection.close()


def test_the_newest_receipts_with_every_label_are_found_written_or_buffered(shared_url: str) -> None:
    async def scenario(kept: list[ReceiptRow], later: list[ReceiptRow], query: ReceiptQuery) -> None:
        await eventually(lambda: mine.counters().held_receipts == 0)
        await emptied(shared_url)
        for row in kept:
            mine.keep_receipt(row)
        await eventually(lambda: mine.counters().held_receipts == 0)
        again = {row.request_id: row for row in (*kept, *later)}
        for row in later:
            mine.keep_receipt(row)
        for store, all_of_them in ((other, kept), (mine, list(again.values()))):
            if store is other and later:
                continue  # Some of the later receipts may be written by now.
            found = await store.newest_receipts(query)
            assert [row.at_ms for row in found] == expected(all_of_them, query)
            assert all(row in all_of_them for row in found)

    with asyncio.Runner() as runner:
        mine, other = make_store(shared_url), make_store(shared_url)
        for store in (mine, other):
            runner.run(store.start())

        @given(rows(), st.one_of(st.just([]), rows()), queries)
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        def law(kept: list[ReceiptRow], later: list[ReceiptRow], query: ReceiptQuery) -> None:
            runner.run(scenario(kept, later, query))

        try:
            law()
        finally:
            for store in (mine, other):
                runner.run(store.close())


async def test_receipts_of_an_older_program_get_their_labels(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "_PRUNE_SECONDS", 0.05)
    async with opened(shared_url, migrations=(INITIAL_SCHEMA, ADD_JOBS)):
        pass
    connection = opener_for_url(shared_url, "test", None).open()
    connection.begin()
    old = [(number, f"ann:r{number}", NOW, b"stl" if number % 2 else b"debug") for number in range(1, 1201)]
    connection.execute_each("INSERT INTO receipts (number, request_id, at_ms, raw) VALUES (?, ?, ?, ?)", old)
    connection.execute("UPDATE meta SET receipts = 1200")
    connection.commit()
    connection.close()
    store = make_store(shared_url)
    store.label_receipt = lambda raw: ReceiptLabels("ann", raw.decode(), "answered")
    await store.start()
    try:
        assert len(await store.newest_receipts(ReceiptQuery(2000))) == 1200
        query = ReceiptQuery(2000, labels=ReceiptLabels("ann", "stl", "answered"))
        async with asyncio.timeout(PATIENCE):
            while len(await store.newest_receipts(query)) < 600:
                await asyncio.sleep(0.05)
        (found,) = await store.receipts_by_id("r7")
        assert (found.request_id, found.labels.specialist) == ("ann:r7", "stl")
    finally:
        await store.close()


async def test_a_request_of_any_tenant_is_found_by_id(url: str) -> None:
    async with opened(url) as store:
        for name, tenant in (("ann:mine", "ann"), ("bob:mine", "bob"), ("bob:ann:mine", "bob"), ("plain", "")):
            store.keep_receipt(ReceiptRow(name, NOW, b"x", ReceiptLabels(tenant, "stl", "failed")))
        for _ in ("held", "written"):
            for asked, names in (
                ("mine", ["ann:mine", "bob:mine"]), ("plain", ["plain"]), ("ann:mine", ["bob:ann:mine"]),
                ("no", []), ("", []), ("\0", []), ("x" * 300, []),
            ):  # fmt: skip
                found = await store.receipts_by_id(asked)
                assert sorted(row.request_id for row in found) == names, asked
            await eventually(lambda: store.counters().held_receipts == 0)
        assert list(await store.newest_receipts(ReceiptQuery(9, labels=ReceiptLabels("\0")))) == []


async def test_a_verdict_is_shown_with_its_own_receipt_only(url: str) -> None:
    async with opened(url) as store:

        async def judged(name: str) -> str:
            row = await store.receipt(name)
            assert row is not None
            return row.judged

        for number in (1, 2):
            store.keep_receipt(receipt(number, NOW))
        store.keep_verdict(VerdictRow("r1", NOW, "passed"))
        assert (await judged("r1"), await judged("r2")) == ("passed", "")
        await eventually(lambda: store.counters().held_receipts == 0)
        store.keep_verdict(VerdictRow("r2", NOW, "failed"))
        assert (await judged("r1"), await judged("r2")) == ("passed", "failed")
        # This verdict belongs to an earlier request with the same id.
        store.keep_verdict(VerdictRow("r1", NOW - 1, "failed"))
        store.keep_verdict(VerdictRow("never", NOW, "failed"))
        await eventually(lambda: store._held.is_empty)
        assert (await judged("r1"), await judged("r2")) == ("passed", "failed")
        store.keep_receipt(receipt(1, NOW + 5))
        await eventually(lambda: store.counters().held_receipts == 0)
        assert await judged("r1") == "", "another request has the same id now"
        for wrong in (VerdictRow("\0", NOW, "passed"), VerdictRow("r1", NOW, "x" * 300)):
            store.keep_verdict(wrong)
        assert store.counters().dropped_verdicts == 2


def test_buffered_verdicts_are_bounded() -> None:
    held = VerdictBuffer(most=3)
    for number in range(5):
        held.add(VerdictRow(f"r{number}", NOW, "passed"))
    assert (len(held), held.num_dropped) == (3, 2)
    assert [each.request_id for each in held.take(2)] == ["r2", "r3"] and len(held) == 1
    row = receipt(2, NOW)
    assert held.apply(row) == row._replace(judged="passed"), "the verdict is still being written"
    held.forget_taken()
    assert held.apply(row) == row
    full = WriteBuffer(10)
    full.keep_verdict(VerdictRow("r", NOW, "passed"))
    batch = full.next_batch()
    assert not full.is_empty and batch is not None and len(batch.verdicts) == 1
    full.confirm(batch)
    assert full.is_empty


async def test_comparisons_and_audit_rows_of_a_request_are_found(url: str) -> None:
    async with opened(url) as store:
        for number in range(3):
            store.keep_comparison(ComparisonRow(NOW + number, "ann:mine", b"%d" % number))
            store.keep_comparison(ComparisonRow(NOW + number, "mine", b"other"))
        for subject in ("stl", "stl-0", "debug"):
            await store.change_all([], audit_row(subject))
        for _ in ("held", "written"):
            assert [row.raw for row in await store.find_comparisons("ann:mine")] == [b"2", b"1", b"0"]
            await eventually(lambda: store.counters().held_comparisons == 0)
        at = NOW * 1000
        for subjects, since, until, found in (
            (["stl", "stl-0", "absent"], at, at, ["stl-0", "stl"]),
            (["stl"], at + 1, at + 9, []),
            (["stl"], 0, at - 1, []),
            (["", "\0"], 0, at, []),
            ([], 0, at, []),
        ):
            assert [row.subject for row in await store.find_audit(subjects, since, until, 9)] == found
        (last,) = await store.find_audit(["stl", "stl-0"], at, at, 1)
        assert last.subject == "stl-0"


async def test_an_unavailable_store_is_reported(tmp_path: Path) -> None:
    async with opened(f"sqlite:{tmp_path}") as store:  # A folder is not a database.
        store.keep_receipt(receipt(1))
        calls: list[Any] = [
            store.newest_receipts(ReceiptQuery(9)),
            store.receipts_by_id("r1"),
            store.find_comparisons("r1"),
            store.find_audit(["stl"], 0, NOW, 9),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call
