"""Lanes over a real store and toy replicas: loaded, judged, promoted, rolled back, kept."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from octet.config.ensemble import Ensemble, LanesConfig
from octet.rpc.refusal import Refusal, adapter_refused
from router.control.adapters import STRAY_SECONDS, UNUSED_SECONDS
from router.control.lanes import GRACE_SECONDS
from tests.router.control.houses import ENSEMBLE, SIGNED, House, Wall, changed, housed, reason_of, toys_of
from tests.router.store.stores import eventually

Story = Callable[[House], Awaitable[None]]


def tell(tmp_path: Path, story: Story, replicas: int = 2, **options: object) -> None:
    async def told() -> None:
        ensemble = options.pop("ensemble", ENSEMBLE)
        async with housed(tmp_path / "s", ensemble=ensemble, toys=toys_of(ensemble, replicas)) as house:  # type: ignore[arg-type]
            house.toys.disk["my-lora"] = "d1"
            house.toys.disk["other"] = "d2"
            await story(house)

    asyncio.run(told())


async def settled(house: House) -> None:
    """What the keeper began is done."""
    await eventually(lambda: not house.control._adapters._tasks)


def test_load_promote_roll_back(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        control = house.control
        info = await control.load_adapter("algo", "my-lora", **SIGNED)
        assert (info.status, info.adapter, list(info.digests)) == ("candidate", "my-lora", ["d1"])
        assert (info.number, info.resident, info.replicas) == (2, 2, 2)
        (load_name,) = house.toys["algo-0"].adapters
        assert load_name.startswith("my-lora.2") and load_name in house.toys["algo-1"].adapters
        standing = house.status("algo")
        assert standing.lane.number == 1 and not standing.lane.adapters and not standing.lane.fresh
        assert standing.candidate is not None and standing.candidate.adapters == (("my-lora", load_name),)
        assert standing.adapter_names["my-lora"] == load_name
        info = await control.promote("algo", **SIGNED)
        assert (info.status, info.number) == ("serving", 2)
        standing = house.status("algo")
        assert standing.lane.load_names == (load_name,) and standing.lane.fresh and standing.candidate is None
        await house.run(UNUSED_SECONDS + 3)
        await settled(house)
        assert load_name in house.toys["algo-0"].adapters
        info = await control.roll_back("algo", **SIGNED)
        assert info.number == 1 and not house.status("algo").lane.adapters
        statuses = {each.number: each.status for each in control.lanes("algo")}
        assert statuses == {1: "serving", 2: "rolled_back"}
        await house.run(UNUSED_SECONDS - 2)
        await settled(house)
        assert load_name in house.toys["algo-0"].adapters, "requests may be on their way"
        await house.run(4)
        await settled(house)
        assert not house.toys["algo-0"].adapters and not house.toys["algo-1"].adapters
        assert await house.story("algo") == ["begin_lane", "load_lane", "promote", "roll_back"]

    tell(tmp_path, story)


def test_the_configurations_own_adapters_are_a_lane_and_are_never_unloaded(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        control = house.control
        assert house.status("stl").lane.adapters == (("std", "std"),)
        await control.load_adapter("stl", "my-lora", **SIGNED)
        await control.promote("stl", **SIGNED)
        await control.load_adapter("stl", "other", **SIGNED)
        await control.promote("stl", **SIGNED)
        await house.run(UNUSED_SECONDS + 3)
        await settled(house)
        held = house.toys["stl-0"].adapters
        assert held["std"] == "std-content" and sorted(held.values()) == ["d1", "d2", "std-content"]
        assert all(each != ("unload", "std") for each in house.toys["stl-0"].log)

    tell(tmp_path, story)


def test_one_refusal_and_nothing_was_loaded(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.toys["algo-1"].refusal = adapter_refused("rank", "at most 64")
        with pytest.raises(Refusal) as caught:
            await house.control.load_adapter("algo", "my-lora", **SIGNED)
        assert reason_of(caught.value) == "ADAPTER_REFUSED" and "at most 64" in str(caught.value)
        assert (
            not house.toys["algo-0"].adapters and ("load", house.toys["algo-0"].log[0][1]) in house.toys["algo-0"].log
        )
        house.toys["algo-1"].refusal = None
        house.toys["algo-1"].files = {"my-lora": "another"}
        with pytest.raises(Refusal) as caught:
            await house.control.load_adapter("algo", "my-lora", **SIGNED)
        assert "algo-0 has d1" in str(caught.value) and "algo-1 has another" in str(caught.value)
        assert not house.toys["algo-0"].adapters and not house.toys["algo-1"].adapters
        assert house.control.lanes("algo")[0].number == 1 and await house.story("algo") == ["begin_lane"]

    tell(tmp_path, story)


def test_the_same_content_is_not_loaded_twice(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        kept = dict(house.toys["algo-0"].adapters)
        house.toys.disk["copy"] = "d1"
        with pytest.raises(Refusal) as caught:
            await house.control.load_adapter("algo", "copy", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT"
        assert house.toys["algo-0"].adapters == kept

    tell(tmp_path, story)


def test_an_unreachable_or_restarted_replica_loads_the_adapter_later(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        control, away = house.control, house.toys["algo-1"]
        away.linked = False
        info = await control.load_adapter("algo", "my-lora", **SIGNED)
        assert (info.resident, info.replicas) == (1, 2)
        await control.promote("algo", **SIGNED)
        away.linked = True
        await house.tick()
        await settled(house)
        assert away.adapters == house.toys["algo-0"].adapters
        away.restart()
        await house.tick()
        await settled(house)
        assert away.adapters == house.toys["algo-0"].adapters
        for toy in house.toys.toys.values():
            toy.linked = False
        with pytest.raises(Refusal) as caught:
            await control.load_adapter("algo", "other", **SIGNED)
        assert reason_of(caught.value) == "NO_REPLICA"

    tell(tmp_path, story)


def test_a_lane_without_holders_is_not_promoted(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        for name in ("algo-0", "algo-1"):
            house.toys[name].restart()
        with pytest.raises(Refusal) as caught:
            await house.control.promote("algo", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT" and "no replica of algo holds lane 2" in str(caught.value)
        assert house.status("algo").lane.number == 1
        with pytest.raises(Refusal) as caught:
            await house.control.promote("algo", "another", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT" and "'my-lora', not 'another'" in str(caught.value)

    tell(tmp_path, story)


def test_other_content_under_the_same_path_is_reported_once_and_never_used(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        control = house.control
        await control.load_adapter("algo", "my-lora", **SIGNED)
        await control.promote("algo", **SIGNED)
        house.toys.disk["my-lora"] = "overwritten"
        house.toys["algo-1"].restart()
        with control.events.subscribe() as events:
            for _ in range(80):
                await house.tick()
                await settled(house)
                assert "overwritten" not in house.toys[
                    "algo-1"
                ].adapters.values() or not control.fleet_status.may_answer("algo-1", "r1", "algo")
            while (told := (await anext(events)).audit).what != "wrong_adapter":
                pass
        assert told.subject == "algo" and "algo-1" in told.why
        assert (await house.story("algo")).count("wrong_adapter") == 1
        loads = [each for each in house.toys["algo-1"].log if each[0] == "load"]
        assert 2 < len(loads) < 12, "again and again, and less and less often"

    tell(tmp_path, story)


def test_by_policy_a_candidate_that_is_as_good_is_promoted_and_then_trusted(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        house.judge("algo", passed=27, failed=3)
        house.judge("algo", passed=17, failed=2, candidate=True)
        await house.tick()
        assert house.status("algo").lane.number == 1, "one sample is missing"
        house.judge("algo", passed=1, failed=0, candidate=True)
        house.toys["algo-1"].restart()
        await house.tick(0)
        assert house.status("algo").lane.number == 1, "half of the replicas would be lost"
        await settled(house)
        await house.tick()
        assert house.status("algo").lane.number == 2 and house.status("algo").lane.fresh
        house.judge("algo", passed=19, failed=1)
        await house.tick()
        assert not house.status("algo").lane.fresh
        assert await house.story("algo") == ["begin_lane", "load_lane", "promote", "trust_lane"]

    tell(tmp_path, story, ensemble=changed(lanes=LanesConfig(promote="auto", min_samples=20)))


def test_a_candidate_that_breaks_everything_is_never_promoted(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        house.judge("algo", passed=30, failed=0)
        house.judge("algo", passed=0, failed=12, candidate=True)
        await house.tick()
        assert house.status("algo").candidate is None
        assert house.status("algo").lane.number == 1
        last = (await house.control.audit(1, "algo"))[0]
        assert (last.what, last.who) == ("roll_back", "lanes") and "0 of 12 passed" in last.why
        await house.run(UNUSED_SECONDS + 2)
        await settled(house)
        assert not house.toys["algo-0"].adapters

    tell(tmp_path, story, ensemble=changed(lanes=LanesConfig(promote="auto", min_samples=20)))


def test_a_fresh_lane_that_fails_goes_back_by_itself(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.judge("algo", passed=30, failed=0)
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        await house.control.promote("algo", **SIGNED)
        house.judge("algo", passed=2, failed=18)
        await house.tick()
        assert house.status("algo").lane.number == 1 and house.shown("algo") == "closed"
        assert (await house.story("algo"))[-2:] == ["promote", "roll_back"]
        assert house.control.breakers()[0].samples == 30, "a lane's history is its own"

    tell(tmp_path, story)


def test_a_lane_has_a_breaker_of_its_own_and_a_hold_outlasts_it(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.judge("algo", passed=2, failed=18)
        await house.run(15)
        assert house.shown("algo") == "shadow_only"
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        await house.control.promote("algo", **SIGNED)
        assert house.shown("algo") == "closed"
        await house.control.hold_breaker("algo", "open", **SIGNED)
        await house.control.roll_back("algo", **SIGNED)
        assert house.shown("algo") == "held_open"
        info = await house.control.release_breaker("algo", **SIGNED)
        assert info.state == "shadow_only"

    tell(tmp_path, story)


def test_a_rolling_refresh(tmp_path: Path) -> None:
    """Replicas of another model only shadow until they are promoted, and serve when nothing else is left."""

    async def story(house: House) -> None:
        control, old, new = house.control, house.toys["algo-0"], house.toys["algo-1"]
        new.restart("r2")
        await house.run(GRACE_SECONDS + 2)
        standing = house.status("algo")
        assert standing.lane.number == 1 and standing.candidate is not None and standing.candidate.revision == "r2"
        assert control.fleet_status.may_answer("algo-0", "r1", "algo")
        assert not control.fleet_status.may_answer("algo-1", "r2", "algo")
        assert standing.candidate.unfit == {"algo-0"}
        old.linked = False
        await house.tick()
        standing = house.status("algo")
        assert standing.lane.lane_id == "" and control.fleet_status.may_answer("algo-1", "r2", "algo"), (
            "rather than nobody"
        )
        assert control.lanes("algo")[-1].status == "serving", "a restart is no change"
        old.linked = True
        await house.tick()
        assert house.status("algo").lane.revision == "r1"
        old.restart("r2")
        await house.run(GRACE_SECONDS + 2)
        standing = house.status("algo")
        assert standing.lane.number == 2 and standing.lane.revision == "r2" and standing.lane.fresh
        assert control.fleet_status.may_answer("algo-0", "r2", "algo")
        with pytest.raises(Refusal) as caught:
            await control.roll_back("algo", **SIGNED)
        assert reason_of(caught.value) == "CONFLICT" and "no replica of algo holds lane 1" in str(caught.value)
        await house.run(10)
        assert [each.number for each in control.lanes("algo")] == [2, 1]

    tell(tmp_path, story)


def test_a_refresh_that_was_sent_away_is_not_offered_again(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.toys["algo-1"].restart("r2")
        await house.run(2)
        await house.control.roll_back("algo", **SIGNED)
        await house.run(GRACE_SECONDS + 2)
        assert house.status("algo").candidate is None
        house.toys["algo-0"].restart("r2")
        await house.run(GRACE_SECONDS + 2)
        standing = house.status("algo")
        assert standing.lane.number == 3 and standing.lane.fresh, "there is nothing else"

    tell(tmp_path, story)


def test_a_promoted_refresh_can_be_gone_back_from_while_the_old_is_there(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.toys["algo-1"].restart("r2")
        await house.run(2)
        info = await house.control.promote("algo", **SIGNED)
        assert info.revision == "r2" and not house.control.fleet_status.may_answer("algo-0", "r1", "algo")
        await house.run(GRACE_SECONDS + 2)
        assert house.status("algo").lane.number == 2
        info = await house.control.roll_back("algo", **SIGNED)
        assert info.number == 1 and house.control.fleet_status.may_answer("algo-0", "r1", "algo")
        await house.run(GRACE_SECONDS + 2)
        assert house.status("algo").lane.number == 1

    tell(tmp_path, story)


def test_a_promoted_refresh_that_is_taken_away_again(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.toys["algo-1"].restart("r2")
        await house.run(2)
        await house.control.promote("algo", **SIGNED)
        house.toys["algo-1"].restart("r1")
        await house.run(GRACE_SECONDS + 2)
        lane = house.status("algo").lane
        assert (lane.number, lane.revision, lane.fresh) == (3, "r1", True)

    tell(tmp_path, story)


def test_what_others_have_loaded_is_left_alone(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.toys["algo-0"].adapters["by-hand"] = "d9"
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        await house.control.roll_back("algo", **SIGNED)
        await house.run(UNUSED_SECONDS + 3)
        await settled(house)
        assert house.toys["algo-0"].adapters == {"by-hand": "d9"}

    tell(tmp_path, story)


def test_other_configured_adapters_begin_a_lane(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        for name in ("stl-0", "stl-1"):
            house.toys[name].adapters["fast"] = "fast-content"
        both = {"std": "/std", "fast": "/fast"}
        specialists = tuple(
            replace(each, adapters=both, use_adapters=("fast", "std")) if each.name == "stl" else each
            for each in ENSEMBLE.specialists
        )
        house.control.reload(replace(ENSEMBLE, specialists=specialists))
        await house.run(GRACE_SECONDS + 2)
        lane = house.status("stl").lane
        assert (lane.number, lane.names, lane.fresh) == (2, ("fast", "std"), True)
        house.control.reload(replace(ENSEMBLE, specialists=specialists))
        await house.run(GRACE_SECONDS + 2)
        assert house.status("stl").lane.number == 2
        info = await house.control.roll_back("stl", **SIGNED)
        assert info.number == 1
        await house.run(GRACE_SECONDS + 2)
        assert house.status("stl").lane.number == 1, "what was ordered stays"

    tell(tmp_path, story)


async def test_a_restart_of_the_router_keeps_the_lanes(tmp_path: Path) -> None:
    wall, toys = Wall(), toys_of(ENSEMBLE, 2)
    toys.disk["my-lora"] = "d1"
    async with housed(tmp_path / "s", wall=wall, toys=toys) as house:
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        await house.control.promote("algo", **SIGNED)
        lane = house.status("algo").lane
    toys["algo-0"].restart()
    async with housed(tmp_path / "s", wall=wall, toys=toys) as house:
        assert house.status("algo").lane.lane_id == lane.lane_id
        await house.tick()
        await settled(house)
        assert toys["algo-0"].adapters == toys["algo-1"].adapters == {lane.load_names[0]: "d1"}


def test_many_swaps_leave_nothing_behind(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        for number in range(25):
            house.toys.disk[f"lora-{number}"] = f"digest-{number}"
            await house.control.load_adapter("algo", f"lora-{number}", **SIGNED)
            await house.control.promote("algo", **SIGNED)
            await house.tick(2)
            await settled(house)
            assert len(house.toys["algo-0"].adapters) <= 2 + UNUSED_SECONDS / 2 + 2
        await house.run(UNUSED_SECONDS + 2)
        await settled(house)
        assert sorted(house.toys["algo-0"].adapters.values()) == ["digest-23", "digest-24"]

    tell(tmp_path, story, replicas=1)


def test_an_order_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.toys.seconds = 0.2
        order = asyncio.create_task(house.control.load_adapter("algo", "my-lora", **SIGNED))
        await asyncio.sleep(0.05)
        order.cancel()
        await asyncio.gather(order, return_exceptions=True)
        house.toys.seconds = 0.0
        await asyncio.sleep(0.3)
        await house.run(UNUSED_SECONDS + 2)
        await settled(house)
        assert not house.toys["algo-0"].adapters and not house.toys["algo-1"].adapters

    tell(tmp_path, story)


async def test_an_end_in_the_middle_of_a_load(tmp_path: Path) -> None:
    toys = toys_of(ENSEMBLE)
    toys.disk["my-lora"] = "d1"
    async with housed(tmp_path / "s", toys=toys) as house:
        await house.control.load_adapter("algo", "my-lora", **SIGNED)
        toys["algo-0"].restart()
        toys.seconds = 60.0
        await house.tick()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2
    assert len(asyncio.all_tasks()) == 1


def test_what_was_just_loaded_can_be_promoted_at_once(tmp_path: Path) -> None:
    """Though replicas take a moment to say that they have it."""

    async def story(house: House) -> None:
        house.toys.lag = 0.3
        info = await house.control.load_adapter("algo", "my-lora", **SIGNED)
        assert info.resident == 2
        info = await house.control.promote("algo", **SIGNED)
        assert (info.number, info.status) == (2, "serving")

    tell(tmp_path, story)


async def test_an_adapter_can_be_loaded_as_soon_as_replicas_are_there(tmp_path: Path) -> None:
    """Before anything has ticked."""
    toys = toys_of(ENSEMBLE)
    toys.disk["my-lora"] = "d1"
    async with housed(tmp_path / "s", toys=toys, by_itself=True) as house:
        info = await house.control.load_adapter("algo", "my-lora", **SIGNED)
        assert (info.number, info.status) == (2, "candidate")


def configured_anew(*use: str) -> Ensemble:
    """The same, with other adapters for stl."""
    paths = {name: f"/{name}" for name in use}
    specialists = tuple(
        replace(each, adapters=paths, use_adapters=use) if each.name == "stl" else each for each in ENSEMBLE.specialists
    )
    return replace(ENSEMBLE, specialists=specialists)


@pytest.mark.parametrize("held", [("fast", "small"), ("small",), ()])
async def test_requests_are_answered_at_once_after_a_restart_with_other_adapters(
    tmp_path: Path, held: tuple[str, ...]
) -> None:
    """As configured now, as far as somebody has it; and never with what nobody has any more."""
    ensemble = configured_anew("fast", "small")
    wall, toys = Wall(), toys_of(ENSEMBLE, 2)
    async with housed(tmp_path / "s", wall=wall, toys=toys):
        pass
    toys["stl-0"].adapters = {name: f"{name}-content" for name in held}
    toys["stl-1"].adapters = {}
    async with housed(tmp_path / "s", wall=wall, toys=toys, ensemble=ensemble) as house:
        lane = house.status("stl").lane
        assert (lane.names, lane.load_names, lane.lane_id) == (held, held, "")
        assert house.control.fleet_status.may_answer("stl-0", "r1", "stl")
        assert house.control.fleet_status.may_answer("stl-1", "r1", "stl") == (not held)
        await house.run(GRACE_SECONDS + 2)
        lane = house.status("stl").lane
        assert (lane.number, bool(lane.lane_id)) == ((2, True) if len(held) == 2 else (1, False))


@pytest.mark.parametrize("content", ["overwritten", None])
def test_a_lane_whose_content_is_lost_is_gone_back_from(tmp_path: Path, content: str | None) -> None:
    async def story(house: House) -> None:
        control = house.control
        await control.load_adapter("algo", "my-lora", **SIGNED)
        await control.promote("algo", **SIGNED)
        house.toys.disk["my-lora"] = content or ""
        if content is None:
            del house.toys.disk["my-lora"]
        house.toys["algo-0"].restart()
        for _ in range(10):
            await house.tick()
            await settled(house)
        assert house.status("algo").lane.number == 2, "one still has it"
        house.toys["algo-1"].restart()
        for _ in range(round(GRACE_SECONDS)):
            await house.tick()
            await settled(house)
            assert house.status("algo").lane.number == 2, "a restart is none"
        assert "any more" in house.status("algo").unfit_reason
        for _ in range(4):
            await house.tick()
            await settled(house)
        standing = house.status("algo")
        assert standing.lane.number == 1 and not standing.unfit_reason
        assert {each.number: each.status for each in control.lanes("algo")} == {1: "serving", 2: "rolled_back"}
        last = (await control.audit(1, "algo"))[0]
        assert (last.what, last.who) == ("roll_back", "lanes")
        assert "no replica holds the adapters of lane 2 (my-lora) any more" in last.why

    tell(tmp_path, story)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_lost_lane_without_a_previous_lane_is_reported(tmp_path: Path, is_allowed: bool) -> None:
    async def story(house: House) -> None:
        control = house.control
        await control.load_adapter("algo", "my-lora", **SIGNED)
        await control.promote("algo", **SIGNED)
        if is_allowed:
            await control.load_adapter("algo", "other", **SIGNED)
            await control.promote("algo", **SIGNED)
            await control.roll_back("algo", **SIGNED)
        house.toys.disk["my-lora"] = "overwritten"
        for name in ("algo-0", "algo-1"):
            house.toys[name].restart()
        for _ in range(20):
            await house.tick()
            await settled(house)
        standing = house.status("algo")
        assert standing.lane.number == 2 and "algo" in standing.unfit_reason and "any more" in standing.unfit_reason
        assert "no replica holds the adapters" in control.breakers()[0].outlook
        assert (
            "no replica holds the adapters" in next(each for each in control.lanes("algo") if each.number == 2).outlook
        )
        house.toys.disk["my-lora"] = "d1"
        for _ in range(40):
            await house.tick()
            await settled(house)
        assert not house.status("algo").unfit_reason and house.status("algo").lane.number == 2
        assert "no replica" not in control.breakers()[0].outlook
        for name in ("algo-0", "algo-1"):
            house.toys[name].restart()
        control._publish_status()
        assert not house.status("algo").unfit_reason, "it could be loaded last time"
        house.toys.disk["my-lora"] = "overwritten"
        for _ in range(10):
            await house.tick()
            await settled(house)
        assert house.status("algo").unfit_reason
        for name in ("algo-0", "algo-1"):
            house.toys[name].restart("r2")
        control._publish_status()
        standing = house.status("algo")
        assert not standing.unfit_reason and not standing.lane.adapters, "another model is there, and answers"

    tell(tmp_path, story, ensemble=changed(lanes=replace(ENSEMBLE.lanes, roll_back=is_allowed)))


def test_a_lost_lane_waits_for_the_one_before_to_be_there(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.control.load_adapter("stl", "my-lora", **SIGNED)
        await house.control.promote("stl", **SIGNED)
        (load_name,) = house.status("stl").lane.load_names
        house.toys.disk["my-lora"] = "overwritten"
        for name in ("stl-0", "stl-1"):
            house.toys[name].restart()
            house.toys[name].adapters[load_name] = "overwritten"
        house.control._publish_status()
        standing = house.status("stl")
        assert standing.unfit_reason and standing.lane.load_names == (load_name,), "nobody asked for anything else"
        for _ in range(10):
            await house.tick()
            await settled(house)
        assert house.status("stl").lane.number == 2
        house.toys["stl-0"].adapters["std"] = "std-content"
        await house.tick()
        assert house.status("stl").lane.number == 1

    tell(tmp_path, story)


def test_other_content_under_a_configured_name_answers_at_once(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        for name in ("stl-0", "stl-1"):
            house.toys[name].adapters["std"] = "newer"
        await house.tick()
        standing = house.status("stl")
        assert not standing.unfit_reason and standing.lane.load_names == ("std",) and not standing.lane.lane_id
        await house.run(GRACE_SECONDS + 1)
        lane = house.status("stl").lane
        assert (lane.number, bool(lane.lane_id), lane.fresh) == (2, True, True)

    tell(tmp_path, story)


def test_what_a_router_left_behind_goes_after_a_while(tmp_path: Path) -> None:
    """It was killed between a load and its lane. What is configured, or not called like that, is somebody else's."""
    ensemble = configured_anew("std", "mine.1-abcd")
    others = {"std": "d0", "mine.1-abcd": "d0", "by-hand": "d8", "by-hand.3": "d8", "by-hand.3-xyz0": "d8"}

    async def story(house: House) -> None:
        toy = house.toys["stl-0"]
        await house.control.load_adapter("stl", "my-lora", **SIGNED)
        await house.control.promote("stl", **SIGNED)
        (serving,) = house.status("stl").lane.load_names
        toy.adapters.update({**others, "lost.7-00ff": "d9"})
        await house.run(STRAY_SECONDS - 5)
        await settled(house)
        assert "lost.7-00ff" in toy.adapters, "another router may be about to write its lane down"
        await house.run(10)
        await settled(house)
        assert toy.adapters == {**others, serving: "d1"}
        assert [name for what, name in toy.log if what == "unload"] == ["lost.7-00ff"]

    tell(tmp_path, story, replicas=1, ensemble=ensemble)
