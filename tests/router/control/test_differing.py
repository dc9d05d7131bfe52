"""Routers that share a store and are not configured alike: each has its say once, and then they agree."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from octet.config.ensemble import Ensemble
from router.control.lanes import GRACE_SECONDS
from tests.router.control.houses import ENSEMBLE, SIGNED, Cut, House, Wall, housed, toys_of
from tests.router.control.toys import Toys
from tests.router.store.stores import eventually

BOTH = {"std": "/std", "fast": "/fast"}


def using(*names: str) -> Ensemble:
    specialists = tuple(
        replace(each, adapters=BOTH, use_adapters=names) if each.name == "stl" else each
        for each in ENSEMBLE.specialists
    )
    return replace(ENSEMBLE, specialists=specialists)


OLD, NEW = using("std"), using("fast")


async def live(houses: list[House], wall: Wall, seconds: int, random: Random) -> None:
    """Each ticks about once a second, in any order."""
    for _ in range(seconds):
        for house in random.sample(houses, len(houses)):
            wall.clock.sleep(1 / len(houses))
            await house.control.tick(wall())
            house.control._adapters.sync()
            if random.random() < 0.5:
                await asyncio.sleep(0.01)


async def begins(house: House) -> int:
    return (await house.story("stl")).count("begin_lane")


async def agreed(houses: list[House]) -> None:
    await eventually(lambda: len({house.control.fleet_status.specialists["stl"].lane.number for house in houses}) == 1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shared", [True, False], ids=["same replicas", "own replicas"])
async def test_each_begins_once_at_most(tmp_path: Path, seed: int, shared: bool) -> None:
    wall, random, toys = Wall(), Random(seed), toys_of(OLD, 2)
    own = toys if shared else toys_of(NEW, 2)
    if not shared:
        for name in ("stl-0", "stl-1"):
            del toys[name].adapters["fast"], own[name].adapters["std"]
    async with (
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as one,
        housed(tmp_path / "s", wall=wall, toys=own, ensemble=NEW) as other,
    ):
        await live([one, other], wall, 60, random)
        assert await begins(one) <= 2
        await agreed([one, other])
        number = one.control.fleet_status.specialists["stl"].lane.number
        await live([one, other], wall, 30, random)
        assert one.control.fleet_status.specialists["stl"].lane.number == number
        for house, names in ((one, ("std",)), (other, ("fast",))):
            lane = house.control.fleet_status.specialists["stl"].lane
            assert lane.names == names if not shared else lane.lane_id, "everybody answers with what is there"


async def test_what_was_begun_counts_before_it_is_looked_at_again(tmp_path: Path) -> None:
    wall, toys = Wall(), toys_of(OLD)
    async with (
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as one,
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=NEW) as other,
    ):
        await other.run(GRACE_SECONDS + 2)
        assert await begins(other) == 2
        await agreed([one, other])
        await one.run(3 * GRACE_SECONDS)
        assert await begins(one) == 2


async def test_a_problem_is_reported_once_and_shown_while_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall, toys, random = Wall(), toys_of(OLD), Random(1)
    async with (
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as one,
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=NEW) as other,
    ):
        with one.control.events.subscribe() as events:
            await live([one, other], wall, 20, random)
            one.control.events.close()
            told = [event.audit async for event in events if event.audit.what == "other_configuration"]
        assert [(each.subject, each.who) for each in told] == [("stl", "lanes")]
        errors = [record.getMessage() for record in caplog.records if "have different configurations" in record.message]
        assert len(errors) == 1 and "stl" in errors[0]
        assert "another router" in one.control.breakers()[1].outlook
        assert "another router" not in other.control.breakers()[1].outlook
        one.control.reload(NEW)
        await live([one, other], wall, 10, random)
        assert "another router" not in one.control.breakers()[1].outlook
        assert await begins(one) == 2


async def test_a_rolling_change_of_the_configuration(tmp_path: Path) -> None:
    """One after the other; and back again, which is as good a change as any."""
    wall, toys, random = Wall(), toys_of(OLD), Random(2)
    async with (
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as one,
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as other,
    ):
        for round_, ensemble in enumerate((NEW, OLD, NEW), 1):
            for house in (one, other):
                house.control.reload(ensemble)
                await live([one, other], wall, 12, random)
                await agreed([one, other])
                assert await begins(one) == 1 + round_
            names = ensemble.specialist("stl").use_adapters
            assert one.control.fleet_status.specialists["stl"].lane.names == names


async def test_a_restart_with_another_configuration_has_its_say(tmp_path: Path) -> None:
    wall, toys, random = Wall(), toys_of(OLD), Random(3)
    async with housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as staying:
        for restarts, ensemble in enumerate((NEW, OLD, NEW), 1):
            async with housed(tmp_path / "s", wall=wall, toys=toys, ensemble=ensemble) as restarted:
                await live([staying, restarted], wall, 12, random)
                await agreed([staying, restarted])
                names = ensemble.specialist("stl").use_adapters
                assert staying.control.fleet_status.specialists["stl"].lane.names == names
                assert await begins(staying) == 1 + restarts


async def test_an_operators_change_holds_on_every_router(tmp_path: Path) -> None:
    wall, toys, random = Wall(), toys_of(OLD), Random(4)
    toys.disk["my-lora"] = "d1"
    async with (
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as one,
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=NEW) as other,
    ):
        await live([one, other], wall, 12, random)
        await other.control.load_adapter("stl", "my-lora", **SIGNED)
        info = await other.control.promote("stl", **SIGNED)
        await live([one, other], wall, 30, random)
        assert one.control.fleet_status.specialists["stl"].lane.number == info.number
        assert await begins(one) == 2


async def test_a_change_made_while_the_store_was_away_is_made_when_it_is_back(tmp_path: Path) -> None:
    wall, toys, random, cut = Wall(), toys_of(OLD), Random(5), Cut()
    async with housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD):
        pass
    cut.is_cut = True
    async with housed(tmp_path / "s", wall=wall, toys=toys, ensemble=NEW, cut=cut) as house:
        await live([house], wall, 10, random)
        cut.is_cut = False
        await eventually(lambda: not house.control.store_trouble)
        await live([house], wall, 10, random)
        lane = house.control.fleet_status.specialists["stl"].lane
        assert (lane.number, lane.names) == (2, ("fast",)) and await begins(house) == 2


async def test_other_models_at_each_routers_replicas(tmp_path: Path) -> None:
    wall, random, toys, own = Wall(), Random(6), toys_of(OLD), toys_of(OLD)
    _refresh(own)
    async with (
        housed(tmp_path / "s", wall=wall, toys=toys, ensemble=OLD) as one,
        housed(tmp_path / "s", wall=wall, toys=own, ensemble=OLD) as other,
    ):
        await live([one, other], wall, 60, random)
        assert await begins(one) <= 2
        for toy in toys.toys.values():
            toy.restart("r2")
            toy.adapters.update({name: f"{name}-content" for name in OLD.specialist(toy.specialist).adapters})
        await live([one, other], wall, 10, random)
        await agreed([one, other])
        assert one.control.fleet_status.specialists["stl"].lane.revision == "r2"


def _refresh(toys: Toys) -> None:
    for toy in toys.toys.values():
        toy.revision = "r2"
