"""What a reader of the tables is told, to the row: from which bucket on, up to which line, and when all of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from octet.store.database import Database, Proposal
from octet.store.held import Batch
from octet.store.history import History, Mark
from octet.store.migrations import MIGRATIONS, migrate
from octet.store.retention import LONGEST, Limits, prune
from octet.store.rows import AuditRow, ComparisonRow, Document, Edit, ReceiptRow
from octet.store.sqlite import SqliteMemory
from octet.store.values import body_text

NOW = 1_700_000_000


@contextmanager
def database() -> Iterator[Database]:
    connection = SqliteMemory().open()
    try:
        migrate(connection, "house", "identity", MIGRATIONS)
        yield Database(connection, History("memory", lambda: float(NOW)))
    finally:
        connection.close()


def change(number: int, version: int, body: dict[str, int] | None, key: str = "k") -> Proposal:
    text = None if body is None else body_text(body)
    audit = AuditRow(0, number, "ada", "why", "set", key, "", "")
    return Proposal(f"change-{number}", [Edit("knob", key, version, body)], [text], audit, "ada")


@given(st.lists(st.integers(0, 6), unique=True), st.integers(0, 6))
def test_of_buckets_those_are_told_that_begin_at_the_moment_or_later(starts: list[int], since: int) -> None:
    with database() as kept:
        kept.write(Batch(1, {("demand", "k", start): (1, 0) for start in starts}, [], []), "writer", NOW)
        _, changes = kept.news(None, since)
        assert changes is not None
        wanted = sorted(start for start in starts if start >= since)
        assert sorted(bucket.start for bucket in changes.buckets) == wanted
        assert sorted(bucket.start for bucket in kept.buckets("demand", since)) == wanted
        assert not kept.buckets("correctness", since)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_change_is_made_once_and_told_alike_however_often_it_is_asked_for(asked: list[int]) -> None:
    """As by somebody who never heard whether it was made."""
    with database() as kept:
        first = dict[int, tuple[Document, ...]]()
        for number in asked:
            documents = kept.change(change(number, 0, {"n": number}, f"k{number}"))
            assert first.setdefault(number, documents) == documents
        assert len(kept.audit(99, "", 99)) == kept.mark().audits == len(first)
        assert {each.key: each.version for each in kept.documents()} == {
            each.key: each.version for documents in first.values() for each in documents
        }


@given(st.integers(1, 6), st.integers(0, 9))
def test_whoever_has_seen_more_than_there_is_or_another_database_is_told_everything(made: int, seen: int) -> None:
    with database() as kept:
        for number in range(made):
            kept.change(change(number, 0, {"n": number}, f"k{number}"))
        here = kept.mark()
        assert here.seq == here.audits == made
        for mark, is_other in ((Mark(here.identity, seen, seen), False), (Mark("another", seen, seen), True)):
            _, changes = kept.news(mark, 0)
            if not is_other and seen == made:
                assert changes is None
                continue
            assert changes is not None and changes.whole == (is_other or seen > made)
            assert len(changes.documents) == (made if changes.whole else made - seen)
            if not changes.whole:
                assert [row.number for row in changes.audit] == list(range(seen + 1, made + 1)), "oldest first"


@given(st.integers(1, 8), st.integers(0, 9), st.integers(1, 9))
def test_the_audit_is_told_newest_first_and_below_a_number(made: int, before: int, most: int) -> None:
    with database() as kept:
        for number in range(made):
            kept.change(change(number, 0, {"n": number}, f"k{number}"))
        rows = kept.audit(most, "", before)
        assert [row.number for row in rows] == [number for number in range(made, 0, -1) if number < before][:most]


def test_a_deletion_is_news_for_who_knew_and_nothing_for_who_did_not() -> None:
    with database() as kept:
        (document,) = kept.change(change(1, 0, {"n": 1}))
        mark = kept.mark()
        kept.change(change(2, document.version, None))
        _, later = kept.news(mark, 0)
        _, first = kept.news(None, 0)
        assert later is not None and [each.body for each in later.documents] == [None]
        assert first is not None and not first.documents and not kept.documents()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 12))
def test_the_newest_receipts_are_kept_and_one_that_came_again_is_new(ids: list[int], most: int) -> None:
    with database() as kept:
        for number, each in enumerate(ids):
            row = ReceiptRow(f"r{each}", number, b"x")
            kept.write(Batch(number + 1, {}, [row], [ComparisonRow(number, f"r{each}", b"x")]), "writer", NOW)
        with kept.writing():
            prune(kept.connection, Limits(most, most, most), float(NOW))
        recent = {each for number, each in enumerate(ids) if number >= len(ids) - most}
        there = {each for each in set(ids) if kept.receipt(f"r{each}") is not None}
        assert there == recent
        compared = [row.at_ms for _, row in kept.comparisons(0, 0, 100)]
        assert compared == list(range(len(ids)))[max(0, len(ids) - most) :]


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=5))
def test_no_age_takes_a_document_only_the_trace_of_one_that_was_deleted(edits: list[tuple[int, bool]]) -> None:
    """A hold that an operator set a year ago holds."""
    with database() as kept:
        for number, (age, is_deleted) in enumerate(edits):
            at_ms = (NOW - LONGEST - age) * 1000
            (document,) = kept.change(aged(f"c{number}", f"k{number}", 0, {"n": 1}, at_ms))
            if is_deleted:
                kept.change(aged(f"d{number}", f"k{number}", document.version, None, at_ms))
        with kept.writing():
            prune(kept.connection, Limits(9, 9, 99), float(NOW))
        there = {each.key: each.body is None for each in kept.documents_after(0)}
        assert there == {
            f"k{number}": is_deleted for number, (age, is_deleted) in enumerate(edits) if not (is_deleted and age > 0)
        }


@given(st.lists(st.integers(-3, 3), unique=True))
def test_buckets_go_when_no_window_can_reach_them(ages: list[int]) -> None:
    with database() as kept:
        kept.write(Batch(1, {("demand", "k", NOW - LONGEST - age): (1, 0) for age in ages}, [], []), "writer", NOW)
        with kept.writing():
            assert not prune(kept.connection, Limits(9, 9, 9), float(NOW))
        assert {NOW - LONGEST - each.start for each in kept.buckets("demand", 0)} == {age for age in ages if age <= 0}


def aged(change_id: str, key: str, version: int, body: dict[str, int] | None, at_ms: int) -> Proposal:
    text = None if body is None else body_text(body)
    audit = AuditRow(0, at_ms, "ada", "why", "set", key, "", "")
    return Proposal(change_id, [Edit("knob", key, version, body)], [text], audit, "ada")
