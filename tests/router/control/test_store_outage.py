"""While the store is unavailable, requests are served and no change is lost."""

import asyncio
from pathlib import Path

import pytest

from octet.rpc.refusal import Refusal
from tests.router.control.harness import (
    BREACH,
    ENSEMBLE,
    SIGNED,
    UNSURE,
    ControlHarness,
    DatabaseLink,
    FakeWallClock,
    make_replicas,
    reason_of,
    running_control,
)
from tests.router.store.stores import eventually


async def disconnect(harness: ControlHarness, link: DatabaseLink) -> None:
    link.is_broken = True
    await eventually(lambda: bool(harness.control.store_trouble))


async def reconnect(harness: ControlHarness, link: DatabaseLink) -> None:
    link.is_broken = False
    await eventually(lambda: not harness.control.store_trouble)
    await harness.tick()
    await eventually(lambda: not harness.control._state.documents.unsaved)


async def test_a_breaker_trips_without_the_store_and_is_stored_later(tmp_path: Path) -> None:
    link, wall = DatabaseLink(), FakeWallClock()
    async with running_control(tmp_path / "s", link=link, wall=wall) as harness:
        with harness.control.events.subscribe() as events:
            await disconnect(harness, link)
            harness.judge("algo", passed=1, failed=19)
            await harness.run(BREACH + 2)
            assert harness.shown("algo") == "shadow_only"
            with pytest.raises(Refusal) as caught:
                await harness.control.hold_breaker("algo", "open", **SIGNED)
            assert reason_of(caught.value) == "STORE_UNAVAILABLE"
            with pytest.raises(Refusal) as caught:
                await harness.control.set_knob("review.priority_floor", 7, **SIGNED)
            assert reason_of(caught.value) == "STORE_UNAVAILABLE"
            assert harness.control.fleet_status.knobs("review", "algo").floor == 2
            assert harness.shown("algo") == "shadow_only"
            await reconnect(harness, link)
            assert harness.shown("algo") == "shadow_only"
            kinds = [(await anext(events)).WhichOneof("event") for _ in range(4)]
            assert kinds[0] == "store_trouble" and "audit" in kinds
        trip = next(entry for entry in await harness.control.audit(10, "algo") if entry.what == "trip")
        assert "made while the store did not answer" in trip.why
        assert trip.at_unix_ms < wall() * 1000
    async with running_control(tmp_path / "s", wall=wall) as harness:
        assert harness.shown("algo") == "shadow_only" and harness.control.breakers()[0].samples == 20


async def test_orders_of_other_routers_stay_beside_transitions_made_offline(shared_url: str) -> None:
    link, wall, replicas = DatabaseLink(), FakeWallClock(), make_replicas(ENSEMBLE)
    async with (
        running_control(shared_url, link=link, wall=wall, replicas=replicas) as disconnected,
        running_control(shared_url, wall=wall, replicas=replicas) as other,
    ):
        await disconnect(disconnected, link)
        disconnected.judge("algo", passed=1, failed=19)
        await disconnected.run(BREACH + 2)
        await other.control.hold_breaker("algo", "closed", who="ann", why="wait")
        assert (disconnected.shown("algo"), other.shown("algo")) == ("shadow_only", "held_closed")
        await reconnect(disconnected, link)
        await eventually(lambda: disconnected.shown("algo") == other.shown("algo") == "held_closed")
        info = await other.control.release_breaker("algo", **SIGNED)
        assert info.state == "shadow_only"
        await eventually(lambda: disconnected.shown("algo") == "shadow_only")


async def test_equal_escalations_of_two_routers_agree_after_an_outage(tmp_path: Path) -> None:
    link, wall, replicas = DatabaseLink(), FakeWallClock(), make_replicas(ENSEMBLE)
    async with (
        running_control(tmp_path / "s", link=link, wall=wall, replicas=replicas) as disconnected,
        running_control(tmp_path / "s", wall=wall, replicas=replicas) as other,
    ):
        await disconnect(disconnected, link)
        for _ in range(20):
            for harness in (disconnected, other):
                for _ in range(4):
                    harness.control.record_demand("algo", "codegen", UNSURE, "refused")
            wall.clock.sleep(1)
            await asyncio.gather(disconnected.control.tick(wall()), other.control.tick(wall()))
        assert disconnected.control.fleet_status.knobs("codegen", "algo").is_escalated
        theirs = other.control.fleet_status.knobs("codegen", "algo")
        await reconnect(disconnected, link)
        await eventually(lambda: disconnected.control._escalation.ladder("codegen", "algo").level >= theirs.floor)
        changes = await other.changes_of("algo")
        levels = [entry.after for entry in await other.control.audit(100, "algo") if entry.who == "escalation"]
        assert "escalate" in changes and levels


async def test_the_configuration_is_in_force_until_the_store_is_reachable(tmp_path: Path) -> None:
    wall, replicas = FakeWallClock(), make_replicas(ENSEMBLE)
    replicas.disk["my-lora"] = "d1"
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas) as harness:
        await harness.control.hold_breaker("stl", "open", **SIGNED)
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
    link = DatabaseLink()
    link.is_broken = True
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas, link=link) as harness:
        assert harness.control.store_trouble and harness.shown("stl") == "closed"
        await harness.tick()
        assert harness.control.fleet_status.specialists["algo"].lane.number == 1
        await reconnect(harness, link)
        assert harness.shown("stl") == "held_open" and harness.control.fleet_status.specialists["algo"].lane.number == 2
        assert (await harness.changes_of("algo")).count("begin_lane") == 1, (
            "lanes that began without the store must not be audited"
        )


async def test_repeated_outages_lose_no_count(tmp_path: Path) -> None:
    link, wall = DatabaseLink(), FakeWallClock()
    async with running_control(tmp_path / "s", link=link, wall=wall) as harness:
        for _ in range(4):
            await disconnect(harness, link)
            harness.judge("debug", passed=3, failed=2)
            await harness.run(2)
            await reconnect(harness, link)
        assert harness.control.breakers()[2].samples == 20
    async with running_control(tmp_path / "s", wall=wall) as harness:
        info = harness.control.breakers()[2]
        assert (info.samples, info.pass_rate) == (20, 0.6)
