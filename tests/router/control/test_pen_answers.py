"""What a pen makes of every answer that a store can give: who is told what, and what is in force here afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire
from router.control.audit import AuditWriter, ChangeAuthor, DocumentCache, DocumentRevision, audit_row
from router.store.rows import AuditRow, Document, DocumentBody, StoreConflict, StoreUnavailable

PLACE = ("knob", "k")


def document(version: int, number: int) -> Document:
    return Document(*PLACE, version, {"n": number}, 0, "bo")


class Answers:
    """A store that holds one document and says beforehand what it will answer."""

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


def raised(body: DocumentBody | None) -> DocumentRevision:
    number = 0 if body is None else int(body["n"])
    return DocumentRevision(
        {"n": number + 1}, audit_row(1.0, ChangeAuthor("ada", "why"), "raise", "k", str(number), str(number + 1))
    )


def desk(held: Document | None, *failures: Exception) -> tuple[AuditWriter, DocumentCache, Answers]:
    store, shelf = Answers(held, *failures), DocumentCache()
    return AuditWriter(store, shelf, {}, lambda _: None), shelf, store  # type: ignore[arg-type]


@pytest.mark.parametrize(("certain", "said"), [(True, "could not be stored"), (False, "may or may not have been made")])
def test_a_refused_change_states_whether_it_is_certain(certain: bool, said: str) -> None:
    pen, shelf, _ = desk(None, StoreUnavailable("gone", certain=certain))
    with pytest.raises(Refusal, match=said) as refused:
        asyncio.run(pen.order(*PLACE, raised))
    assert refused.value.error.reason == wire.ERROR_REASON_STORE_UNAVAILABLE
    assert shelf.body(*PLACE) is None and not shelf.unsaved, "an order is in force when it is written, or not at all"


@pytest.mark.parametrize("known", [None, document(3, 10), document(9, 10)])
@pytest.mark.parametrize("held", [None, document(3, 10), document(5, 20), document(12, 20)])
@pytest.mark.parametrize("how", ["order", "act"])
def test_whatever_was_known_here_the_change_follows_what_the_store_holds(
    known: Document | None, held: Document | None, how: str
) -> None:
    """Also where the store has gone back, or has nothing at all: as after another database was put in its place."""
    pen, shelf, store = desk(held)
    if known is not None:
        shelf.take(known)
    asyncio.run(_done(getattr(pen, how)))
    start = 0 if held is None or held.body is None else int(held.body["n"])
    assert store.held is not None and store.held.body == {"n": start + 1}
    assert shelf.body(*PLACE) == store.held.body and shelf.version(*PLACE) == store.held.version
    assert [each.before for each in store.rows] == [str(start)]


async def _done(change: Callable[..., Any]) -> None:
    await change(*PLACE, raised)


def test_repeated_conflicts_refuse_the_change() -> None:
    pen, shelf, store = desk(
        document(1, 1), *(StoreConflict(*PLACE, document(number, number)) for number in range(2, 40))
    )
    with pytest.raises(Refusal):
        asyncio.run(pen.order(*PLACE, raised))
    assert not store.rows and not shelf.unsaved
    assert len(store.failures) == 30, "eight times, and no more"


def test_what_cannot_be_read_here_is_left_as_it_is() -> None:
    """By machines without a word, and by operators with one."""
    pen, shelf, store = desk(document(3, 10))
    shelf.take(document(3, 10))
    assert shelf.read(*PLACE, _unreadable) is None and shelf.is_unreadable(*PLACE)
    assert not asyncio.run(pen.act(*PLACE, raised))
    with pytest.raises(Refusal, match="another version of Octet"):
        asyncio.run(pen.order(*PLACE, raised))
    assert store.held == document(3, 10) and not store.rows and not shelf.unsaved
    shelf.take(document(4, 10))
    assert not shelf.is_unreadable(*PLACE), "what came in its place may be read again"


def _unreadable(body: DocumentBody) -> None:
    raise ValueError("written by another version")
