"""Two routers, one store, and everything that may happen to either in any order: in the end they agree, and nothing
that was acknowledged is lost."""

import asyncio
from random import Random

import pytest

from octet.rpc.refusal import Refusal
from tests.router.control.houses import ENSEMBLE, Cut, House, Wall, housed, reason_of, toys_of
from tests.router.store.stores import eventually

_STEPS = 60
_EXPECTED = {"CONFLICT", "STORE_UNAVAILABLE", "NO_REPLICA"}


class Life:
    """What one seed makes of them."""

    def __init__(self, seed: int, houses: list[House], cuts: list[Cut], wall: Wall) -> None:
        self._random = Random(seed)
        self._houses = houses
        self._cuts = cuts
        self._wall = wall
        self.acknowledged: list[str] = []
        self.orders = 0

    async def step(self) -> None:
        house = self._random.choice(self._houses)
        act = self._random.choice([self._order, self._order, self._judge, self._cut, self._pass_time, self._pass_time])
        await act(house)

    async def end(self) -> None:
        for cut in self._cuts:
            cut.is_cut = False
        await eventually(lambda: not any(house.control.store_trouble for house in self._houses))
        for _ in range(5):
            await self._tick_all()
            await asyncio.sleep(0.05)
        await eventually(lambda: not any(house.control._state.documents.unsaved for house in self._houses))
        await eventually(lambda: len({repr(sorted(_documents(house).items())) for house in self._houses}) == 1)

    async def _order(self, house: House) -> None:
        random, control = self._random, house.control
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

    async def _judge(self, house: House) -> None:
        lane = house.control.fleet_status.specialists["algo"].lane
        for _ in range(self._random.randint(5, 20)):
            house.control.record_outcome(lane.lane_id, self._random.choice(["passed", "failed", "failed"]))

    async def _cut(self, house: House) -> None:
        """Now and then; and not for long."""
        cut = self._random.choice(self._cuts)
        cut.is_cut = not cut.is_cut and self._random.random() < 0.5
        await asyncio.sleep(0.05)

    async def _pass_time(self, _: House) -> None:
        self._wall.clock.sleep(self._random.choice([0.5, 3.0, 12.0]))
        await self._tick_all()

    async def _tick_all(self) -> None:
        await asyncio.gather(*(house.control.tick(self._wall()) for house in self._houses))
        for house in self._houses:
            house.control._adapters.sync()


KINDS = ("breaker", "knob", "lanes", "ladder", "replica")


def _documents(house: House) -> dict[tuple[str, str], object]:
    shelf = house.control._state.documents
    return {(each.kind, each.key): (each.version, each.body) for kind in KINDS for each in shelf.of_kind(kind)}


@pytest.mark.parametrize("seed", range(2))
async def test_in_the_end_they_agree(shared_url: str, seed: int) -> None:
    wall, toys, cuts = Wall(), toys_of(ENSEMBLE, 2), [Cut(), Cut()]
    toys.disk.update(a="d-a", b="d-b")
    async with (
        housed(shared_url, wall=wall, toys=toys, cut=cuts[0]) as one,
        housed(shared_url, wall=wall, toys=toys, cut=cuts[1]) as other,
    ):
        life = Life(seed, [one, other], cuts, wall)
        for _ in range(_STEPS):
            await life.step()
        await life.end()
        entries = await one.control.audit(10_000)
        assert sorted(life.acknowledged) == sorted({each.who for each in entries} & set(life.acknowledged))
        assert life.acknowledged, "nothing was ever ordered"
        assert one.control.fleet_status.specialists.keys() == other.control.fleet_status.specialists.keys()
        for name in ENSEMBLE.names:
            assert one.control.fleet_status.specialists[name].lane == other.control.fleet_status.specialists[name].lane
            assert one.shown(name) == other.shown(name)
        assert one.control.fleet_status.knob_overrides == other.control.fleet_status.knob_overrides
        assert one.control.fleet_status.cordoned == other.control.fleet_status.cordoned
