"""Routers that share a store publish the same; one that is restarted remembers; a store that is away harms nobody."""

import asyncio
from collections.abc import Sequence

from octet.telemetry.distributions import MOST_AHEAD_SECONDS
from octet.v1 import error_pb2 as errors
from octet.v1 import slo_pb2 as wire
from router.quality.slo import MOST_WRITERS, PEERS_STALE_SECONDS, SloSlice
from router.quality.slo_sharing import SloSharing, pack_slice
from router.store.database import StorePosition
from router.store.rows import SliceRow, StoreUnavailable
from router.store.store import SliceUpdate, Store
from tests.router.slo.asks import SLO, START, Router
from tests.router.store.stores import opened


class Away:
    """A database that comes and goes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False
        self.hold: asyncio.Event | None = None
        self.num_rows = 0

    async def exchange(
        self, writer: str, written: Sequence[SliceRow], mark: StorePosition | None, now_ms: int
    ) -> SliceUpdate:
        if self.is_away:
            raise StoreUnavailable("away")
        if self.hold is not None:
            await self.hold.wait()
        self.num_rows += len(written)
        return await self._store.slices.exchange(writer, written, mark, now_ms)


class Sharer(Router):
    def __init__(self, store: Store, writer: str) -> None:
        super().__init__()
        self.away = Away(store)
        self.sharing = SloSharing(self.slos, self.away, writer, self.wall)

    async def share(self) -> bool:
        return await self.sharing.exchange()


async def round_about(*sharers: Sharer) -> None:
    """Everybody has written, and everybody has read."""
    for _ in range(2):
        for each in sharers:
            await each.share()


async def test_all_publish_the_same_of_all(shared_url: str) -> None:
    async with opened(shared_url) as one, opened(shared_url) as other:
        routers = [Sharer(one, "a"), Sharer(other, "b"), Sharer(other, "c")]
        for index, router in enumerate(routers):
            for number in range(20):
                router.answers(0.1 * (index + 1) + 0.01 * number, preempted=number % 2)
                router.slos.gaps("writer", [0.02 * (index + 1)])
            router.fails(errors.ERROR_REASON_QUEUE_FULL)
        await round_about(*routers)
        told = [router.told() for router in routers]
        assert told[0] == told[1] == told[2]
        assert (told[0].ttft.samples, told[0].itl.samples, told[0].answered, told[0].routers) == (60, 60, 60, 3)
        whole = Router()
        for index in range(3):
            for number in range(20):
                whole.answers(0.1 * (index + 1) + 0.01 * number)
            whole.fails(errors.ERROR_REASON_QUEUE_FULL)
        assert told[0].ttft == whole.told().ttft
        assert routers[0].objective("ttft_p95").burns == whole.objective("ttft_p95").burns
        assert routers[0].slos.counts("writer")["ttft_p95"][0] == 21, "what is counted since the start is its own"


async def test_what_is_shared_grows_with_its_slice_and_is_never_counted_twice() -> None:
    """Also where a router that was thought dead writes once more."""
    async with opened("memory") as store:
        one, other = Sharer(store, "a"), Sharer(store, "b")
        for number in range(1, 6):
            one.answers(0.2)
            await round_about(one, other, one)
            assert other.told().ttft.samples == number
        zombie = one.sharing._row("writer", next(iter(one.slos.meters["writer"].slices())))
        assert zombie is not None
        for _ in range(3):
            await store.slices.exchange("a", [zombie], None, round(START * 1000))
        await other.share()
        assert other.told().ttft.samples == 5


async def test_a_router_that_is_restarted_remembers_its_window() -> None:
    async with opened("memory") as store:
        before = Sharer(store, "a")
        for _ in range(7):
            before.answers(0.9)
        await before.share()
        after = Sharer(store, "a2")
        assert (after.told().ttft.samples, after.told().routers) == (0, 1)
        await after.share()
        after.answers(0.9)
        told = after.told()
        assert (told.ttft.samples, told.routers) == (8, 2)
        assert after.objective("ttft_p95").burns[1].samples == 8
        after.clock.sleep(SLO.window * 1.2)
        await after.share()
        assert (after.told().ttft.samples, after.told().routers) == (0, 1)


async def test_without_the_store_the_figures_are_its_own_and_say_so() -> None:
    async with opened("memory") as store:
        one, other = Sharer(store, "a"), Sharer(store, "b")
        one.answers(0.2)
        other.answers(0.3)
        await round_about(one, other)
        assert (one.told().ttft.samples, one.told().routers) == (2, 2)
        one.away.is_away = True
        one.answers(0.2)
        assert not await one.share()
        one.clock.sleep(PEERS_STALE_SECONDS)
        assert (one.told().ttft.samples, one.told().routers) == (2, 1), "its own"
        one.away.is_away = False
        assert await one.share()
        await other.share()
        assert (one.told().ttft.samples, other.told().ttft.samples) == (3, 3), "nothing is lost"


async def test_a_long_absence_of_the_store_takes_no_more_room_than_the_windows() -> None:
    async with opened("memory") as store:
        one = Sharer(store, "a")
        one.away.is_away = True
        for _ in range(400):
            one.answers(0.2)
            await one.share()
            one.clock.sleep(SLO.window / 5)
        measured = one.slos.meters["writer"]
        assert len(measured.changed) <= len(measured.slices()) <= 12 + 62


async def test_another_database_gets_everything_again() -> None:
    async with opened("memory") as store, opened("memory") as another:
        one, other = Sharer(store, "a"), Sharer(another, "b")
        one.answers(0.2)
        await one.share()
        one.away._store = another
        await round_about(one, other)
        assert other.told().ttft.samples == 1


async def test_clocks_that_differ_a_little_change_nothing_and_a_wrong_one_does_not_last() -> None:
    async with opened("memory") as store:
        one, ahead, wrong = Sharer(store, "a"), Sharer(store, "b"), Sharer(store, "c")
        ahead.ahead, wrong.ahead = 20.0, 10_000.0
        for each in (one, ahead, wrong):
            each.answers(0.2)
        await round_about(one, ahead, wrong)
        assert one.told().ttft.samples == 2, "the one that is hours ahead is left out"
        assert one.told().routers == 2
        one.clock.sleep(SLO.window * 1.2 + MOST_AHEAD_SECONDS)
        await one.share()
        assert one.told().ttft.samples == 0, "and nobody's samples stay for long"


async def test_what_cannot_be_read_is_left_out_and_the_rest_counts() -> None:
    async with opened("memory") as store:
        good, reader = Sharer(store, "good"), Sharer(store, "reader")
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
        await store.slices.exchange("hostile", bad, None, round(START * 1000))
        await reader.share()
        assert (reader.told().ttft.samples, reader.told().routers) == (1, 2)


async def test_routers_without_number_are_not_all_summed_up() -> None:
    async with opened("memory") as store:
        one, reader = Sharer(store, "a"), Sharer(store, "reader")
        one.answers(0.2)
        row = None
        for changed in one.sharing._take_changed():
            row = row or one.sharing._row(*changed)
        assert row is not None
        many = [row._replace(writer=f"w{number}") for number in range(MOST_WRITERS + 50)]
        await store.slices.exchange("x", many, None, round(START * 1000))
        await reader.share()
        assert reader.told().routers <= MOST_WRITERS + 1


async def test_a_router_that_measures_nothing_writes_nothing() -> None:
    async with opened("memory") as store:
        one = Sharer(store, "a")
        for _ in range(5):
            await one.share()
            one.clock.sleep(2)
        assert one.away.num_rows == 0
        one.answers(0.2)
        for _ in range(5):
            await one.share()
        assert one.away.num_rows == 2, "the slice of either window, once"


async def test_a_router_that_ends_while_the_store_is_slow_forgets_nothing() -> None:
    async with opened("memory") as store:
        one, other = Sharer(store, "a"), Sharer(store, "b")
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
        assert other.told().ttft.samples == 1
