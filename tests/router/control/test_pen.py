"""What could not be stored goes before whatever comes after it."""

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
from tests.router.control.houses import Cut, reason_of
from tests.router.store.stores import eventually, make_store


def adding(letter: str, who: str = "breaker") -> ReviseDocument:
    """A letter at the end of what is written."""

    def revise(body: DocumentBody | None) -> DocumentRevision:
        before = "" if body is None else str(body["text"])
        change = audit_row(
            1_700_000_000.0, ChangeAuthor(who, "because"), f"add {letter}", "algo", before, before + letter
        )
        return DocumentRevision({"text": before + letter}, change)

    return revise


@asynccontextmanager
async def desk(where: Path, cut: Cut) -> AsyncIterator[tuple[AuditWriter, DocumentCache, Store]]:
    store, shelf = make_store(f"sqlite:{where}", wrap=cut.wrap), DocumentCache()

    def take(changes: object) -> None:
        for document in changes.documents:  # type: ignore[attr-defined]
            shelf.take(document)

    store.on_change = take
    await store.start()
    try:
        yield AuditWriter(store, shelf, {}, lambda _: None), shelf, store
    finally:
        await store.close()


async def without_the_store(store: Store, cut: Cut, pen: AuditWriter, letter: str) -> None:
    """A machine acts while the store is away, which then is back."""
    cut.is_cut = True
    assert await pen.act("breaker", "algo", adding(letter))
    await eventually(lambda: bool(store.trouble))
    cut.is_cut = False
    await eventually(lambda: not store.trouble)


async def story_of(store: Store) -> list[AuditRow]:
    return list(reversed(await store.audit(100)))


def play(where: Path, then: Callable[[AuditWriter, DocumentCache], object]) -> None:
    async def story() -> None:
        cut = Cut()
        async with desk(where, cut) as (pen, shelf, store):
            assert await pen.act("breaker", "algo", adding("a"))
            await without_the_store(store, cut, pen, "b")
            assert ("breaker", "algo") in shelf.unsaved
            await then(pen, shelf)  # type: ignore[misc]
            await pen.save_pending()
            assert not shelf.unsaved and shelf.body("breaker", "algo") == {"text": "abc"}
            rows = await story_of(store)
            assert [each.what for each in rows if each.what != "add b"] == ["add a", "add c"]
            assert sum(each.what == "add b" for each in rows) == 1
            assert not any("somebody else's change stands" in each.why for each in rows)
            (document,) = await store.documents()
            assert document.body == {"text": "abc"}

    asyncio.run(story())


def test_an_order_comes_after_what_was_not_written_yet(tmp_path: Path) -> None:
    async def then(pen: AuditWriter, shelf: DocumentCache) -> None:
        await pen.order("breaker", "algo", adding("c", "ann"))
        assert not shelf.unsaved, "durable when it returns, and so is all before it"

    play(tmp_path / "s", then)


def test_a_machine_acts_on_what_was_not_written_yet(tmp_path: Path) -> None:
    async def then(pen: AuditWriter, shelf: DocumentCache) -> None:
        assert await pen.act("breaker", "algo", adding("c"))
        assert shelf.body("breaker", "algo") == {"text": "abc"}

    play(tmp_path / "s", then)


async def test_nothing_is_ordered_over_what_cannot_be_written(tmp_path: Path) -> None:
    cut = Cut()
    async with desk(tmp_path / "s", cut) as (pen, shelf, store):
        await pen.act("breaker", "algo", adding("a"))
        await without_the_store(store, cut, pen, "b")
        cut.is_cut = True
        with pytest.raises(Refusal) as caught:
            await pen.order("breaker", "algo", adding("c", "ann"))
        assert reason_of(caught.value) == "STORE_UNAVAILABLE"
        assert shelf.body("breaker", "algo") == {"text": "ab"}, "what is in force here stays"
        cut.is_cut = False
        await eventually(lambda: not store.trouble)


async def test_an_order_waits_until_what_came_before_is_written(tmp_path: Path) -> None:
    """The store fails in the very moment that it is, and not when the order itself would be."""
    cut = Cut()
    async with desk(tmp_path / "s", cut) as (pen, shelf, store):
        await pen.act("breaker", "algo", adding("a"))
        await without_the_store(store, cut, pen, "b")
        change, failures = store.change, [StoreUnavailable("gone")]

        async def failing(*arguments: Any) -> Document:
            if failures:
                raise failures.pop()
            return await change(*arguments)

        store.change = failing  # type: ignore[method-assign, assignment]
        with pytest.raises(Refusal) as caught:
            await pen.order("breaker", "algo", adding("c", "ann"))
        assert reason_of(caught.value) == "STORE_UNAVAILABLE" and not failures
        assert shelf.body("breaker", "algo") == {"text": "ab"}
        await pen.order("breaker", "algo", adding("c", "ann"))
        assert shelf.body("breaker", "algo") == {"text": "abc"} and not shelf.unsaved


async def test_changes_at_once_are_made_one_after_the_other(tmp_path: Path) -> None:
    async with desk(tmp_path / "s", Cut()) as (pen, shelf, _):
        orders = (pen.order("breaker", "algo", adding("o", "ann")) for _ in range(20))
        acts = (pen.act("breaker", "algo", adding("a")) for _ in range(20))
        await asyncio.gather(*orders, *acts)
        text = (shelf.body("breaker", "algo") or {})["text"]
        assert sorted(text) == ["a"] * 20 + ["o"] * 20
