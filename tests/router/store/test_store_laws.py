"""Random histories of changes, counts and rows give the same state as a plain dictionary, on every database."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from router.store.database import Database, StoreSnapshot
from router.store.rows import ComparisonRow, DocumentEdit, ReceiptRow, StoreConflict
from router.store.store import opener_for_url
from tests.router.store.stores import NOW, Follower, audit_row, counted, eventually, make_store

KINDS = st.sampled_from(["knob", "breaker"])
KEYS = st.sampled_from(["a", "b", "ü\u2028'\"%s?"])
VALUES = st.one_of(st.none(), st.integers(), st.text(st.characters(exclude_categories=()), max_size=8), st.booleans())
BODIES = st.dictionaries(
    st.text(st.characters(exclude_categories=()), max_size=4), VALUES | st.lists(VALUES), max_size=3
)
IDS = st.sampled_from(["r1", "r2", "r3"])


def empty(url: str) -> None:
    """Delete the rows of the previous history."""
    if url == "memory":
        return
    store = make_store(url)
    connection = opener_for_url(url, "test", None).open()
    store._worker._migrate(connection)
    with Database(connection, StoreSnapshot("", lambda: NOW)).transaction():
        for table in ("documents", "audit", "buckets", "receipts", "comparisons", "writers"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
        connection.execute("UPDATE meta SET seq = 0, audits = 0, receipts = 0, comparisons = 0")
    connection.close()


class Histories(RuleBasedStateMachine):
    url = ""

    def __init__(self) -> None:
        super().__init__()
        empty(self.url)
        self.loop = asyncio.new_event_loop()
        self.follower = Follower()
        self.bodies: dict[tuple[str, str], Any] = {}
        self.versions: dict[tuple[str, str], int] = {}
        self.last_version = 0
        self.num_audits = 0
        self.good: Counter[tuple[str, int]] = Counter()
        self.receipts: dict[str, ReceiptRow] = {}
        self.comparisons: list[ComparisonRow] = []
        self.open()

    def open(self) -> None:
        self.store = make_store(self.url)
        self.store.on_change = self.follower.on_change
        self.loop.run_until_complete(self.store.start())
        assert self.store.trouble == ""

    def attempt(self, *edits: DocumentEdit) -> Any:
        return self.loop.run_until_complete(self.store.change_all(edits, audit_row()))

    @rule(kind=KINDS, key=KEYS, body=st.none() | BODIES, off=st.sampled_from([0, 0, 0, 1, -1]))
    def change(self, kind: str, key: str, body: Any, off: int) -> None:
        version = self.versions.get((kind, key), 0)
        expected = max(0, version + off)
        if expected != version:
            with pytest.raises(StoreConflict) as stale:
                self.attempt(DocumentEdit(kind, key, expected, body))
            current = stale.value.current
            assert (current.body if current else None) == self.bodies.get((kind, key))
            return
        (document,) = self.attempt(DocumentEdit(kind, key, expected, body))
        self.made(kind, key, body, document.version)
        assert document.body == body

    def made(self, kind: str, key: str, body: Any, version: int) -> None:
        assert version > self.last_version
        self.last_version = version
        self.num_audits += 1
        self.bodies.pop((kind, key), None)
        self.versions.pop((kind, key), None)
        if body is not None:
            self.bodies[kind, key] = body
            self.versions[kind, key] = version

    @rule(key=KEYS, right=st.booleans())
    def change_two(self, key: str, right: bool) -> None:
        first, second = self.versions.get(("two", key), 0), self.versions.get(("knob", key), 0)
        edits = (
            DocumentEdit("two", key, first, {"n": 1}),
            DocumentEdit("knob", key, second if right else second + 1, None),
        )
        if right:
            version = self.attempt(*edits)[0].version
            self.made("two", key, {"n": 1}, version)
            self.bodies.pop(("knob", key), None)
            self.versions.pop(("knob", key), None)
        else:
            with pytest.raises(StoreConflict):
                self.attempt(*edits)

    @rule()
    def note(self) -> None:
        assert self.attempt() == ()
        self.num_audits += 1

    @rule(key=KEYS, start=st.sampled_from([NOW, NOW - 60]), good=st.integers(0, 5))
    def count(self, key: str, start: int, good: int) -> None:
        self.follower.count(self.store, counted(good, 0, key, start))
        self.good[key, start] += good

    @rule(request_id=IDS, raw=st.binary(max_size=8))
    def keep_receipt(self, request_id: str, raw: bytes) -> None:
        row = ReceiptRow(request_id, NOW, raw)
        self.store.keep_receipt(row)
        self.receipts[request_id] = row

    @rule(request_id=IDS, raw=st.binary(max_size=8))
    def keep_comparison(self, request_id: str, raw: bytes) -> None:
        row = ComparisonRow(NOW, request_id, raw)
        self.store.keep_comparison(row)
        self.comparisons.append(row)

    @rule(request_id=IDS)
    def read_receipt(self, request_id: str) -> None:
        kept = self.loop.run_until_complete(self.store.receipt(request_id))
        assert kept == self.receipts.get(request_id)

    @rule()
    def reopen(self) -> None:
        if self.url != "memory":
            self.loop.run_until_complete(self.store.close())
            self.open()

    @invariant()
    def sums_are_right(self) -> None:
        buckets = self.loop.run_until_complete(self.store.buckets("correctness", NOW - 60))
        assert {(each.key, each.start): each.good for each in buckets if each.good} == +self.good

    @invariant()
    def documents_are_right(self) -> None:
        documents = self.loop.run_until_complete(self.store.documents())
        assert {(each.kind, each.key): each.body for each in documents} == self.bodies
        assert {(each.kind, each.key): each.version for each in documents} == self.versions

    def teardown(self) -> None:
        self.loop.run_until_complete(self.at_the_end())
        self.loop.close()

    async def at_the_end(self) -> None:
        try:
            await eventually(lambda: self.store._held.is_empty and self.follower.bodies() == self.bodies)
            assert [row async for row in self.store.comparisons(NOW)] == self.comparisons
            numbers = [row.number for row in await self.store.audit()]
            assert numbers == list(range(self.num_audits, 0, -1))
            assert self.follower.dips == []
            assert {place[1:]: good for place, (good, _) in self.follower.sums.items() if good} == +self.good
        finally:
            await self.store.close()


def test_the_store_equals_a_dictionary(url: str) -> None:
    class Here(Histories):
        pass

    Here.url = url
    run_state_machine_as_test(Here, settings=settings(max_examples=8, stateful_step_count=25))
