"""Lanes with a real store and fake replicas: how they are loaded, evaluated, promoted, rolled back and kept."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octet.config.ensemble import Ensemble, LanesConfig
from octet.rpc.refusal import Refusal, adapter_refused
from router.control.adapters import STRAY_SECONDS, UNUSED_SECONDS
from router.control.lanes import GRACE_SECONDS
from tests.router.control.harness import (
    ENSEMBLE,
    SIGNED,
    ControlHarness,
    FakeWallClock,
    changed,
    make_replicas,
    reason_of,
    running_control,
)
from tests.router.store.stores import eventually

Scenario = Callable[[ControlHarness], Awaitable[None]]


def run_scenario(tmp_path: Path, scenario: Scenario, num_replicas: int = 2, **options: object) -> None:
    async def run() -> None:
        ensemble: Any = options.pop("ensemble", ENSEMBLE)
        replicas = make_replicas(ensemble, num_replicas)
        async with running_control(tmp_path / "s", ensemble=ensemble, replicas=replicas) as harness:
            harness.replicas.disk["my-lora"] = "d1"
            harness.replicas.disk["other"] = "d2"
            await scenario(harness)

    asyncio.run(run())


async def settled(harness: ControlHarness) -> None:
    """Wait until every load and unload of an adapter has ended."""
    await eventually(lambda: not harness.control._adapters._tasks)


def test_an_adapter_is_loaded_promoted_rolled_back_and_unloaded(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        control = harness.control
        info = await control.load_adapter("algo", "my-lora", **SIGNED)
        assert (info.status, info.adapter, list(info.digests)) == ("candidate", "my-lora", ["d1"])
        assert (info.number, info.resident, info.replicas) == (2, 2, 2)
        (load_name,) = harness.replicas["algo-0"].adapters
        assert load_name.startswith("my-lora.2") and load_name in harness.replicas["algo-1"].adapters
        status = harness.status("algo")
        assert status.lane.number == 1 and not status.lane.adapters and not status.lane.fresh
        assert status.candidate is not None and status.candidate.adapters == (("my-lora", load_name),)
        assert status.adapter_names["my-lora"] == load_name
        info = await control.promote("algo", **SIGNED)
        assert (info.status, info.number) == ("serving", 2)
        status = harness.status("algo")
        assert status.lane.load_names == (load_name,) and status.lane.fresh and status.candidate is None
        await harness.run(UNUSED_SECONDS + 3)
        await settled(harness)
        assert load_name in harness.replicas["algo-0"].adapters
        info = await control.roll_back("algo", **SIGNED)
        assert info.number == 1 and not harness.status("algo").lane.adapters
        statuses = {each.number: each.status for each in control.lanes("algo")}
        assert statuses == {1: "serving", 2: "rolled_back"}
        await harness.run(UNUSED_SECONDS - 2)
        await settled(harness)
        assert load_name in harness.replicas["algo-0"].adapters, "requests may still be in flight"
        await harness.run(4)
        await settled(harness)
        assert not harness.replicas["algo-0"].adapters and not harness.replicas["algo-1"].adapters
        assert await harness.changes_of("algo") == ["begin_lane", "load_lane", "promote", "roll_back"]

    run_scenario(tmp_path, scenario)


def test_configured_adapters_are_a_lane_and_are_never_unloaded(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        control = harness.control
        assert harness.status("stl").lane.adapters == (("std", "std"),)
        await control.load_adapter("stl", "my-lora", **SIGNED)
        await control.promote("stl", **SIGNED)
        await control.load_adapter("stl", "other", **SIGNED)
        await control.promote("stl", **SIGNED)
        await harness.run(UNUSED_SECONDS + 3)
        await settled(harness)
        held = harness.replicas["stl-0"].adapters
        assert held["std"] == "std-content" and sorted(held.values()) == ["d1", "d2", "std-content"]
        assert all(each != ("unload", "std") for each in harness.replicas["stl-0"].log)

    run_scenario(tmp_path, scenario)


def test_one_refusal_unloads_the_adapter_everywhere(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.replicas["algo-1"].refusal = adapter_refused("rank", "at most 64")
        with pytest.raises(Refusal) as caught:
            await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        assert reason_of(caught.value) == "ADAPTER_REFUSED" and "at most 64" in str(caught.value)
        assert (
            not harness.replicas["algo-0"].adapters
            and ("load", harness.replicas["algo-0"].log[0][1]) in harness.replicas["algo-0"].log
        )
        harness.replicas["algo-1"].refusal = None
        harness.replicas["algo-1"].files = {"my-lora": "another"}
        with pytest.raises(Refusal) as caught:
            await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        assert "algo-0 has digest d1" in str(caught.value) and "algo-1 has digest another" in str(caught.value)
        assert not harness.replicas["algo-0"].adapters and not harness.replicas["algo-1"].adapters
        assert harness.control.lanes("algo")[0].number == 1 and await harness.changes_of("algo") == ["begin_lane"]

    run_scenario(tmp_path, scenario)


def test_the_same_content_is_not_loaded_twice(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        kept = dict(harness.replicas["algo-0"].adapters)
        harness.replicas.disk["copy"] = "d1"
        with pytest.raises(Refusal) as caught:
            await harness.control.load_adapter("algo", "copy", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT"
        assert harness.replicas["algo-0"].adapters == kept

    run_scenario(tmp_path, scenario)


def test_an_unreachable_or_restarted_replica_loads_the_adapter_later(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        control, away = harness.control, harness.replicas["algo-1"]
        away.linked = False
        info = await control.load_adapter("algo", "my-lora", **SIGNED)
        assert (info.resident, info.replicas) == (1, 2)
        await control.promote("algo", **SIGNED)
        away.linked = True
        await harness.tick()
        await settled(harness)
        assert away.adapters == harness.replicas["algo-0"].adapters
        away.restart()
        await harness.tick()
        await settled(harness)
        assert away.adapters == harness.replicas["algo-0"].adapters
        for replica in harness.replicas.replicas.values():
            replica.linked = False
        with pytest.raises(Refusal) as caught:
            await control.load_adapter("algo", "other", **SIGNED)
        assert reason_of(caught.value) == "NO_REPLICA"

    run_scenario(tmp_path, scenario)


def test_a_lane_without_holders_is_not_promoted(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        for name in ("algo-0", "algo-1"):
            harness.replicas[name].restart()
        with pytest.raises(Refusal) as caught:
            await harness.control.promote("algo", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT" and "no replica of algo holds lane 2" in str(caught.value)
        assert harness.status("algo").lane.number == 1
        with pytest.raises(Refusal) as caught:
            await harness.control.promote("algo", "another", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT" and "'my-lora', not 'another'" in str(caught.value)

    run_scenario(tmp_path, scenario)


def test_other_content_under_the_same_path_is_reported_once_and_never_used(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        control = harness.control
        await control.load_adapter("algo", "my-lora", **SIGNED)
        await control.promote("algo", **SIGNED)
        harness.replicas.disk["my-lora"] = "overwritten"
        harness.replicas["algo-1"].restart()
        with control.events.subscribe() as events:
            for _ in range(80):
                await harness.tick()
                await settled(harness)
                assert "overwritten" not in harness.replicas[
                    "algo-1"
                ].adapters.values() or not control.fleet_status.may_answer("algo-1", "r1", "algo")
            while (entry := (await anext(events)).audit).what != "wrong_adapter":
                pass
        assert entry.subject == "algo" and "algo-1" in entry.why
        assert (await harness.changes_of("algo")).count("wrong_adapter") == 1
        loads = [each for each in harness.replicas["algo-1"].log if each[0] == "load"]
        assert 2 < len(loads) < 12, "loads must be repeated with growing pauses"

    run_scenario(tmp_path, scenario)


def test_an_equally_good_candidate_is_promoted_automatically_and_then_trusted(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        harness.judge("algo", passed=27, failed=3)
        harness.judge("algo", passed=17, failed=2, candidate=True)
        await harness.tick()
        assert harness.status("algo").lane.number == 1, "one more sample is needed"
        harness.judge("algo", passed=1, failed=0, candidate=True)
        harness.replicas["algo-1"].restart()
        await harness.tick(0)
        assert harness.status("algo").lane.number == 1, "half of the replicas lack the adapter"
        await settled(harness)
        await harness.tick()
        assert harness.status("algo").lane.number == 2 and harness.status("algo").lane.fresh
        harness.judge("algo", passed=19, failed=1)
        await harness.tick()
        assert not harness.status("algo").lane.fresh
        assert await harness.changes_of("algo") == ["begin_lane", "load_lane", "promote", "trust_lane"]

    run_scenario(tmp_path, scenario, ensemble=changed(lanes=LanesConfig(promote="auto", min_samples=20)))


def test_a_failing_candidate_is_never_promoted(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        harness.judge("algo", passed=30, failed=0)
        harness.judge("algo", passed=0, failed=12, candidate=True)
        await harness.tick()
        assert harness.status("algo").candidate is None
        assert harness.status("algo").lane.number == 1
        last = (await harness.control.audit(1, "algo"))[0]
        assert (last.what, last.who) == ("roll_back", "lanes") and "0 of 12 passed" in last.why
        await harness.run(UNUSED_SECONDS + 2)
        await settled(harness)
        assert not harness.replicas["algo-0"].adapters

    run_scenario(tmp_path, scenario, ensemble=changed(lanes=LanesConfig(promote="auto", min_samples=20)))


def test_a_failing_new_lane_is_rolled_back_automatically(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.judge("algo", passed=30, failed=0)
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        harness.judge("algo", passed=2, failed=18)
        await harness.tick()
        assert harness.status("algo").lane.number == 1 and harness.shown("algo") == "closed"
        assert (await harness.changes_of("algo"))[-2:] == ["promote", "roll_back"]
        assert harness.control.breakers()[0].samples == 30, "each lane must have its own history"

    run_scenario(tmp_path, scenario)


def test_a_lane_has_a_breaker_of_its_own_and_a_hold_outlasts_it(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.judge("algo", passed=2, failed=18)
        await harness.run(15)
        assert harness.shown("algo") == "shadow_only"
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        assert harness.shown("algo") == "closed"
        await harness.control.hold_breaker("algo", "open", **SIGNED)
        await harness.control.roll_back("algo", **SIGNED)
        assert harness.shown("algo") == "held_open"
        info = await harness.control.release_breaker("algo", **SIGNED)
        assert info.state == "shadow_only"

    run_scenario(tmp_path, scenario)


def test_a_rolling_refresh_serves_after_its_promotion(tmp_path: Path) -> None:
    """Replicas that restart with a new model get only shadow requests until that model is promoted. They serve earlier
    if no other replica is left."""

    async def scenario(harness: ControlHarness) -> None:
        control, old, new = harness.control, harness.replicas["algo-0"], harness.replicas["algo-1"]
        new.restart("r2")
        await harness.run(GRACE_SECONDS + 2)
        status = harness.status("algo")
        assert status.lane.number == 1 and status.candidate is not None and status.candidate.revision == "r2"
        assert control.fleet_status.may_answer("algo-0", "r1", "algo")
        assert not control.fleet_status.may_answer("algo-1", "r2", "algo")
        assert status.candidate.unfit == {"algo-0"}
        old.linked = False
        await harness.tick()
        status = harness.status("algo")
        assert status.lane.lane_id == "" and control.fleet_status.may_answer("algo-1", "r2", "algo"), (
            "an answer from the other model is better than none"
        )
        assert control.lanes("algo")[-1].status == "serving", "a restart must not change the lane"
        old.linked = True
        await harness.tick()
        assert harness.status("algo").lane.revision == "r1"
        old.restart("r2")
        await harness.run(GRACE_SECONDS + 2)
        status = harness.status("algo")
        assert status.lane.number == 2 and status.lane.revision == "r2" and status.lane.fresh
        assert control.fleet_status.may_answer("algo-0", "r2", "algo")
        with pytest.raises(Refusal) as caught:
            await control.roll_back("algo", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT" and "no replica of algo holds lane 1" in str(caught.value)
        await harness.run(10)
        assert [each.number for each in control.lanes("algo")] == [2, 1]

    run_scenario(tmp_path, scenario)


def test_a_rolled_back_refresh_is_not_offered_again(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.replicas["algo-1"].restart("r2")
        await harness.run(2)
        await harness.control.roll_back("algo", **SIGNED)
        await harness.run(GRACE_SECONDS + 2)
        assert harness.status("algo").candidate is None
        harness.replicas["algo-0"].restart("r2")
        await harness.run(GRACE_SECONDS + 2)
        status = harness.status("algo")
        assert status.lane.number == 3 and status.lane.fresh, "no other model is left"

    run_scenario(tmp_path, scenario)


def test_a_promoted_refresh_can_be_rolled_back_while_the_old_model_runs(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.replicas["algo-1"].restart("r2")
        await harness.run(2)
        info = await harness.control.promote("algo", **SIGNED)
        assert info.revision == "r2" and not harness.control.fleet_status.may_answer("algo-0", "r1", "algo")
        await harness.run(GRACE_SECONDS + 2)
        assert harness.status("algo").lane.number == 2
        info = await harness.control.roll_back("algo", **SIGNED)
        assert info.number == 1 and harness.control.fleet_status.may_answer("algo-0", "r1", "algo")
        await harness.run(GRACE_SECONDS + 2)
        assert harness.status("algo").lane.number == 1

    run_scenario(tmp_path, scenario)


def test_a_promoted_refresh_that_disappears_is_followed_by_a_new_lane(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.replicas["algo-1"].restart("r2")
        await harness.run(2)
        await harness.control.promote("algo", **SIGNED)
        harness.replicas["algo-1"].restart("r1")
        await harness.run(GRACE_SECONDS + 2)
        lane = harness.status("algo").lane
        assert (lane.number, lane.revision, lane.fresh) == (3, "r1", True)

    run_scenario(tmp_path, scenario)


def test_adapters_loaded_by_others_are_kept(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.replicas["algo-0"].adapters["by-hand"] = "d9"
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.roll_back("algo", **SIGNED)
        await harness.run(UNUSED_SECONDS + 3)
        await settled(harness)
        assert harness.replicas["algo-0"].adapters == {"by-hand": "d9"}

    run_scenario(tmp_path, scenario)


def test_other_configured_adapters_begin_a_lane(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for name in ("stl-0", "stl-1"):
            harness.replicas[name].adapters["fast"] = "fast-content"
        both = {"std": "/std", "fast": "/fast"}
        specialists = tuple(
            replace(each, adapters=both, use_adapters=("fast", "std")) if each.name == "stl" else each
            for each in ENSEMBLE.specialists
        )
        harness.control.reload(replace(ENSEMBLE, specialists=specialists))
        await harness.run(GRACE_SECONDS + 2)
        lane = harness.status("stl").lane
        assert (lane.number, lane.names, lane.fresh) == (2, ("fast", "std"), True)
        harness.control.reload(replace(ENSEMBLE, specialists=specialists))
        await harness.run(GRACE_SECONDS + 2)
        assert harness.status("stl").lane.number == 2
        info = await harness.control.roll_back("stl", **SIGNED)
        assert info.number == 1
        await harness.run(GRACE_SECONDS + 2)
        assert harness.status("stl").lane.number == 1, "the order must stay in force"

    run_scenario(tmp_path, scenario)


async def test_a_restart_of_the_router_keeps_the_lanes(tmp_path: Path) -> None:
    wall, replicas = FakeWallClock(), make_replicas(ENSEMBLE, 2)
    replicas.disk["my-lora"] = "d1"
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas) as harness:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        lane = harness.status("algo").lane
    replicas["algo-0"].restart()
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas) as harness:
        assert harness.status("algo").lane.lane_id == lane.lane_id
        await harness.tick()
        await settled(harness)
        assert replicas["algo-0"].adapters == replicas["algo-1"].adapters == {lane.load_names[0]: "d1"}


def test_many_swaps_leave_no_adapters(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for number in range(25):
            harness.replicas.disk[f"lora-{number}"] = f"digest-{number}"
            await harness.control.load_adapter("algo", f"lora-{number}", **SIGNED)
            await harness.control.promote("algo", **SIGNED)
            await harness.tick(2)
            await settled(harness)
            assert len(harness.replicas["algo-0"].adapters) <= 2 + UNUSED_SECONDS / 2 + 2
        await harness.run(UNUSED_SECONDS + 2)
        await settled(harness)
        assert sorted(harness.replicas["algo-0"].adapters.values()) == ["digest-23", "digest-24"]

    run_scenario(tmp_path, scenario, num_replicas=1)


def test_a_cancelled_order_leaves_no_adapter(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        harness.replicas.may_load.clear()
        order = asyncio.create_task(harness.control.load_adapter("algo", "my-lora", **SIGNED))
        await eventually(lambda: harness.replicas["algo-0"].log and harness.replicas["algo-1"].log)
        order.cancel()
        await asyncio.gather(order, return_exceptions=True)
        harness.replicas.may_load.set()
        await settled(harness)
        await harness.run(UNUSED_SECONDS + 2)
        await settled(harness)
        assert not harness.replicas["algo-0"].adapters and not harness.replicas["algo-1"].adapters

    run_scenario(tmp_path, scenario)


async def test_closing_during_a_load_leaves_no_task(tmp_path: Path) -> None:
    replicas = make_replicas(ENSEMBLE)
    replicas.disk["my-lora"] = "d1"
    async with running_control(tmp_path / "s", replicas=replicas) as harness:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        replicas["algo-0"].restart()
        replicas.may_load.clear()
        await harness.tick()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2
    assert len(asyncio.all_tasks()) == 1


def test_a_just_loaded_adapter_can_be_promoted(tmp_path: Path) -> None:
    """An adapter can be promoted before the replicas report it."""

    async def scenario(harness: ControlHarness) -> None:
        harness.replicas.lag = 0.3
        info = await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        assert info.resident == 2
        info = await harness.control.promote("algo", **SIGNED)
        assert (info.number, info.status) == (2, "serving")

    run_scenario(tmp_path, scenario)


async def test_an_adapter_can_be_loaded_as_soon_as_replicas_appear(tmp_path: Path) -> None:
    """Loading does not wait for the control plane's first tick."""
    replicas = make_replicas(ENSEMBLE)
    replicas.disk["my-lora"] = "d1"
    async with running_control(tmp_path / "s", replicas=replicas, with_tasks=True) as harness:
        info = await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        assert (info.number, info.status) == (2, "candidate")


def configured_anew(*use: str) -> Ensemble:
    """Return the ensemble with `use` as the adapters of the specialist `stl`."""
    paths = {name: f"/{name}" for name in use}
    specialists = tuple(
        replace(each, adapters=paths, use_adapters=use) if each.name == "stl" else each for each in ENSEMBLE.specialists
    )
    return replace(ENSEMBLE, specialists=specialists)


@pytest.mark.parametrize("held", [("fast", "small"), ("small",), ()])
async def test_requests_are_answered_at_once_after_a_restart_with_other_adapters(
    tmp_path: Path, held: tuple[str, ...]
) -> None:
    """Until a new lane begins, requests use those configured adapters that a replica already holds."""
    ensemble = configured_anew("fast", "small")
    wall, replicas = FakeWallClock(), make_replicas(ENSEMBLE, 2)
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas):
        pass
    replicas["stl-0"].adapters = {name: f"{name}-content" for name in held}
    replicas["stl-1"].adapters = {}
    async with running_control(tmp_path / "s", wall=wall, replicas=replicas, ensemble=ensemble) as harness:
        lane = harness.status("stl").lane
        assert (lane.names, lane.load_names, lane.lane_id) == (held, held, "")
        assert harness.control.fleet_status.may_answer("stl-0", "r1", "stl")
        assert harness.control.fleet_status.may_answer("stl-1", "r1", "stl") == (not held)
        await harness.run(GRACE_SECONDS + 2)
        lane = harness.status("stl").lane
        assert (lane.number, bool(lane.lane_id)) == ((2, True) if len(held) == 2 else (1, False))


@pytest.mark.parametrize("content", ["overwritten", None])
def test_a_lane_whose_content_is_lost_is_rolled_back(tmp_path: Path, content: str | None) -> None:
    async def scenario(harness: ControlHarness) -> None:
        control = harness.control
        await control.load_adapter("algo", "my-lora", **SIGNED)
        await control.promote("algo", **SIGNED)
        harness.replicas.disk["my-lora"] = content or ""
        if content is None:
            del harness.replicas.disk["my-lora"]
        harness.replicas["algo-0"].restart()
        for _ in range(10):
            await harness.tick()
            await settled(harness)
        assert harness.status("algo").lane.number == 2, "one replica still holds the adapter"
        harness.replicas["algo-1"].restart()
        for _ in range(round(GRACE_SECONDS)):
            await harness.tick()
            await settled(harness)
            assert harness.status("algo").lane.number == 2, "the lane must not be lost within the grace period"
        assert "any more" in harness.status("algo").unfit_reason
        for _ in range(4):
            await harness.tick()
            await settled(harness)
        status = harness.status("algo")
        assert status.lane.number == 1 and not status.unfit_reason
        assert {each.number: each.status for each in control.lanes("algo")} == {1: "serving", 2: "rolled_back"}
        last = (await control.audit(1, "algo"))[0]
        assert (last.what, last.who) == ("roll_back", "lanes")
        assert "no replica holds the adapters of lane 2 (my-lora) any more" in last.why

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_lost_lane_without_a_previous_lane_is_reported(tmp_path: Path, is_allowed: bool) -> None:
    async def scenario(harness: ControlHarness) -> None:
        control = harness.control
        await control.load_adapter("algo", "my-lora", **SIGNED)
        await control.promote("algo", **SIGNED)
        if is_allowed:
            await control.load_adapter("algo", "other", **SIGNED)
            await control.promote("algo", **SIGNED)
            await control.roll_back("algo", **SIGNED)
        harness.replicas.disk["my-lora"] = "overwritten"
        for name in ("algo-0", "algo-1"):
            harness.replicas[name].restart()
        for _ in range(20):
            await harness.tick()
            await settled(harness)
        status = harness.status("algo")
        assert status.lane.number == 2 and "algo" in status.unfit_reason and "any more" in status.unfit_reason
        assert "no replica holds the adapters" in control.breakers()[0].outlook
        assert (
            "no replica holds the adapters" in next(each for each in control.lanes("algo") if each.number == 2).outlook
        )
        harness.replicas.disk["my-lora"] = "d1"
        for _ in range(40):
            await harness.tick()
            await settled(harness)
        assert not harness.status("algo").unfit_reason and harness.status("algo").lane.number == 2
        assert "no replica" not in control.breakers()[0].outlook
        for name in ("algo-0", "algo-1"):
            harness.replicas[name].restart()
        control._publish_status()
        assert not harness.status("algo").unfit_reason, "the last load succeeded"
        harness.replicas.disk["my-lora"] = "overwritten"
        for _ in range(10):
            await harness.tick()
            await settled(harness)
        assert harness.status("algo").unfit_reason
        for name in ("algo-0", "algo-1"):
            harness.replicas[name].restart("r2")
        control._publish_status()
        status = harness.status("algo")
        assert not status.unfit_reason and not status.lane.adapters, "the other model must answer"

    run_scenario(tmp_path, scenario, ensemble=changed(lanes=replace(ENSEMBLE.lanes, roll_back=is_allowed)))


def test_a_lost_lane_waits_for_the_previous_lane(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await harness.control.load_adapter("stl", "my-lora", **SIGNED)
        await harness.control.promote("stl", **SIGNED)
        (load_name,) = harness.status("stl").lane.load_names
        harness.replicas.disk["my-lora"] = "overwritten"
        for name in ("stl-0", "stl-1"):
            harness.replicas[name].restart()
            harness.replicas[name].adapters[load_name] = "overwritten"
        harness.control._publish_status()
        status = harness.status("stl")
        assert status.unfit_reason and status.lane.load_names == (load_name,), (
            "the lane must keep its adapter until the previous lane is ready"
        )
        for _ in range(10):
            await harness.tick()
            await settled(harness)
        assert harness.status("stl").lane.number == 2
        harness.replicas["stl-0"].adapters["std"] = "std-content"
        await harness.tick()
        assert harness.status("stl").lane.number == 1

    run_scenario(tmp_path, scenario)


def test_other_content_under_a_configured_name_answers_at_once(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for name in ("stl-0", "stl-1"):
            harness.replicas[name].adapters["std"] = "newer"
        await harness.tick()
        status = harness.status("stl")
        assert not status.unfit_reason and status.lane.load_names == ("std",) and not status.lane.lane_id
        await harness.run(GRACE_SECONDS + 1)
        lane = harness.status("stl").lane
        assert (lane.number, bool(lane.lane_id), lane.fresh) == (2, True, True)

    run_scenario(tmp_path, scenario)


def test_adapters_left_by_a_killed_router_are_unloaded_later(tmp_path: Path) -> None:
    """A router was killed after it loaded an adapter but before it stored the lane. Only that adapter is unloaded:
    adapters that are configured, or whose names no router generated, stay."""
    ensemble = configured_anew("std", "mine.1-abcd")
    others = {"std": "d0", "mine.1-abcd": "d0", "by-hand": "d8", "by-hand.3": "d8", "by-hand.3-xyz0": "d8"}

    async def scenario(harness: ControlHarness) -> None:
        replica = harness.replicas["stl-0"]
        await harness.control.load_adapter("stl", "my-lora", **SIGNED)
        await harness.control.promote("stl", **SIGNED)
        (serving,) = harness.status("stl").lane.load_names
        replica.adapters.update({**others, "lost.7-00ff": "d9"})
        await harness.run(STRAY_SECONDS - 5)
        await settled(harness)
        assert "lost.7-00ff" in replica.adapters, "another router may be about to store its lane"
        await harness.run(10)
        await settled(harness)
        assert replica.adapters == {**others, serving: "d1"}
        assert [name for what, name in replica.log if what == "unload"] == ["lost.7-00ff"]

    run_scenario(tmp_path, scenario, num_replicas=1, ensemble=ensemble)
