"""The exact rows that readers of the tables get."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import StoreConfig
from router.control.demand import USUAL, USUAL_SECONDS
from router.control.weights import SUPERVISOR
from router.store.connection import SqliteMemory
from router.store.database import Database, StorePosition, StoreSnapshot
from router.store.migrations import MIGRATIONS, migrate
from router.store.rows import AuditRow, ComparisonRow, Document, DocumentEdit, ReceiptRow, WriteBatch
from router.store.sync import LONGEST_WINDOW, SHORT_SECONDS, prune_rows

NOW = 1_700_000_000


@contextmanager
def database() -> Iterator[Database]:
    connection = SqliteMemory().open()
    try:
        migrate(connection, "test", "identity", MIGRATIONS)
        yield Database(connection, StoreSnapshot("memory", lambda: float(NOW)))
    finally:
        connection.close()


Change = tuple[str, list[DocumentEdit], AuditRow]  # The arguments of `Database.change`.


def change(number: int, version: int, body: dict[str, int] | None, key: str = "k") -> Change:
    audit = AuditRow(0, number, "ada", "why", "set", key, "", "")
    return f"change-{number}", [DocumentEdit("knob", key, version, body)], audit


@given(st.lists(st.integers(0, 6), unique=True), st.integers(0, 6))
def test_buckets_that_begin_at_or_after_the_moment_are_reported(starts: list[int], since: int) -> None:
    with database() as kept:
        kept.write(WriteBatch(1, {("demand", "k", start): (1, 0) for start in starts}, [], []), "writer", NOW)
        _, changes = kept.changes_after(None, since)
        assert changes is not None
        wanted = sorted(start for start in starts if start >= since)
        assert sorted(bucket.start for bucket in changes.buckets) == wanted
        assert sorted(bucket.start for bucket in kept.buckets("demand", since)) == wanted
        assert not kept.buckets("correctness", since)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_repeated_change_is_made_once_and_reported_identically(asked: list[int]) -> None:
    with database() as kept:
        first = dict[int, tuple[Document, ...]]()
        for number in asked:
            documents = kept.change(*change(number, 0, {"n": number}, f"k{number}"))
            assert first.setdefault(number, documents) == documents
        assert len(kept.audit(99, "", 99)) == kept.position().audits == len(first)
        assert {each.key: each.version for each in kept.documents()} == {
            each.key: each.version for documents in first.values() for each in documents
        }


@given(st.integers(1, 6), st.integers(0, 9))
def test_a_reader_ahead_or_of_another_database_gets_everything(made: int, seen: int) -> None:
    with database() as kept:
        for number in range(made):
            kept.change(*change(number, 0, {"n": number}, f"k{number}"))
        here = kept.position()
        assert here.seq == here.audits == made
        for mark, is_other in (
            (StorePosition(here.identity, seen, seen), False),
            (StorePosition("another", seen, seen), True),
        ):
            _, changes = kept.changes_after(mark, 0)
            if not is_other and seen == made:
                assert changes is None
                continue
            assert changes is not None and changes.whole == (is_other or seen > made)
            assert len(changes.documents) == (made if changes.whole else made - seen)
            if not changes.whole:
                assert [row.number for row in changes.audit] == list(range(seen + 1, made + 1)), (
                    "the order must be oldest first"
                )


@given(st.integers(1, 8), st.integers(0, 9), st.integers(1, 9))
def test_the_audit_is_listed_newest_first_and_below_a_number(made: int, before: int, most: int) -> None:
    with database() as kept:
        for number in range(made):
            kept.change(*change(number, 0, {"n": number}, f"k{number}"))
        rows = kept.audit(most, "", before)
        assert [row.number for row in rows] == [number for number in range(made, 0, -1) if number < before][:most]


def test_a_deletion_is_reported_only_to_readers_that_knew_the_document() -> None:
    with database() as kept:
        (document,) = kept.change(*change(1, 0, {"n": 1}))
        mark = kept.position()
        kept.change(*change(2, document.version, None))
        _, later = kept.changes_after(mark, 0)
        _, first = kept.changes_after(None, 0)
        assert later is not None and [each.body for each in later.documents] == [None]
        assert first is not None and not first.documents and not kept.documents()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 12))
def test_the_newest_receipts_are_kept_and_one_that_came_again_is_new(ids: list[int], most: int) -> None:
    with database() as kept:
        for number, each in enumerate(ids):
            row = ReceiptRow(f"r{each}", number, b"x")
            kept.write(WriteBatch(number + 1, {}, [row], [ComparisonRow(number, f"r{each}", b"x")]), "writer", NOW)
        with kept.transaction():
            prune_rows(kept.connection, StoreConfig(receipts=most, comparisons=most, audit=most), float(NOW))
        recent = {each for number, each in enumerate(ids) if number >= len(ids) - most}
        there = {each for each in set(ids) if kept.receipt(f"r{each}") is not None}
        assert there == recent
        compared = [row.at_ms for _, row in kept.comparisons(0, 0, 100)]
        assert compared == list(range(len(ids)))[max(0, len(ids) - most) :]


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=5))
def test_documents_never_expire_but_deletion_marks_do(edits: list[tuple[int, bool]]) -> None:
    """An operator's hold, for example, is a document and must not expire."""
    with database() as kept:
        for number, (age, is_deleted) in enumerate(edits):
            at_ms = (NOW - LONGEST_WINDOW - age) * 1000
            (document,) = kept.change(*aged(f"c{number}", f"k{number}", 0, {"n": 1}, at_ms))
            if is_deleted:
                kept.change(*aged(f"d{number}", f"k{number}", document.version, None, at_ms))
        with kept.transaction():
            prune_rows(kept.connection, StoreConfig(receipts=9, comparisons=9, audit=99), float(NOW))
        there = {each.key: each.body is None for each in kept.documents_after(0)}
        assert there == {
            f"k{number}": is_deleted for number, (age, is_deleted) in enumerate(edits) if not (is_deleted and age > 0)
        }


@pytest.mark.parametrize(
    ("series", "longest"),
    [
        *(("correctness", LONGEST_WINDOW), (USUAL, USUAL_SECONDS)),
        *(("demand", SHORT_SECONDS), ("recent", SHORT_SECONDS), (SUPERVISOR, SHORT_SECONDS)),
    ],
)
@given(ages=st.lists(st.integers(-3, 3), unique=True))
def test_buckets_beyond_the_longest_window_are_deleted(series: str, longest: float, ages: list[int]) -> None:
    longest = int(longest)
    with database() as kept:
        kept.write(WriteBatch(1, {(series, "k", NOW - longest - age): (1, 0) for age in ages}, [], []), "writer", NOW)
        with kept.transaction():
            assert not prune_rows(kept.connection, StoreConfig(receipts=9, comparisons=9, audit=9), float(NOW))
        assert {NOW - longest - each.start for each in kept.buckets(series, 0)} == {age for age in ages if age <= 0}


def aged(change_id: str, key: str, version: int, body: dict[str, int] | None, at_ms: int) -> Change:
    audit = AuditRow(0, at_ms, "ada", "why", "set", key, "", "")
    return change_id, [DocumentEdit("knob", key, version, body)], audit
