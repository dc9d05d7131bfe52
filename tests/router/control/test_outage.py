"""The store goes and comes back: serving goes on, and nothing that happened meanwhile is lost."""

import asyncio
from pathlib import Path

import pytest

from octet.rpc.refusal import Refusal
from tests.router.control.houses import BREACH, ENSEMBLE, SIGNED, Cut, House, Wall, housed, reason_of, toys_of
from tests.router.store.stores import eventually


async def cut_off(house: House, cut: Cut) -> None:
    cut.is_cut = True
    await eventually(lambda: bool(house.control.store_trouble))


async def back(house: House, cut: Cut) -> None:
    cut.is_cut = False
    await eventually(lambda: not house.control.store_trouble)
    await house.tick()
    await eventually(lambda: not house.control._state.documents.unsaved)


async def test_a_breaker_trips_without_the_store_and_is_written_down_later(tmp_path: Path) -> None:
    cut, wall = Cut(), Wall()
    async with housed(tmp_path / "s", cut=cut, wall=wall) as house:
        with house.control.events.subscribe() as events:
            await cut_off(house, cut)
            house.judge("algo", passed=1, failed=19)
            await house.run(BREACH + 2)
            assert house.shown("algo") == "shadow_only"
            with pytest.raises(Refusal) as caught:
                await house.control.hold_breaker("algo", "open", **SIGNED)
            assert reason_of(caught.value) == "STORE_UNAVAILABLE"
            with pytest.raises(Refusal) as caught:
                await house.control.set_knob("review.priority_floor", 7, **SIGNED)
            assert reason_of(caught.value) == "STORE_UNAVAILABLE"
            assert house.control.fleet_status.knobs("review", "algo").floor == 2
            assert house.shown("algo") == "shadow_only"
            await back(house, cut)
            assert house.shown("algo") == "shadow_only"
            kinds = [(await anext(events)).WhichOneof("event") for _ in range(4)]
            assert kinds[0] == "store_trouble" and "audit" in kinds
        trip = next(entry for entry in await house.control.audit(10, "algo") if entry.what == "trip")
        assert "made while the store did not answer" in trip.why
        assert trip.at_unix_ms < wall() * 1000
    async with housed(tmp_path / "s", wall=wall) as house:
        assert house.shown("algo") == "shadow_only" and house.control.breakers()[0].samples == 20


async def test_what_others_ordered_meanwhile_stands_beside_what_moved_here(shared_url: str) -> None:
    cut, wall, toys = Cut(), Wall(), toys_of(ENSEMBLE)
    async with (
        housed(shared_url, cut=cut, wall=wall, toys=toys) as lonely,
        housed(shared_url, wall=wall, toys=toys) as other,
    ):
        await cut_off(lonely, cut)
        lonely.judge("algo", passed=1, failed=19)
        await lonely.run(BREACH + 2)
        await other.control.hold_breaker("algo", "closed", who="ann", why="wait")
        assert (lonely.shown("algo"), other.shown("algo")) == ("shadow_only", "held_closed")
        await back(lonely, cut)
        await eventually(lambda: lonely.shown("algo") == other.shown("algo") == "held_closed")
        info = await other.control.release_breaker("algo", **SIGNED)
        assert info.state == "shadow_only"
        await eventually(lambda: lonely.shown("algo") == "shadow_only")


async def test_of_two_that_moved_the_same_one_is_written(tmp_path: Path) -> None:
    cut, wall, toys = Cut(), Wall(), toys_of(ENSEMBLE)
    async with (
        housed(tmp_path / "s", cut=cut, wall=wall, toys=toys) as lonely,
        housed(tmp_path / "s", wall=wall, toys=toys) as other,
    ):
        await cut_off(lonely, cut)
        for _ in range(20):
            for house in (lonely, other):
                for _ in range(4):
                    house.control.record_refused("algo", "codegen")
            wall.clock.sleep(1)
            await asyncio.gather(lonely.control.tick(wall()), other.control.tick(wall()))
        assert lonely.control.fleet_status.knobs("codegen", "algo").is_escalated
        theirs = other.control.fleet_status.knobs("codegen", "algo")
        await back(lonely, cut)
        await eventually(lambda: lonely.control._ladders.ladder("algo").level >= theirs.floor)
        told = await other.story("algo")
        levels = [entry.after for entry in await other.control.audit(100, "algo") if entry.who == "escalation"]
        assert "escalate" in told and levels


async def test_without_a_store_from_the_start_the_configuration_counts_until_it_is_there(tmp_path: Path) -> None:
    wall, toys = Wall(), toys_of(ENSEMBLE)
    toys.disk["my-lora"] = "d1"
    async with housed(tmp_path / "s", wall=wall, toys=toys) as house:
        await house.control.hold_breaker("stl", "open", **SIGNED)
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        await house.control.promote("algo", **SIGNED)
    cut = Cut()
    cut.is_cut = True
    async with housed(tmp_path / "s", wall=wall, toys=toys, cut=cut) as house:
        assert house.control.store_trouble and house.shown("stl") == "closed"
        await house.tick()
        assert house.control.fleet_status.specialists["algo"].lane.number == 1
        await back(house, cut)
        assert house.shown("stl") == "held_open" and house.control.fleet_status.specialists["algo"].lane.number == 2
        assert (await house.story("algo")).count("begin_lane") == 1, "what was not to be is not told"


async def test_an_outage_again_and_again_loses_no_count(tmp_path: Path) -> None:
    cut, wall = Cut(), Wall()
    async with housed(tmp_path / "s", cut=cut, wall=wall) as house:
        for _ in range(4):
            await cut_off(house, cut)
            house.judge("debug", passed=3, failed=2)
            await house.run(2)
            await back(house, cut)
        assert house.control.breakers()[2].samples == 20
    async with housed(tmp_path / "s", wall=wall) as house:
        info = house.control.breakers()[2]
        assert (info.samples, info.pass_rate) == (20, 0.6)
