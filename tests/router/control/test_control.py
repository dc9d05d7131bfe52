"""Breakers, knobs and ladders over a real store: what moves, what stays, and what survives."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from octet.config.ensemble import CorrectnessConfig, IntentConfig, StoreConfig
from octet.rpc.refusal import Refusal
from tests.router.control.houses import (
    BREACH,
    ENSEMBLE,
    SIGNED,
    WINDOW,
    House,
    Wall,
    changed,
    housed,
    reason_of,
    toys_of,
)
from tests.router.store.stores import eventually


async def tripped(house: House) -> None:
    house.judge("algo", passed=2, failed=18)
    await house.run(BREACH + 2)
    assert house.shown("algo") == "shadow_only"


async def test_a_specialist_that_fails_is_demoted_and_comes_back_after_sustained_recovery_only(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        assert house.shown("algo") == "closed"
        house.judge("algo", passed=2, failed=18)
        await house.run(BREACH - 2)
        assert house.shown("algo") == "closed"
        await house.run(4)
        assert house.shown("algo") == "shadow_only" and not house.status("algo").serves
        assert "2 of 20 passed" in house.status("algo").reason
        tripped_at = house.wall()
        while house.shown("algo") == "shadow_only":
            house.judge("algo", passed=1, failed=0)
            await house.tick()
        assert house.shown("algo") == "recovering" and not house.status("algo").serves
        recovered_at = house.wall()
        assert recovered_at - tripped_at >= WINDOW - 5
        while house.shown("algo") == "recovering":
            house.judge("algo", passed=1, failed=0)
            await house.tick()
        assert house.shown("algo") == "closed" and house.wall() - recovered_at >= WINDOW - 2
        moves = [what for what in await house.story("algo") if what in ("trip", "recover", "close", "relapse")]
        assert moves == ["trip", "recover", "close"]


async def test_too_few_samples_never_trip_it(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        house.judge("algo", passed=0, failed=9)
        house.judge("debug", passed=0, failed=50)
        await house.run(3 * BREACH)
        assert house.shown("algo") == "closed"
        assert house.shown("debug") == "closed", "it has no floor"


async def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    """Neither a demotion, nor how long a rate has been below its floor already, nor a hold, nor a knob."""
    wall = Wall()
    async with housed(tmp_path / "s", wall=wall) as house:
        await house.control.hold_breaker("stl", "open", **SIGNED)
        await house.control.set_knob("review.priority_floor", 5, **SIGNED)
        await house.control.drain_replica("debug-0", **SIGNED)
        house.judge("algo", passed=2, failed=18)
        await house.run(BREACH / 2)
    async with housed(tmp_path / "s", wall=wall) as house:
        assert house.shown("algo") == "closed" and house.shown("stl") == "held_open"
        assert house.control.fleet_status.knobs("review", "algo").floor == 5
        assert house.control.fleet_status.cordoned == {"debug-0"}
        await house.run(BREACH / 2)
        assert house.shown("algo") == "shadow_only"
    async with housed(tmp_path / "s", wall=wall) as house:
        assert house.shown("algo") == "shadow_only"
        counts = house.control.breakers()[0]
        assert (counts.samples, counts.pass_rate) == (20, 0.1)


async def test_a_rate_around_the_floor_moves_it_at_most_once_a_window(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        moves: list[float] = []
        before = house.shown("algo")
        for second in range(500):
            is_good = (second // 23) % 2 == 0
            house.judge("algo", passed=2 * is_good, failed=2 * (not is_good))
            await house.tick()
            if house.shown("algo") != before:
                before = house.shown("algo")
                moves.append(house.wall())
        assert all(later - earlier >= WINDOW for earlier, later in pairwise(moves))


async def test_an_operators_hold_is_stronger_than_the_machine(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        await house.control.hold_breaker("algo", "closed", who="ann", why="we know")
        house.judge("algo", passed=0, failed=30)
        await house.run(BREACH + 3)
        assert house.shown("algo") == "held_closed" and house.status("algo").serves
        info = await house.control.release_breaker("algo", **SIGNED)
        assert info.state == "shadow_only" and not house.status("algo").serves
        info = await house.control.hold_breaker("algo", "open", who="bob", why="bad refresh")
        assert (info.hold, info.hold_by, info.hold_why) == ("open", "bob", "bad refresh")
        because = house.status("algo").reason
        assert because == "algo is held open by an operator", "names and reasons are for operators"


async def test_the_audit_lists_changes_in_order(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        await tripped(house)
        await house.control.hold_breaker("algo", "closed", who="ann", why="a false alarm")
        await house.control.release_breaker("algo", who="ann", why="no, it was right")
        told = await house.story("algo")
        assert told == ["begin_lane", "below_floor", "trip", "hold_breaker", "release_breaker"]
        trip = next(entry for entry in await house.control.audit(10, "algo") if entry.what == "trip")
        assert (trip.who, trip.before, trip.after) == ("breaker", "closed", "shadow_only")
        assert "2 of 20 passed" in trip.why and "50.0%" in trip.why


async def test_two_routers_on_one_store_agree(shared_url: str) -> None:
    wall, toys = Wall(), toys_of(ENSEMBLE)
    async with (
        housed(shared_url, wall=wall, toys=toys) as one,
        housed(shared_url, wall=wall, toys=toys) as other,
    ):
        one.judge("algo", passed=1, failed=9)
        other.judge("algo", passed=1, failed=9)
        await eventually(lambda: one.control.breakers()[0].samples == other.control.breakers()[0].samples == 20)
        for _ in range(round(BREACH) + 2):
            wall.clock.sleep(1)
            await asyncio.gather(one.control.tick(wall()), other.control.tick(wall()))
        await eventually(lambda: one.shown("algo") == other.shown("algo") == "shadow_only")
        await one.control.set_knob("codegen/algo.shadow_threshold", 0.9, **SIGNED)
        await other.control.hold_breaker("stl", "open", **SIGNED)
        await eventually(lambda: one.shown("stl") == "held_open")
        await eventually(lambda: other.control.fleet_status.knobs("codegen", "algo").threshold == 0.9)
        assert (await one.story("algo")).count("trip") == 1
        assert [each for each in await one.story() if each == "begin_lane"] == ["begin_lane"] * 3


async def test_the_same_breaker_changed_at_both_at_once_is_changed_twice(shared_url: str) -> None:
    wall = Wall()
    async with housed(shared_url, wall=wall) as one, housed(shared_url, wall=wall) as other:
        await asyncio.gather(
            *(house.control.hold_breaker("algo", how, **SIGNED) for house in (one, other) for how in ("open", "closed"))
        )
        entries = [entry for entry in await one.control.audit(100, "algo") if entry.what == "hold_breaker"]
        assert len(entries) == 4
        chain = list(reversed(entries))
        assert [entry.before for entry in chain] == ["not held", *(entry.after for entry in chain[:-1])]
        shown = f"held_{entries[0].after.removeprefix('held ')}"
        await eventually(lambda: one.shown("algo") == other.shown("algo") == shown)


async def test_knobs(tmp_path: Path) -> None:
    """An operator's word for intent and specialist, then for the intent, then the rest."""
    async with housed(tmp_path / "s") as house:
        control = house.control
        assert (
            control.fleet_status.knobs("review", "algo").floor == 2
            and not control.fleet_status.knobs("review", "algo").by
        )
        info = await control.set_knob("review.priority_floor", 5, who="ann", why="busy")
        assert (info.name, info.value, info.configured, info.set_by) == ("review.priority_floor", 5, 2, "ann")
        await control.set_knob("review/algo.priority_floor", 1, who="bob", why="not there")
        assert control.fleet_status.knobs("review", "algo").floor == 1
        assert control.fleet_status.knobs("review", "stl").floor == 5
        assert control.fleet_status.knobs("review", "algo").by == "operator", "names are for operators"
        assert control.fleet_status.knobs("review", "algo").floor_by == "operator"
        names = {info.name: info for info in control.knobs()}
        assert names["review/algo.priority_floor"].set_by == "bob" and "review/stl.priority_floor" not in names
        assert names["codegen.shadow_threshold"].set_by == "configuration"
        assert names["unspecified.priority_floor"].value == 0
        info = await control.release_knob("review/algo.priority_floor", **SIGNED)
        assert info.value == 5
        info = await control.release_knob("review.priority_floor", **SIGNED)
        assert info.value == 2 and control.fleet_status.knobs("review", "algo").floor == 2
        assert not control.fleet_status.knob_overrides


async def test_escalation_goes_up_with_refusals_and_back_without(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        control = house.control

        def busy() -> None:
            for _ in range(4):
                control.record_accepted("algo", "codegen")
                control.record_refused("algo", "")

        def calm() -> None:
            for _ in range(4):
                control.record_accepted("algo", "codegen")

        seen: list[tuple[float, int]] = []
        for _ in range(60):
            busy()
            await house.tick()
            knobs = control.fleet_status.knobs("codegen", "algo")
            if not seen or seen[-1] != (knobs.threshold, knobs.floor):
                seen.append((knobs.threshold, knobs.floor))
        assert seen[:4] == [(0.3, 0), (0.6, 0), (0.9, 0), (0.9, 1)]
        assert control.fleet_status.knobs("codegen", "algo").by == "escalation"
        assert control.fleet_status.knobs("codegen", "algo").is_escalated
        assert control.fleet_status.knobs("codegen", "stl").floor == 0, "nobody else's"
        await control.set_knob("codegen/algo.priority_floor", 0, **SIGNED)
        assert control.fleet_status.knobs("codegen", "algo").floor == 0
        await control.release_knob("codegen/algo.priority_floor", **SIGNED)
        back: list[tuple[float, int]] = []
        for _ in range(1000):
            calm()
            await house.tick()
            knobs = control.fleet_status.knobs("codegen", "algo")
            if not back or back[-1] != (knobs.threshold, knobs.floor):
                back.append((knobs.threshold, knobs.floor))
            if back[-1] == (0.3, 0):
                break
        up = seen if seen[-1] == back[0] else [*seen, back[0]]
        assert back == up[::-1]
        told = await house.story("algo")
        assert told.count("escalate") == told.count("relax") == len(up) - 1


async def test_demand_of_two_routers_is_one(tmp_path: Path) -> None:
    """One alone has too few requests to say anything."""
    ensemble = changed(escalation=replace(ENSEMBLE.escalation, min_requests=14))

    async def told(*houses: House) -> None:
        """Each knows what the other counted, which was not the same."""
        now = houses[0].wall()
        await eventually(lambda: len({house.control._state.demand.counts("algo", now) for house in houses}) == 1)

    wall = Wall()
    async with (
        housed(tmp_path / "s", wall=wall, ensemble=ensemble) as one,
        housed(tmp_path / "s", wall=wall, ensemble=ensemble) as other,
    ):
        for _ in range(20):
            for house in (one, other, other):
                house.control.record_refused("algo", "codegen")
            await told(one, other)
            wall.clock.sleep(1)
            await asyncio.gather(one.control.tick(wall()), other.control.tick(wall()))
            if one.control.fleet_status.knobs("codegen", "algo").by:
                break
        await eventually(lambda: one.control.fleet_status.knobs("codegen", "algo").is_escalated)
        await eventually(lambda: other.control.fleet_status.knobs("codegen", "algo").is_escalated)


async def test_a_reload_changes_figures_and_nothing_that_was_ordered(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        control = house.control
        await control.set_knob("review.priority_floor", 5, **SIGNED)
        house.judge("algo", passed=6, failed=4)
        await house.run(2 * BREACH)
        assert house.shown("algo") == "closed"
        specialists = tuple(replace(each, floor=0.9, fallback="debug") for each in ENSEMBLE.specialists)
        longer = CorrectnessConfig(window=4 * WINDOW, breach=BREACH, min_samples=10)
        intents = (*ENSEMBLE.intents[:1], IntentConfig("review", priority_floor=3, shadow_threshold=0.7))
        control.reload(replace(ENSEMBLE, specialists=specialists, correctness=longer, intents=intents))
        knobs = control.fleet_status.knobs("review", "algo")
        assert (knobs.floor, knobs.threshold) == (5, 0.7)
        await house.run(BREACH + 3)
        assert house.shown("algo") == "shadow_only"
        info = control.breakers()[0]
        assert (info.floor, info.fallback, info.window_seconds, info.samples) == (0.9, "debug", 4 * WINDOW, 10)
        await house.run(WINDOW)
        assert control.breakers()[0].samples == 10, "the longer window remembers"


@pytest.mark.parametrize(
    ("call", "arguments", "reason"),
    [
        ("hold_breaker", ("nobody", "open"), "UNKNOWN_NAME"),
        ("hold_breaker", ("algo", "ajar"), "INVALID_FIELD"),
        ("release_breaker", ("algo",), "CONFLICT"),
        ("set_knob", ("review.volume", 1), "INVALID_FIELD"),
        ("set_knob", ("nothing.priority_floor", 1), "UNKNOWN_NAME"),
        ("set_knob", ("review/nobody.priority_floor", 1), "UNKNOWN_NAME"),
        ("set_knob", ("review.priority_floor", 10), "INVALID_FIELD"),
        ("set_knob", ("review.priority_floor", float("nan")), "INVALID_FIELD"),
        ("set_knob", ("review.shadow_threshold", -0.1), "INVALID_FIELD"),
        ("release_knob", ("review.priority_floor",), "CONFLICT"),
        ("load_adapter", ("nobody", "x"), "UNKNOWN_NAME"),
        ("load_adapter", ("algo", ""), "INVALID_FIELD"),
        ("load_adapter", ("algo", "a/b", "no spaces"), "INVALID_FIELD"),
        ("load_adapter", ("algo", "a/b", "Capitals"), "INVALID_FIELD"),
        ("promote", ("algo",), "CONFLICT"),
        ("roll_back", ("algo",), "CONFLICT"),
        ("drain_replica", ("algo-7",), "UNKNOWN_NAME"),
        ("undrain_replica", ("algo-0",), "CONFLICT"),
    ],
)
async def test_bad_orders(tmp_path: Path, call: str, arguments: tuple[object, ...], reason: str) -> None:
    async with housed(tmp_path / "s") as house:
        before, standing = await house.story(), house.control.fleet_status
        with pytest.raises(Refusal) as caught:
            await getattr(house.control, call)(*arguments, **SIGNED)
        assert reason_of(caught.value) == reason, caught.value
        for who, why in (("", "x"), ("x", ""), (" ", "x"), ("x" * 65, "x"), ("x", "x" * 501), ("x", "a\nb")):
            with pytest.raises(Refusal):
                await getattr(house.control, call)(*arguments, who=who, why=why)
        assert await house.story() == before and house.control.fleet_status == standing


async def test_drained_replicas(tmp_path: Path) -> None:
    async with housed(tmp_path / "s", toys=toys_of(ENSEMBLE, 2)) as house:
        info = await house.control.drain_replica("algo-1", **SIGNED)
        assert info.status == "drained_by_operator"
        assert not house.control.fleet_status.may_answer("algo-1", "r1", "algo")
        assert house.control.fleet_status.may_answer("algo-0", "r1", "algo")
        del house.toys.toys["algo-1"]
        await house.control.undrain_replica("algo-1", **SIGNED)
        assert not house.control.fleet_status.cordoned
        assert await house.story("algo-1") == ["drain", "undrain"]


async def test_the_last_replica_drained(tmp_path: Path) -> None:
    """Allowed, and said: in the audit, in the outlook, and to whoever asks for an answer."""
    async with housed(tmp_path / "s", toys=toys_of(ENSEMBLE, 2)) as house:
        control = house.control
        house.toys["algo-1"].linked = False
        await control.drain_replica("algo-0", **SIGNED)
        assert (await control.audit(1))[0].after == "drained; no replica of algo is left to answer"
        assert not house.status("algo").unfit_reason, "one may come back"
        house.toys["algo-1"].linked = True
        await control.undrain_replica("algo-0", **SIGNED)
        await control.drain_replica("algo-0", **SIGNED)
        assert (await control.audit(1))[0].after == "drained" and not house.status("algo").unfit_reason
        info = await control.drain_replica("algo-1", **SIGNED)
        assert info.status == "drained_by_operator"
        assert (await control.audit(1))[0].after == "drained; no replica of algo is left to answer"
        assert house.status("algo").unfit_reason == "all replicas of algo are drained by an operator"
        assert "drained by an operator" in control.breakers()[0].outlook
        assert not house.status("stl").unfit_reason
        await control.undrain_replica("algo-0", **SIGNED)
        assert not house.status("algo").unfit_reason and "drained" not in control.breakers()[0].outlook


async def test_a_replica_of_another_model_does_not_keep_a_specialist_serving(tmp_path: Path) -> None:
    async with housed(tmp_path / "s", toys=toys_of(ENSEMBLE, 2)) as house:
        house.toys["algo-1"].restart("r2")
        await house.tick()
        await house.control.drain_replica("algo-0", **SIGNED)
        assert (await house.control.audit(1))[0].after.endswith("no replica of algo is left to answer")
        assert house.status("algo").unfit_reason


@pytest.mark.parametrize("machine", ["breaker", "escalation", "lanes", "configuration", "octet", " Breaker "])
async def test_operators_cannot_use_the_names_of_machine_authors(tmp_path: Path, machine: str) -> None:
    async with housed(tmp_path / "s") as house:
        with pytest.raises(Refusal) as caught:
            await house.control.hold_breaker("algo", "open", who=machine, why="because")
        assert reason_of(caught.value) == "INVALID_FIELD" and caught.value.error.field == "change.who"
        assert machine.strip().lower() in caught.value.error.limit


async def test_a_knob_of_an_intent_that_is_gone_is_seen_and_can_be_released(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        control = house.control
        await control.set_knob("review.priority_floor", 5, who="ann", why="busy")
        await control.set_knob("review/algo.shadow_threshold", 0.9, who="ann", why="busy")
        control.reload(changed(intents=ENSEMBLE.intents[:1]))
        infos = {info.name: info for info in control.knobs()}
        info = infos["review.priority_floor"]
        assert (info.value, info.configured, info.set_by) == (5, IntentConfig("x").priority_floor, "ann")
        assert info.why == "busy (the intent review is no longer configured: the knob has no effect)"
        assert infos["review/algo.shadow_threshold"].value == 0.9
        with pytest.raises(Refusal) as caught:
            await control.set_knob("review.priority_floor", 6, **SIGNED)
        assert reason_of(caught.value) == "UNKNOWN_NAME"
        info = await control.release_knob("review.priority_floor", **SIGNED)
        assert (info.value, info.set_by) == (IntentConfig("x").priority_floor, "configuration")
        await control.release_knob("review/algo.shadow_threshold", **SIGNED)
        assert {info.name.partition(".")[0] for info in control.knobs()} == {"codegen", "unspecified"}
        with pytest.raises(Refusal) as caught:
            await control.release_knob("review.priority_floor", **SIGNED)
        assert reason_of(caught.value) == "UNKNOWN_NAME"


async def test_a_threshold_set_by_hand_moves_nothing_and_does_not_stop_what_escalation_moves(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        control = house.control
        for name in ("codegen.shadow_threshold", "codegen/algo.shadow_threshold"):
            await control.set_knob(name, 0.8, **SIGNED)
            knobs = control.fleet_status.knobs("codegen", "algo")
            assert (knobs.threshold, knobs.by, knobs.is_escalated) == (0.8, "operator", False)
        while not control._ladders.ladder("algo").level:
            for _ in range(4):
                control.record_refused("algo", "codegen")
            await house.tick()
        knobs = control.fleet_status.knobs("codegen", "algo")
        assert (knobs.threshold, knobs.is_escalated) == (0.8, True)
        assert not control.fleet_status.knobs("codegen", "stl").is_escalated


async def test_changes_of_the_same_thing_at_one_router_wait_for_one_another(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        orders = (house.control.set_knob("review.priority_floor", number % 10, **SIGNED) for number in range(30))
        await asyncio.gather(*orders)
        entries = [each for each in reversed(await house.control.audit(100)) if each.what == "set_knob"]
        assert [each.before for each in entries[1:]] == [f"{each.after} by ann" for each in entries[:-1]]
        assert len(entries) == 30


async def test_a_reload_reaches_the_store_and_begins_to_count_demand_anew(tmp_path: Path) -> None:
    async with housed(tmp_path / "s") as house:
        control = house.control
        told: list[StoreConfig] = []
        house.store.reconfigure = told.append  # type: ignore[method-assign, assignment]
        for _ in range(5):
            control.record_refused("algo", "codegen")
        config = replace(ENSEMBLE.store, receipts=7)
        control.reload(changed(store=config))
        assert told == [config]
        assert control._state.demand.counts("algo", house.wall()).bad == 5, "nothing else was changed"
        control.reload(changed(escalation=replace(ENSEMBLE.escalation, sustain=50.0)))
        assert control._state.demand.counts("algo", house.wall()).total == 0, "counts of another span"
        for _ in range(5):
            control.record_refused("algo", "codegen")
            house.wall.clock.sleep(8.0)
        assert control._state.demand.counts("algo", house.wall()).bad == 5, "all of the longer span"


async def test_lanes_are_known_as_soon_as_replicas_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.control.control.TICK_SECONDS", 3600.0)
    async with housed(tmp_path / "s", by_itself=True) as house:
        await eventually(
            lambda: all(house.control.fleet_status.specialists[name].lane.lane_id for name in ENSEMBLE.names)
        )


async def test_replicas_are_looked_at_between_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is not what its lane is any more is not asked until somebody ticks."""
    monkeypatch.setattr("router.control.control.TICK_SECONDS", 3600.0)
    async with housed(tmp_path / "s", toys=toys_of(ENSEMBLE, 2), by_itself=True) as house:
        await house.control.tick(house.wall())
        for _ in range(3):
            house.toys["algo-1"].restart("r2")
            await eventually(lambda: house.status("algo").lane.unfit == {"algo-1"})
            house.toys["algo-1"].restart("r1")
            await eventually(lambda: not house.status("algo").lane.unfit)


async def test_by_itself(tmp_path: Path) -> None:
    """On its own clock: lanes are found, and it ends when told to."""
    async with housed(tmp_path / "s", ensemble=changed(), by_itself=True) as house:
        await eventually(
            lambda: all(house.control.fleet_status.specialists[name].lane.lane_id for name in ENSEMBLE.names)
        )
        await house.control.hold_breaker("algo", "open", **SIGNED)
    assert len(asyncio.all_tasks()) == 1
