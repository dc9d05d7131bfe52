"""Routers that share a store publish the same figures, even after a restart or an outage of the store."""

import asyncio
from collections.abc import Sequence

from octet.telemetry.distributions import MOST_AHEAD_SECONDS
from octet.v1 import error_pb2 as errors
from octet.v1 import slo_pb2 as wire
from router.observe.observers import TokenGap
from router.quality.slo import MOST_WRITERS, PEERS_STALE_SECONDS, SloSlice
from router.quality.slo_sharing import SloSharing, pack_slice
from router.store.database import StorePosition
from router.store.rows import SliceRow, StoreUnavailable
from router.store.store import SliceUpdate, Store
from tests.router.slo.measured_router import SLO, START, Router
from tests.router.store.stores import opened


class UnavailableStore:
    """A store that can be made unavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False
        self.hold: asyncio.Event | None = None
        self.num_rows = 0

    async def exchange_slices(
        self, writer: str, written: Sequence[SliceRow], mark: StorePosition | None, now_ms: int
    ) -> SliceUpdate:
        if self.is_away:
            raise StoreUnavailable("away")
        if self.hold is not None:
            await self.hold.wait()
        self.num_rows += len(written)
        return await self._store.exchange_slices(writer, written, mark, now_ms)


class SharingRouter(Router):
    def __init__(self, store: Store, writer: str) -> None:
        super().__init__()
        self.away = UnavailableStore(store)
        self.sharing = SloSharing(self.slos, self.away, writer, self.wall)  # type: ignore[arg-type]

    async def share(self) -> bool:
        return await self.sharing.exchange()


async def round_about(*sharers: SharingRouter) -> None:
    """Let every router exchange its figures twice, so that each has those of all others."""
    for _ in range(2):
        for each in sharers:
            await each.share()


async def test_all_routers_publish_the_same_figures(shared_url: str) -> None:
    async with opened(shared_url) as one, opened(shared_url) as other:
        routers = [SharingRouter(one, "a"), SharingRouter(other, "b"), SharingRouter(other, "c")]
        for index, router in enumerate(routers):
            for number in range(20):
                router.answers(0.1 * (index + 1) + 0.01 * number, preempted=number % 2)
                router.slos.gaps("writer", [TokenGap(0.02 * (index + 1), 1)])
            router.fails(errors.ERROR_REASON_QUEUE_FULL)
        await round_about(*routers)
        published = [router.published() for router in routers]
        assert published[0] == published[1] == published[2]
        assert (published[0].ttft.samples, published[0].itl.samples, published[0].answered, published[0].routers) == (
            60,
            60,
            60,
            3,
        )
        whole = Router()
        for index in range(3):
            for number in range(20):
                whole.answers(0.1 * (index + 1) + 0.01 * number)
            whole.fails(errors.ERROR_REASON_QUEUE_FULL)
        assert published[0].ttft == whole.published().ttft
        assert routers[0].objective("ttft_p95").burns == whole.objective("ttft_p95").burns
        assert routers[0].slos.counts("writer")["ttft_p95"][0] == 21, "counts since the start must be the router's own"


async def test_shared_slices_are_never_counted_twice() -> None:
    """A slice is counted once, even if a router that was considered dead writes it again."""
    async with opened("memory") as store:
        one, other = SharingRouter(store, "a"), SharingRouter(store, "b")
        for number in range(1, 6):
            one.answers(0.2)
            await round_about(one, other, one)
            assert other.published().ttft.samples == number
        zombie = one.sharing._row("writer", next(iter(one.slos.meters["writer"].slices())))
        assert zombie is not None
        for _ in range(3):
            await store.exchange_slices("a", [zombie], None, round(START * 1000))
        await other.share()
        assert other.published().ttft.samples == 5


async def test_a_restarted_router_keeps_its_window() -> None:
    async with opened("memory") as store:
        before = SharingRouter(store, "a")
        for _ in range(7):
            before.answers(0.9)
        await before.share()
        after = SharingRouter(store, "a2")
        assert (after.published().ttft.samples, after.published().routers) == (0, 1)
        await after.share()
        after.answers(0.9)
        published = after.published()
        assert (published.ttft.samples, published.routers) == (8, 2)
        assert after.objective("ttft_p95").burns[1].samples == 8
        after.clock.sleep(SLO.window * 1.2)
        await after.share()
        assert (after.published().ttft.samples, after.published().routers) == (0, 1)


async def test_without_the_store_the_figures_are_the_routers_own() -> None:
    async with opened("memory") as store:
        one, other = SharingRouter(store, "a"), SharingRouter(store, "b")
        one.answers(0.2)
        other.answers(0.3)
        await round_about(one, other)
        assert (one.published().ttft.samples, one.published().routers) == (2, 2)
        one.away.is_away = True
        one.answers(0.2)
        assert not await one.share()
        one.clock.sleep(PEERS_STALE_SECONDS)
        assert (one.published().ttft.samples, one.published().routers) == (2, 1), (
            "the router must publish its own figures"
        )
        one.away.is_away = False
        assert await one.share()
        await other.share()
        assert (one.published().ttft.samples, other.published().ttft.samples) == (3, 3), "no sample may be lost"


async def test_a_long_outage_of_the_store_takes_bounded_memory() -> None:
    async with opened("memory") as store:
        one = SharingRouter(store, "a")
        one.away.is_away = True
        for _ in range(400):
            one.answers(0.2)
            await one.share()
            one.clock.sleep(SLO.window / 5)
        measured = one.slos.meters["writer"]
        assert len(measured.changed) <= len(measured.slices()) <= 12 + 62


async def test_a_replaced_database_gets_all_slices_again() -> None:
    async with opened("memory") as store, opened("memory") as another:
        one, other = SharingRouter(store, "a"), SharingRouter(another, "b")
        one.answers(0.2)
        await one.share()
        one.away._store = another
        await round_about(one, other)
        assert other.published().ttft.samples == 1


async def test_clocks_that_differ_a_little_change_nothing_and_a_wrong_one_does_not_last() -> None:
    async with opened("memory") as store:
        one, ahead, wrong = SharingRouter(store, "a"), SharingRouter(store, "b"), SharingRouter(store, "c")
        ahead.ahead, wrong.ahead = 20.0, 10_000.0
        for each in (one, ahead, wrong):
            each.answers(0.2)
        await round_about(one, ahead, wrong)
        assert one.published().ttft.samples == 2, "a router whose clock is hours ahead must be ignored"
        assert one.published().routers == 2
        one.clock.sleep(SLO.window * 1.2 + MOST_AHEAD_SECONDS)
        await one.share()
        assert one.published().ttft.samples == 0, "the samples must expire with the window"


async def test_unreadable_slices_are_skipped() -> None:
    async with opened("memory") as store:
        good, reader = SharingRouter(store, "good"), SharingRouter(store, "reader")
        good.answers(0.2)
        await good.share()
        row = good.sharing._row("writer", next(iter(good.slos.meters["writer"].slices())))
        assert row is not None
        newer = wire.SloSlice(version=99, specialist="writer").SerializeToString()
        bad = [
            row._replace(writer="hostile", raw=b"\xff" * 50),
            row._replace(writer="newer", raw=newer),
            row._replace(writer="stray", key="nobody", raw=pack_slice("nobody", SloSlice())),
            row._replace(writer="odd", series="slo.weekly"),
        ]
        await store.exchange_slices("hostile", bad, None, round(START * 1000))
        await reader.share()
        assert (reader.published().ttft.samples, reader.published().routers) == (1, 2)


async def test_the_number_of_summed_routers_is_bounded() -> None:
    async with opened("memory") as store:
        one, reader = SharingRouter(store, "a"), SharingRouter(store, "reader")
        one.answers(0.2)
        row = None
        for changed in one.sharing._take_changed():
            row = row or one.sharing._row(*changed)
        assert row is not None
        many = [row._replace(writer=f"w{number}") for number in range(MOST_WRITERS + 50)]
        await store.exchange_slices("x", many, None, round(START * 1000))
        await reader.share()
        assert reader.published().routers <= MOST_WRITERS + 1


async def test_a_router_without_measurements_writes_nothing() -> None:
    async with opened("memory") as store:
        one = SharingRouter(store, "a")
        for _ in range(5):
            await one.share()
            one.clock.sleep(2)
        assert one.away.num_rows == 0
        one.answers(0.2)
        for _ in range(5):
            await one.share()
        assert one.away.num_rows == 2, "a router must write one slice per window"


async def test_a_router_stopped_during_a_slow_write_loses_no_sample() -> None:
    async with opened("memory") as store:
        one, other = SharingRouter(store, "a"), SharingRouter(store, "b")
        await one.share()
        one.answers(0.2)
        held = one.away.hold = asyncio.Event()
        sharing = asyncio.create_task(one.share())
        await asyncio.sleep(0.01)
        sharing.cancel()
        await asyncio.gather(sharing, return_exceptions=True)
        held.set()
        await one.share()
        await other.share()
        assert other.published().ttft.samples == 1
