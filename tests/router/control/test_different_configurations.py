"""Routers that share a store but have different configurations begin at most one lane each, and then agree on the
lane."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from octet.config.ensemble import Ensemble
from router.control.lanes import GRACE_SECONDS
from tests.router.control.fake_replicas import FakeReplicas
from tests.router.control.harness import (
    ENSEMBLE,
    SIGNED,
    ControlHarness,
    DatabaseLink,
    FakeWallClock,
    make_replicas,
    running_control,
)
from tests.router.store.stores import eventually

BOTH = {"std": "/std", "fast": "/fast"}


def using(*names: str) -> Ensemble:
    specialists = tuple(
        replace(each, adapters=BOTH, use_adapters=names) if each.name == "stl" else each
        for each in ENSEMBLE.specialists
    )
    return replace(ENSEMBLE, specialists=specialists)


OLD, NEW = using("std"), using("fast")


async def tick_all(routers: list[ControlHarness], wall: FakeWallClock, seconds: int, random: Random) -> None:
    """Tick each router about once a second, in random order."""
    for _ in range(seconds):
        for harness in random.sample(routers, len(routers)):
            wall.clock.sleep(1 / len(routers))
            await harness.control.tick(wall())
            harness.control._adapters.sync()
            if random.random() < 0.5:
                await asyncio.sleep(0.01)


async def count_begun_lanes(harness: ControlHarness) -> int:
    return (await harness.changes_of("stl")).count("begin_lane")


async def wait_for_agreement(routers: list[ControlHarness]) -> None:
    await eventually(
        lambda: len({harness.control.fleet_status.specialists["stl"].lane.number for harness in routers}) == 1
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shared", [True, False], ids=["same replicas", "own replicas"])
async def test_each_router_begins_at_most_one_lane(tmp_path: Path, seed: int, shared: bool) -> None:
    wall, random, replicas = FakeWallClock(), Random(seed), make_replicas(OLD, 2)
    own = replicas if shared else make_replicas(NEW, 2)
    if not shared:
        for name in ("stl-0", "stl-1"):
            del replicas[name].adapters["fast"], own[name].adapters["std"]
    async with (
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as one,
        running_control(tmp_path / "s", wall=wall, replicas=own, ensemble=NEW) as other,
    ):
        await tick_all([one, other], wall, 60, random)
        assert await count_begun_lanes(one) <= 2
        await wait_for_agreement([one, other])
        number = one.control.fleet_status.specialists["stl"].lane.number
        await tick_all([one, other], wall, 30, random)
        assert one.control.fleet_status.specialists["stl"].lane.number == number
        for harness, names in ((one, ("std",)), (other, ("fast",))):
            lane = harness.control.fleet_status.specialists["stl"].lane
            assert lane.names == names if not shared else lane.lane_id, (
                "the lane must use the adapters of the router's own replicas"
            )


async def test_a_lane_begun_by_another_router_is_kept(tmp_path: Path) -> None:
    wall, replicas = FakeWallClock(), make_replicas(OLD)
    async with (
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as one,
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=NEW) as other,
    ):
        await other.run(GRACE_SECONDS + 2)
        assert await count_begun_lanes(other) == 2
        await wait_for_agreement([one, other])
        await one.run(3 * GRACE_SECONDS)
        assert await count_begun_lanes(one) == 2


async def test_a_problem_is_reported_once_and_shown_while_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall, replicas, random = FakeWallClock(), make_replicas(OLD), Random(1)
    async with (
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as one,
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=NEW) as other,
    ):
        with one.control.events.subscribe() as events:
            await tick_all([one, other], wall, 12, random)
            await wait_for_agreement([one, other])
            await tick_all([one, other], wall, 12, random)
            one.control.events.close()
            reported = [event.audit async for event in events if event.audit.what == "other_configuration"]
        assert [(each.subject, each.who) for each in reported] == [("stl", "lanes")]
        errors = [record.getMessage() for record in caplog.records if "have different configurations" in record.message]
        assert len(errors) == 1 and "stl" in errors[0]
        assert "another router" in one.control.breakers()[1].outlook
        assert "another router" not in other.control.breakers()[1].outlook
        one.control.reload(NEW)
        await tick_all([one, other], wall, 10, random)
        assert "another router" not in one.control.breakers()[1].outlook
        assert await count_begun_lanes(one) == 2


async def test_routers_agree_after_a_rolling_change_of_the_configuration(tmp_path: Path) -> None:
    """The routers agree after each of three changes: a new configuration, the old one, and the new one again. Each
    change reaches one router after another."""
    wall, replicas, random = FakeWallClock(), make_replicas(OLD), Random(2)
    async with (
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as one,
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as other,
    ):
        for round_, ensemble in enumerate((NEW, OLD, NEW), 1):
            for harness in (one, other):
                harness.control.reload(ensemble)
                await tick_all([one, other], wall, 12, random)
                await wait_for_agreement([one, other])
                assert await count_begun_lanes(one) == 1 + round_
            names = ensemble.specialist("stl").use_adapters
            assert one.control.fleet_status.specialists["stl"].lane.names == names


async def test_a_restart_with_another_configuration_begins_its_lane(tmp_path: Path) -> None:
    wall, replicas, random = FakeWallClock(), make_replicas(OLD), Random(3)
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as staying:
        for restarts, ensemble in enumerate((NEW, OLD, NEW), 1):
            async with running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=ensemble) as restarted:
                await tick_all([staying, restarted], wall, 12, random)
                await wait_for_agreement([staying, restarted])
                names = ensemble.specialist("stl").use_adapters
                assert staying.control.fleet_status.specialists["stl"].lane.names == names
                assert await count_begun_lanes(staying) == 1 + restarts


async def test_an_operators_change_holds_on_every_router(tmp_path: Path) -> None:
    wall, replicas, random = FakeWallClock(), make_replicas(OLD), Random(4)
    replicas.disk["my-lora"] = "d1"
    async with (
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as one,
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=NEW) as other,
    ):
        await tick_all([one, other], wall, 12, random)
        await wait_for_agreement([one, other])
        await other.control.load_adapter("stl", "my-lora", **SIGNED)
        info = await other.control.promote("stl", **SIGNED)
        await wait_for_agreement([one, other])
        await tick_all([one, other], wall, 30, random)
        assert one.control.fleet_status.specialists["stl"].lane.number == info.number
        assert await count_begun_lanes(one) == 2


async def test_a_configuration_change_during_an_outage_is_made_afterwards(tmp_path: Path) -> None:
    wall, replicas, random, link = FakeWallClock(), make_replicas(OLD), Random(5), DatabaseLink()
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD):
        pass
    link.is_broken = True
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=NEW, link=link) as harness:
        await tick_all([harness], wall, 10, random)
        link.is_broken = False
        await eventually(lambda: not harness.control.store_trouble)
        await tick_all([harness], wall, 10, random)
        lane = harness.control.fleet_status.specialists["stl"].lane
        assert (lane.number, lane.names) == (2, ("fast",)) and await count_begun_lanes(harness) == 2


async def test_routers_whose_replicas_have_different_models_agree(tmp_path: Path) -> None:
    wall, random, replicas, own = FakeWallClock(), Random(6), make_replicas(OLD), make_replicas(OLD)
    _refresh(own)
    async with (
        running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=OLD) as one,
        running_control(tmp_path / "s", wall=wall, replicas=own, ensemble=OLD) as other,
    ):
        await tick_all([one, other], wall, 60, random)
        assert await count_begun_lanes(one) <= 2
        for replica in replicas.replicas.values():
            replica.restart("r2")
            replica.adapters.update({name: f"{name}-content" for name in OLD.specialist(replica.specialist).adapters})
        await tick_all([one, other], wall, 10, random)
        await wait_for_agreement([one, other])
        assert one.control.fleet_status.specialists["stl"].lane.revision == "r2"


def _refresh(replicas: FakeReplicas) -> None:
    for replica in replicas.replicas.values():
        replica.revision = "r2"
