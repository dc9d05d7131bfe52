"""Changes that could not be stored at first are retried, and stored before later changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octet.rpc.refusal import Refusal
from router.control.audit import AuditWriter, ChangeAuthor, DocumentCache, DocumentRevision, ReviseDocument, audit_row
from router.store.rows import AuditRow, Document, DocumentBody, StoreUnavailable
from router.store.store import Store
from tests.router.control.harness import DatabaseLink, reason_of
from tests.router.store.stores import eventually, make_store


def adding(letter: str, who: str = "breaker") -> ReviseDocument:
    """Return a function that appends the letter to the document's text."""

    def revise(body: DocumentBody | None) -> DocumentRevision:
        before = "" if body is None else str(body["text"])
        change = audit_row(
            1_700_000_000.0, ChangeAuthor(who, "because"), f"add {letter}", "algo", before, before + letter
        )
        return DocumentRevision({"text": before + letter}, change)

    return revise


@asynccontextmanager
async def make_writer(where: Path, link: DatabaseLink) -> AsyncIterator[tuple[AuditWriter, DocumentCache, Store]]:
    store, cache = make_store(f"sqlite:{where}", wrap=link.wrap), DocumentCache()

    def take(changes: object) -> None:
        for document in changes.documents:  # type: ignore[attr-defined]
            cache.take(document)

    store.on_change = take
    await store.start()
    try:
        yield AuditWriter(store, cache, {}, lambda _: None), cache, store
    finally:
        await store.close()


async def act_during_outage(store: Store, link: DatabaseLink, writer: AuditWriter, letter: str) -> None:
    """Make an automatic change while the store is unavailable, then restore the store."""
    link.is_broken = True
    assert await writer.act("breaker", "algo", adding(letter))
    await eventually(lambda: bool(store.trouble))
    link.is_broken = False
    await eventually(lambda: not store.trouble)


async def audit_rows(store: Store) -> list[AuditRow]:
    return list(reversed(await store.audit(100)))


def run_after_outage(where: Path, then: Callable[[AuditWriter, DocumentCache], object]) -> None:
    async def scenario() -> None:
        link = DatabaseLink()
        async with make_writer(where, link) as (writer, cache, store):
            assert await writer.act("breaker", "algo", adding("a"))
            await act_during_outage(store, link, writer, "b")
            assert ("breaker", "algo") in cache.unsaved
            await then(writer, cache)  # type: ignore[misc]
            await writer.save_pending()
            assert not cache.unsaved and cache.body("breaker", "algo") == {"text": "abc"}
            rows = await audit_rows(store)
            assert [each.what for each in rows if each.what != "add b"] == ["add a", "add c"]
            assert sum(each.what == "add b" for each in rows) == 1
            assert not any("somebody else's change stands" in each.why for each in rows)
            (document,) = await store.documents()
            assert document.body == {"text": "abc"}

    asyncio.run(scenario())


def test_an_order_is_stored_after_unsaved_changes(tmp_path: Path) -> None:
    async def then(writer: AuditWriter, cache: DocumentCache) -> None:
        await writer.order("breaker", "algo", adding("c", "ann"))
        assert not cache.unsaved, "the order, and all changes before it, must be stored when the call returns"

    run_after_outage(tmp_path / "s", then)


def test_an_automatic_change_builds_on_unsaved_changes(tmp_path: Path) -> None:
    async def then(writer: AuditWriter, cache: DocumentCache) -> None:
        assert await writer.act("breaker", "algo", adding("c"))
        assert cache.body("breaker", "algo") == {"text": "abc"}

    run_after_outage(tmp_path / "s", then)


async def test_an_order_is_refused_while_earlier_changes_cannot_be_stored(tmp_path: Path) -> None:
    link = DatabaseLink()
    async with make_writer(tmp_path / "s", link) as (writer, cache, store):
        await writer.act("breaker", "algo", adding("a"))
        await act_during_outage(store, link, writer, "b")
        link.is_broken = True
        with pytest.raises(Refusal) as caught:
            await writer.order("breaker", "algo", adding("c", "ann"))
        assert reason_of(caught.value) == "STORE_UNAVAILABLE"
        assert cache.body("breaker", "algo") == {"text": "ab"}, "the current state must stay"
        link.is_broken = False
        await eventually(lambda: not store.trouble)


async def test_an_order_is_refused_if_storing_the_earlier_change_fails(tmp_path: Path) -> None:
    link = DatabaseLink()
    async with make_writer(tmp_path / "s", link) as (writer, cache, store):
        await writer.act("breaker", "algo", adding("a"))
        await act_during_outage(store, link, writer, "b")
        change, failures = store.change, [StoreUnavailable("gone")]

        async def failing(*arguments: Any) -> Document:
            if failures:
                raise failures.pop()
            return await change(*arguments)

        store.change = failing  # type: ignore[method-assign, assignment]
        with pytest.raises(Refusal) as caught:
            await writer.order("breaker", "algo", adding("c", "ann"))
        assert reason_of(caught.value) == "STORE_UNAVAILABLE" and not failures
        assert cache.body("breaker", "algo") == {"text": "ab"}
        await writer.order("breaker", "algo", adding("c", "ann"))
        assert cache.body("breaker", "algo") == {"text": "abc"} and not cache.unsaved


async def test_simultaneous_changes_are_made_in_sequence(tmp_path: Path) -> None:
    async with make_writer(tmp_path / "s", DatabaseLink()) as (writer, cache, _):
        orders = (writer.order("breaker", "algo", adding("o", "ann")) for _ in range(20))
        acts = (writer.act("breaker", "algo", adding("a")) for _ in range(20))
        await asyncio.gather(*orders, *acts)
        text = (cache.body("breaker", "algo") or {})["text"]
        assert sorted(text) == ["a"] * 20 + ["o"] * 20
