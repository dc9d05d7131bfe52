"""An adapter that is being installed stays on the replicas. If its installation fails, or no lane uses it for a while,
it is unloaded."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from admission.lanes import configure_lanes
from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from router.control.adapters import AdapterSync
from router.control.state import LANES, SharedState
from router.store.rows import Document
from tests.router.control.fake_replicas import FakeReplica, FakeReplicas
from tests.router.control.harness import ENSEMBLE
from tests.router.store.stores import eventually, make_store

UNUSED_SECONDS = 5.0


class SyncHarness:
    """Two replicas of `algo` whose lane needs no adapter."""

    def __init__(self) -> None:
        self.replicas = FakeReplicas(FakeReplica("algo-0", "algo"), FakeReplica("algo-1", "algo"))
        self.replicas.disk["/new"] = "digest"
        self.known = SharedState(ENSEMBLE, make_store("memory"), self.replicas)
        book, _ = configure_lanes(None, "algo", (), "r1", 0.0)
        self.known.documents.take(Document(LANES, "algo", 1, book.to_body(), 0, "ada"))
        self.clock = ManualClock()
        self.adapter_sync = AdapterSync(self.known, self.clock, self.wrong, UNUSED_SECONDS)
        self.known.refresh()

    async def wrong(self, *_: object) -> None:
        raise AssertionError("no replica has other content")

    async def sync_for(self, seconds: float) -> None:
        for _ in range(3):
            self.clock.sleep(seconds / 3)
            self.known.refresh()
            self.adapter_sync.sync()
            await eventually(lambda: not self.adapter_sync._tasks)

    def holders(self, name: str) -> list[str]:
        return [replica.name for replica in self.replicas.replicas.values() if name in replica.adapters]


def run_scenario(scenario: Callable[[SyncHarness], Awaitable[None]]) -> None:
    async def whole() -> None:
        harness = SyncHarness()
        try:
            await scenario(harness)
        finally:
            await harness.adapter_sync.close()

    asyncio.run(whole())


def test_an_adapter_stays_while_it_is_installed() -> None:
    async def scenario(harness: SyncHarness) -> None:
        async with harness.adapter_sync.installing("algo", "new-2-ab", "/new") as digest:
            assert digest == "digest"
            await harness.sync_for(10 * UNUSED_SECONDS)
            assert harness.holders("new-2-ab") == ["algo-0", "algo-1"]
        await harness.sync_for(UNUSED_SECONDS / 2)
        assert harness.holders("new-2-ab") == ["algo-0", "algo-1"], "requests in flight may need the adapter"
        await harness.sync_for(2 * UNUSED_SECONDS)
        assert harness.holders("new-2-ab") == [], "no lane uses the adapter"

    run_scenario(scenario)


def test_a_failed_installation_leaves_no_adapter() -> None:
    async def scenario(harness: SyncHarness) -> None:
        with pytest.raises(ValueError, match="no lane"):
            async with harness.adapter_sync.installing("algo", "new-2-ab", "/new"):
                raise ValueError("no lane")
        assert harness.holders("new-2-ab") == []
        harness.replicas["algo-1"].files = {"/new": "another digest"}
        with pytest.raises(Refusal):
            async with harness.adapter_sync.installing("algo", "new-2-cd", "/new"):
                raise AssertionError("the contents differ")
        assert harness.holders("new-2-cd") == []

    run_scenario(scenario)
