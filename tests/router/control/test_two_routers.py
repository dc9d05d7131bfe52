"""Two routers that share a store agree after any sequence of events, and no acknowledged change is lost."""

import asyncio
from random import Random

import pytest

from octet.rpc.refusal import Refusal
from tests.router.control.harness import (
    ENSEMBLE,
    ControlHarness,
    DatabaseLink,
    FakeWallClock,
    make_replicas,
    reason_of,
    running_control,
)
from tests.router.store.stores import eventually

_STEPS = 60
_EXPECTED = {"CONFLICT", "STORE_UNAVAILABLE", "NO_REPLICA"}


class RandomEvents:
    """A random sequence of events, drawn from a seed."""

    def __init__(
        self, seed: int, routers: list[ControlHarness], links: list[DatabaseLink], wall: FakeWallClock
    ) -> None:
        self._random = Random(seed)
        self._routers = routers
        self._links = links
        self._wall = wall
        self.acknowledged: list[str] = []
        self.orders = 0

    async def step(self) -> None:
        harness = self._random.choice(self._routers)
        act = self._random.choice(
            [self._order, self._order, self._judge, self._break_link, self._pass_time, self._pass_time]
        )
        await act(harness)

    async def end(self) -> None:
        for link in self._links:
            link.is_broken = False
        await eventually(lambda: not any(harness.control.store_trouble for harness in self._routers))
        for _ in range(5):
            await self._tick_all()
            await asyncio.sleep(0.05)
        await eventually(lambda: not any(harness.control._state.documents.unsaved for harness in self._routers))
        await eventually(lambda: len({repr(sorted(_documents(harness).items())) for harness in self._routers}) == 1)

    async def _order(self, harness: ControlHarness) -> None:
        random, control = self._random, harness.control
        self.orders += 1
        who, why = f"operator-{self.orders}", "because"
        orders = {
            "hold_breaker": ("algo", random.choice(["open", "closed"])),
            "release_breaker": ("algo",),
            "set_knob": ("review.priority_floor", random.randint(0, 9)),
            "release_knob": ("review.priority_floor",),
            "load_adapter": ("algo", random.choice(["a", "b"])),
            "promote": ("algo", ""),
            "roll_back": ("algo",),
            "drain_replica": ("stl-0",),
            "undrain_replica": ("stl-0",),
        }
        call = random.choice(list(orders))
        try:
            await getattr(control, call)(*orders[call], who=who, why=why)
        except Refusal as refusal:
            assert reason_of(refusal) in _EXPECTED, refusal
        else:
            self.acknowledged.append(who)

    async def _judge(self, harness: ControlHarness) -> None:
        lane = harness.control.fleet_status.specialists["algo"].lane
        for _ in range(self._random.randint(5, 20)):
            harness.control.record_outcome(lane.lane_id, self._random.choice(["passed", "failed", "failed"]))

    async def _break_link(self, harness: ControlHarness) -> None:
        """Choose a random connection to the database. Restore it if it is broken; otherwise, break it with probability
        1/2."""
        link = self._random.choice(self._links)
        link.is_broken = not link.is_broken and self._random.random() < 0.5
        await asyncio.sleep(0.05)

    async def _pass_time(self, _: ControlHarness) -> None:
        self._wall.clock.sleep(self._random.choice([0.5, 3.0, 12.0]))
        await self._tick_all()

    async def _tick_all(self) -> None:
        await asyncio.gather(*(harness.control.tick(self._wall()) for harness in self._routers))
        for harness in self._routers:
            harness.control._adapters.sync()


KINDS = ("breaker", "knob", "lanes", "ladder", "replica")


def _documents(harness: ControlHarness) -> dict[tuple[str, str], object]:
    cache = harness.control._state.documents
    return {(each.kind, each.key): (each.version, each.body) for kind in KINDS for each in cache.of_kind(kind)}


@pytest.mark.parametrize("seed", range(2))
async def test_routers_agree_after_random_events(shared_url: str, seed: int) -> None:
    wall, replicas, links = FakeWallClock(), make_replicas(ENSEMBLE, 2), [DatabaseLink(), DatabaseLink()]
    replicas.disk.update(a="d-a", b="d-b")
    async with (
        running_control(shared_url, wall=wall, replicas=replicas, link=links[0]) as one,
        running_control(shared_url, wall=wall, replicas=replicas, link=links[1]) as other,
    ):
        events = RandomEvents(seed, [one, other], links, wall)
        for _ in range(_STEPS):
            await events.step()
        await events.end()
        entries = await one.control.audit(10_000)
        assert sorted(events.acknowledged) == sorted({each.who for each in entries} & set(events.acknowledged))
        assert events.acknowledged, "no order was acknowledged"
        assert one.control.fleet_status.specialists.keys() == other.control.fleet_status.specialists.keys()
        for name in ENSEMBLE.names:
            assert one.control.fleet_status.specialists[name].lane == other.control.fleet_status.specialists[name].lane
            assert one.shown(name) == other.shown(name)
        assert one.control.fleet_status.knob_overrides == other.control.fleet_status.knob_overrides
        assert one.control.fleet_status.drained == other.control.fleet_status.drained
