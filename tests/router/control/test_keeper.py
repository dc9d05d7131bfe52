"""What the keeper leaves alone, and for how long: an adapter that is being brought is nobody's stray."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from admission.lanes import configure_lanes
from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from router.control.adapters import AdapterSync
from router.control.state import LANES, SharedState
from router.store.rows import Document
from tests.router.control.houses import ENSEMBLE
from tests.router.control.toys import Toy, Toys
from tests.router.store.stores import make_store

LINGER = 5.0


class Kept:
    """Two replicas of `algo` and their keeper; nothing is wanted of them."""

    def __init__(self) -> None:
        self.toys = Toys(Toy("algo-0", "algo"), Toy("algo-1", "algo"))
        self.toys.disk["/new"] = "digest"
        self.known = SharedState(ENSEMBLE, make_store("memory"), self.toys)
        book, _ = configure_lanes(None, "algo", (), "r1", 0.0)
        self.known.documents.take(Document(LANES, "algo", 1, book.to_body(), 0, "ada"))
        self.clock = ManualClock()
        self.keeper = AdapterSync(self.known, self.clock, self.wrong, LINGER)
        self.known.refresh()

    async def wrong(self, *_: object) -> None:
        raise AssertionError("nobody has another content")

    async def looked(self, seconds: float = 0.0) -> None:
        """Again and again, for so long."""
        for _ in range(3):
            self.clock.sleep(seconds / 3)
            self.known.refresh()
            self.keeper.sync()
            await asyncio.sleep(0.01)

    def holders(self, name: str) -> list[str]:
        return [toy.name for toy in self.toys.toys.values() if name in toy.adapters]


def story(told: Callable[[Kept], Awaitable[None]]) -> None:
    async def whole() -> None:
        kept = Kept()
        try:
            await told(kept)
        finally:
            await kept.keeper.close()

    asyncio.run(whole())


def test_what_is_being_installed_stays_however_long_it_takes() -> None:
    async def told(kept: Kept) -> None:
        async with kept.keeper.installing("algo", "new-2-ab", "/new") as digest:
            assert digest == "digest"
            await kept.looked(10 * LINGER)
            assert kept.holders("new-2-ab") == ["algo-0", "algo-1"]
        await kept.looked(LINGER / 2)
        assert kept.holders("new-2-ab") == ["algo-0", "algo-1"], "requests on their way may ask for it"
        await kept.looked(2 * LINGER)
        assert kept.holders("new-2-ab") == [], "no lane came of it"

    story(told)


def test_whatever_goes_wrong_while_it_is_installed_nothing_of_it_stays() -> None:
    async def told(kept: Kept) -> None:
        with pytest.raises(ValueError, match="no lane"):
            async with kept.keeper.installing("algo", "new-2-ab", "/new"):
                raise ValueError("no lane")
        assert kept.holders("new-2-ab") == []
        kept.toys["algo-1"].files = {"/new": "another digest"}
        with pytest.raises(Refusal):
            async with kept.keeper.installing("algo", "new-2-cd", "/new"):
                raise AssertionError("they are not the same")
        assert kept.holders("new-2-cd") == []

    story(told)
