"""How the audit writer reacts to every response of the store, and the state that is in force afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire
from router.control.audit import AuditWriter, ChangeAuthor, DocumentCache, DocumentRevision, audit_row
from router.store.rows import AuditRow, Document, DocumentBody, StoreConflict, StoreUnavailable

KEY = ("knob", "k")


def document(version: int, number: int) -> Document:
    return Document(*KEY, version, {"n": number}, 0, "bo")


class FakeStore:
    """A store with one document, whose first calls fail with the given errors."""

    def __init__(self, held: Document | None, *failures: Exception) -> None:
        self.held = held
        self.failures = list(failures)
        self.trouble = ""
        self.rows: list[AuditRow] = []

    async def change(self, kind: str, key: str, expected: int, body: DocumentBody | None, audit: AuditRow) -> Document:
        if self.failures:
            raise self.failures.pop(0)
        version = 0 if self.held is None else self.held.version
        if expected != version:
            raise StoreConflict(kind, key, self.held)
        self.held = Document(kind, key, version + 1, body, audit.at_ms, audit.who)
        self.rows.append(audit)
        return self.held

    async def change_all(self, edits: list[object], audit: AuditRow) -> None:
        self.rows.append(audit)


def increment(body: DocumentBody | None) -> DocumentRevision:
    number = 0 if body is None else int(body["n"])
    return DocumentRevision(
        {"n": number + 1}, audit_row(1.0, ChangeAuthor("ada", "why"), "raise", "k", str(number), str(number + 1))
    )


def make_writer(held: Document | None, *failures: Exception) -> tuple[AuditWriter, DocumentCache, FakeStore]:
    store, cache = FakeStore(held, *failures), DocumentCache()
    return AuditWriter(store, cache, {}, lambda _: None), cache, store  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("certain", "message"), [(True, "could not be stored"), (False, "unknown whether the change was committed")]
)
def test_a_refused_change_states_whether_it_is_certain(certain: bool, message: str) -> None:
    writer, cache, _ = make_writer(None, StoreUnavailable("gone", certain=certain))
    with pytest.raises(Refusal, match=message) as refused:
        asyncio.run(writer.order(*KEY, increment))
    assert refused.value.error.reason == wire.ERROR_REASON_STORE_UNAVAILABLE
    assert cache.body(*KEY) is None and not cache.unsaved, "an order may be in force only once it is stored"


@pytest.mark.parametrize("known", [None, document(3, 10), document(9, 10)])
@pytest.mark.parametrize("held", [None, document(3, 10), document(5, 20), document(12, 20)])
@pytest.mark.parametrize("how", ["order", "act"])
def test_a_change_follows_the_stored_document_whatever_was_cached(
    known: Document | None, held: Document | None, how: str
) -> None:
    """Each change starts from the stored document, even if it is older than the cached document, or missing."""
    writer, cache, store = make_writer(held)
    if known is not None:
        cache.take(known)
    asyncio.run(_apply(getattr(writer, how)))
    start = 0 if held is None or held.body is None else int(held.body["n"])
    assert store.held is not None and store.held.body == {"n": start + 1}
    assert cache.body(*KEY) == store.held.body and cache.version(*KEY) == store.held.version
    assert [each.before for each in store.rows] == [str(start)]


async def _apply(change: Callable[..., Any]) -> None:
    await change(*KEY, increment)


def test_repeated_conflicts_refuse_the_change() -> None:
    writer, cache, store = make_writer(
        document(1, 1), *(StoreConflict(*KEY, document(number, number)) for number in range(2, 40))
    )
    with pytest.raises(Refusal):
        asyncio.run(writer.order(*KEY, increment))
    assert not store.rows and not cache.unsaved
    assert len(store.failures) == 30, "the change must be tried eight times"


def test_an_unreadable_document_is_not_changed() -> None:
    """If a document cannot be read, automatic changes are skipped and operators' changes are refused."""
    writer, cache, store = make_writer(document(3, 10))
    cache.take(document(3, 10))
    assert cache.read(*KEY, _unreadable) is None and cache.is_unreadable(*KEY)
    assert not asyncio.run(writer.act(*KEY, increment))
    with pytest.raises(Refusal, match="another version of Octet"):
        asyncio.run(writer.order(*KEY, increment))
    assert store.held == document(3, 10) and not store.rows and not cache.unsaved
    cache.take(document(4, 10))
    assert not cache.is_unreadable(*KEY), "the next version must be readable again"


def _unreadable(body: DocumentBody) -> None:
    raise ValueError("written by another version")
