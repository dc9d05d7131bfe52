"""Breakers, knobs and escalation with a real store: which events change them, and what a restart keeps."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from admission.demand import NO_SECOND_CHOICE, DemandClass
from octet.config.ensemble import CorrectnessConfig, IntentConfig, StoreConfig
from octet.rpc.refusal import Refusal
from router.control.demand import DemandOutcome
from router.store.rows import AuditRow
from tests.router.control.harness import (
    BREACH,
    ENSEMBLE,
    SIGNED,
    UNSURE,
    WINDOW,
    ControlHarness,
    FakeWallClock,
    changed,
    make_replicas,
    reason_of,
    running_control,
)
from tests.router.store.stores import eventually


async def tripped(harness: ControlHarness) -> None:
    harness.judge("algo", passed=2, failed=18)
    await harness.run(BREACH + 2)
    assert harness.shown("algo") == "shadow_only"


async def test_a_failing_specialist_is_demoted_and_restored_only_after_sustained_recovery(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        assert harness.shown("algo") == "closed"
        harness.judge("algo", passed=2, failed=18)
        await harness.run(BREACH - 2)
        assert harness.shown("algo") == "closed"
        await harness.run(4)
        assert harness.shown("algo") == "shadow_only" and not harness.status("algo").serves
        assert "2 of 20 passed" in harness.status("algo").reason
        tripped_at = harness.wall()
        while harness.shown("algo") == "shadow_only":
            harness.judge("algo", passed=1, failed=0)
            await harness.tick()
        assert harness.shown("algo") == "recovering" and not harness.status("algo").serves
        recovered_at = harness.wall()
        assert recovered_at - tripped_at >= WINDOW - 5
        while harness.shown("algo") == "recovering":
            harness.judge("algo", passed=1, failed=0)
            await harness.tick()
        assert harness.shown("algo") == "closed" and harness.wall() - recovered_at >= WINDOW - 2
        moves = [what for what in await harness.changes_of("algo") if what in ("trip", "recover", "close", "relapse")]
        assert moves == ["trip", "recover", "close"]


async def test_too_few_samples_never_trip_a_breaker(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        harness.judge("algo", passed=0, failed=9)
        harness.judge("debug", passed=0, failed=50)
        await harness.run(3 * BREACH)
        assert harness.shown("algo") == "closed"
        assert harness.shown("debug") == "closed", "this specialist has no floor"


async def test_a_restart_keeps_the_state(tmp_path: Path) -> None:
    """A restart keeps demotions, holds, knobs, drained replicas, samples, and the time for which a pass rate has been
    below its floor."""
    wall = FakeWallClock()
    async with running_control(tmp_path / "s", wall=wall) as harness:
        await harness.control.hold_breaker("stl", "open", **SIGNED)
        await harness.control.set_knob("review.priority_floor", 5, **SIGNED)
        await harness.control.drain_replica("debug-0", **SIGNED)
        harness.judge("algo", passed=2, failed=18)
        await harness.run(BREACH / 2)
    async with running_control(tmp_path / "s", wall=wall) as harness:
        assert harness.shown("algo") == "closed" and harness.shown("stl") == "held_open"
        assert harness.control.fleet_status.knobs("review", "algo").floor == 5
        assert harness.control.fleet_status.drained == {"debug-0"}
        await harness.run(BREACH / 2)
        assert harness.shown("algo") == "shadow_only"
    async with running_control(tmp_path / "s", wall=wall) as harness:
        assert harness.shown("algo") == "shadow_only"
        counts = harness.control.breakers()[0]
        assert (counts.samples, counts.pass_rate) == (20, 0.1)


async def test_a_rate_around_the_floor_moves_a_breaker_at_most_once_a_window(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        moves: list[float] = []
        before = harness.shown("algo")
        for second in range(500):
            is_good = (second // 23) % 2 == 0
            harness.judge("algo", passed=2 * is_good, failed=2 * (not is_good))
            await harness.tick()
            if harness.shown("algo") != before:
                before = harness.shown("algo")
                moves.append(harness.wall())
        assert all(later - earlier >= WINDOW for earlier, later in pairwise(moves))


async def test_an_operators_hold_overrides_the_breaker(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        await harness.control.hold_breaker("algo", "closed", who="ann", why="we know")
        harness.judge("algo", passed=0, failed=30)
        await harness.run(BREACH + 3)
        assert harness.shown("algo") == "held_closed" and harness.status("algo").serves
        info = await harness.control.release_breaker("algo", **SIGNED)
        assert info.state == "shadow_only" and not harness.status("algo").serves
        info = await harness.control.hold_breaker("algo", "open", who="bob", why="bad refresh")
        assert (info.hold, info.hold_by, info.hold_why) == ("open", "bob", "bad refresh")
        because = harness.status("algo").reason
        assert because == "algo is held open by an operator", "only operators may see names and reasons"


async def test_the_audit_lists_changes_in_order(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        await tripped(harness)
        await harness.control.hold_breaker("algo", "closed", who="ann", why="a false alarm")
        await harness.control.release_breaker("algo", who="ann", why="no, it was right")
        changes = await harness.changes_of("algo")
        assert changes == ["begin_lane", "below_floor", "trip", "hold_breaker", "release_breaker"]
        trip = next(entry for entry in await harness.control.audit(10, "algo") if entry.what == "trip")
        assert (trip.who, trip.before, trip.after) == ("breaker", "closed", "shadow_only")
        assert "2 of 20 passed" in trip.why and "50.0%" in trip.why


async def test_two_routers_on_one_store_agree(shared_url: str) -> None:
    wall, replicas = FakeWallClock(), make_replicas(ENSEMBLE)
    async with (
        running_control(shared_url, wall=wall, replicas=replicas) as one,
        running_control(shared_url, wall=wall, replicas=replicas) as other,
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
        assert (await one.changes_of("algo")).count("trip") == 1
        assert [each for each in await one.changes_of() if each == "begin_lane"] == ["begin_lane"] * 3


async def test_simultaneous_changes_of_a_breaker_at_two_routers_are_all_made(shared_url: str) -> None:
    wall = FakeWallClock()
    async with running_control(shared_url, wall=wall) as one, running_control(shared_url, wall=wall) as other:
        await asyncio.gather(
            *(
                harness.control.hold_breaker("algo", how, **SIGNED)
                for harness in (one, other)
                for how in ("open", "closed")
            )
        )
        entries = [entry for entry in await one.control.audit(100, "algo") if entry.what == "hold_breaker"]
        assert len(entries) == 4
        chain = list(reversed(entries))
        assert [entry.before for entry in chain] == ["not held", *(entry.after for entry in chain[:-1])]
        shown = f"held_{entries[0].after.removeprefix('held ')}"
        await eventually(lambda: one.shown("algo") == other.shown("algo") == shown)


async def test_the_most_specific_knob_applies(tmp_path: Path) -> None:
    """Precedence, highest first: the value for the intent and the specialist, the value for the intent, escalation, the
    configuration."""
    async with running_control(tmp_path / "s") as harness:
        control = harness.control
        assert (
            control.fleet_status.knobs("review", "algo").floor == 2
            and not control.fleet_status.knobs("review", "algo").by
        )
        info = await control.set_knob("review.priority_floor", 5, who="ann", why="busy")
        assert (info.name, info.value, info.configured, info.set_by) == ("review.priority_floor", 5, 2, "ann")
        await control.set_knob("review/algo.priority_floor", 1, who="bob", why="not there")
        assert control.fleet_status.knobs("review", "algo").floor == 1
        assert control.fleet_status.knobs("review", "stl").floor == 5
        assert control.fleet_status.knobs("review", "algo").by == "operator", "only operators may see names"
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


def record(harness: ControlHarness, num: int, outcome: DemandOutcome, intent: str = "codegen") -> None:
    for _ in range(num):
        harness.control.record_demand("algo", intent, UNSURE, outcome)


async def test_escalation_moves_the_intent_that_overloads_and_goes_back_without_load(tmp_path: Path) -> None:
    """The requests of `review` are as many as ever. Those of `codegen` are unsure and have two priorities."""
    async with running_control(tmp_path / "s") as harness:
        control = harness.control

        def usual() -> None:
            record(harness, 4, "accepted", "review")

        def busy() -> None:
            usual()
            knobs = control.fleet_status.knobs("codegen", "algo")
            for priority in (3, 5):
                for number in range(4):
                    is_withheld = priority < knobs.floor or (knobs.is_escalated and number == 0)
                    kind = DemandClass(priority, UNSURE.confidence if number == 0 else NO_SECOND_CHOICE)
                    outcome: DemandOutcome = "accepted" if priority == 5 else "refused"
                    control.record_demand("algo", "codegen", kind, "withheld" if is_withheld else outcome)

        await harness.run(180, usual)
        seen: list[tuple[float, int]] = []
        for _ in range(34):
            busy()
            await harness.tick()
            knobs = control.fleet_status.knobs("codegen", "algo")
            if not seen or seen[-1] != (knobs.threshold, knobs.floor):
                seen.append((knobs.threshold, knobs.floor))
            assert control.fleet_status.knobs("review", "algo").by == "", "a victim does not move"
        assert seen == [(0.3, 0), (0.6, 0), (0.6, 4)], "useless steps are skipped"
        assert control.fleet_status.knobs("codegen", "algo").by == "escalation"
        assert control.fleet_status.knobs("codegen", "algo").is_escalated
        assert control.fleet_status.knobs("codegen", "stl").floor == 0, "other specialists are unchanged"
        assert {place: ladder.level for place, ladder in control.escalation().items()} == {("codegen", "algo"): 5}
        await control.set_knob("codegen/algo.priority_floor", 0, **SIGNED)
        assert control.fleet_status.knobs("codegen", "algo").floor == 0
        await control.release_knob("codegen/algo.priority_floor", **SIGNED)
        await harness.run(2 * ENSEMBLE.escalation.sustain + 3, usual)
        knobs = control.fleet_status.knobs("codegen", "algo")
        assert (knobs.threshold, knobs.floor, knobs.by) == (0.3, 0, "")
        rows = [each for each in await control.audit(100, "algo") if each.who == "escalation"]
        ups = [each for each in rows if each.what == "escalate"]
        assert len(ups) == 2 and {each.what for each in rows[:-2]} == {"relax"} and len(rows) <= 4
        assert all("codegen" in each.before and "codegen" in each.after for each in rows)


async def test_a_ladder_of_an_older_version_is_ignored(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        body = {"level": 4, "since": 1.0, "hot_since": None, "calm_since": None, "fell": False, "regrets": 0}
        row = AuditRow(0, 1, "escalation", "old", "escalate", "algo", "level 3", "level 4")
        for key in ("algo", "gone/algo", "codegen/gone"):
            await harness.store.change("ladder", key, 0, body, row)
        await harness.run(3)
        assert not harness.control.escalation() and not harness.control.fleet_status.knob_overrides


async def test_demand_of_two_routers_is_added(tmp_path: Path) -> None:
    """The requests of two routers together cause an escalation, although neither router alone has enough of them."""
    ensemble = changed(escalation=replace(ENSEMBLE.escalation, min_requests=14))

    async def synced(*routers: ControlHarness) -> None:
        """Wait until the routers know the same counts."""
        now = routers[0].wall()
        demands = [harness.control._state.demand for harness in routers]
        await eventually(lambda: all(each.view("algo", now) == demands[0].view("algo", now) for each in demands))

    wall = FakeWallClock()
    async with (
        running_control(tmp_path / "s", wall=wall, ensemble=ensemble) as one,
        running_control(tmp_path / "s", wall=wall, ensemble=ensemble) as other,
    ):
        for _ in range(20):
            for harness in (one, other, other):
                record(harness, 1, "refused")
            await synced(one, other)
            wall.clock.sleep(1)
            await asyncio.gather(one.control.tick(wall()), other.control.tick(wall()))
            if one.control.fleet_status.knobs("codegen", "algo").by:
                break
        await eventually(lambda: one.control.fleet_status.knobs("codegen", "algo").is_escalated)
        await eventually(lambda: other.control.fleet_status.knobs("codegen", "algo").is_escalated)


async def test_a_reload_changes_settings_and_no_orders(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        control = harness.control
        await control.set_knob("review.priority_floor", 5, **SIGNED)
        harness.judge("algo", passed=6, failed=4)
        await harness.run(2 * BREACH)
        assert harness.shown("algo") == "closed"
        specialists = tuple(replace(each, floor=0.9, fallback="debug") for each in ENSEMBLE.specialists)
        longer = CorrectnessConfig(window=4 * WINDOW, breach=BREACH, min_samples=10)
        intents = (*ENSEMBLE.intents[:1], IntentConfig("review", priority_floor=3, shadow_threshold=0.7))
        control.reload(replace(ENSEMBLE, specialists=specialists, correctness=longer, intents=intents))
        knobs = control.fleet_status.knobs("review", "algo")
        assert (knobs.floor, knobs.threshold) == (5, 0.7)
        await harness.run(BREACH + 3)
        assert harness.shown("algo") == "shadow_only"
        info = control.breakers()[0]
        assert (info.floor, info.fallback, info.window_seconds, info.samples) == (0.9, "debug", 4 * WINDOW, 10)
        await harness.run(WINDOW)
        assert control.breakers()[0].samples == 10, "the longer window still has the samples"


@pytest.mark.parametrize(
    ("call", "arguments", "reason"),
    [
        ("hold_breaker", ("unknown", "open"), "UNKNOWN_NAME"),
        ("hold_breaker", ("algo", "ajar"), "INVALID_FIELD"),
        ("release_breaker", ("algo",), "CONFLICT"),
        ("set_knob", ("review.volume", 1), "INVALID_FIELD"),
        ("set_knob", ("nothing.priority_floor", 1), "UNKNOWN_NAME"),
        ("set_knob", ("review/unknown.priority_floor", 1), "UNKNOWN_NAME"),
        ("set_knob", ("review.priority_floor", 10), "INVALID_FIELD"),
        ("set_knob", ("review.priority_floor", float("nan")), "INVALID_FIELD"),
        ("set_knob", ("review.shadow_threshold", -0.1), "INVALID_FIELD"),
        ("release_knob", ("review.priority_floor",), "CONFLICT"),
        ("load_adapter", ("unknown", "x"), "UNKNOWN_NAME"),
        ("load_adapter", ("algo", ""), "INVALID_FIELD"),
        ("load_adapter", ("algo", "a/b", "no spaces"), "INVALID_FIELD"),
        ("load_adapter", ("algo", "a/b", "Capitals"), "INVALID_FIELD"),
        ("promote", ("algo",), "CONFLICT"),
        ("roll_back", ("algo",), "CONFLICT"),
        ("drain_replica", ("algo-7",), "UNKNOWN_NAME"),
        ("undrain_replica", ("algo-0",), "CONFLICT"),
    ],
)
async def test_invalid_orders_are_refused_without_effect(
    tmp_path: Path, call: str, arguments: tuple[object, ...], reason: str
) -> None:
    async with running_control(tmp_path / "s") as harness:
        before, status = await harness.changes_of(), harness.control.fleet_status
        with pytest.raises(Refusal) as caught:
            await getattr(harness.control, call)(*arguments, **SIGNED)
        assert reason_of(caught.value) == reason, caught.value
        for who, why in (("", "x"), ("x", ""), (" ", "x"), ("x" * 65, "x"), ("x", "x" * 501), ("x", "a\nb")):
            with pytest.raises(Refusal):
                await getattr(harness.control, call)(*arguments, who=who, why=why)
        assert await harness.changes_of() == before and harness.control.fleet_status == status


async def test_a_drained_replica_does_not_answer(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s", replicas=make_replicas(ENSEMBLE, 2)) as harness:
        info = await harness.control.drain_replica("algo-1", **SIGNED)
        assert info.status == "drained_by_operator"
        assert not harness.control.fleet_status.may_answer("algo-1", "r1", "algo")
        assert harness.control.fleet_status.may_answer("algo-0", "r1", "algo")
        del harness.replicas.replicas["algo-1"]
        await harness.control.undrain_replica("algo-1", **SIGNED)
        assert not harness.control.fleet_status.drained
        assert await harness.changes_of("algo-1") == ["drain", "undrain"]


async def test_draining_the_last_replica_is_allowed_and_reported(tmp_path: Path) -> None:
    """The audit log, the breaker's outlook and the reason for refusing requests say that no replica is left."""
    async with running_control(tmp_path / "s", replicas=make_replicas(ENSEMBLE, 2)) as harness:
        control = harness.control
        harness.replicas["algo-1"].linked = False
        await control.drain_replica("algo-0", **SIGNED)
        assert (await control.audit(1))[0].after == "drained; no replica of algo is left to answer"
        assert not harness.status("algo").unfit_reason, "the disconnected replica may come back"
        harness.replicas["algo-1"].linked = True
        await control.undrain_replica("algo-0", **SIGNED)
        await control.drain_replica("algo-0", **SIGNED)
        assert (await control.audit(1))[0].after == "drained" and not harness.status("algo").unfit_reason
        info = await control.drain_replica("algo-1", **SIGNED)
        assert info.status == "drained_by_operator"
        assert (await control.audit(1))[0].after == "drained; no replica of algo is left to answer"
        assert harness.status("algo").unfit_reason == "all replicas of algo are drained by an operator"
        assert "drained by an operator" in control.breakers()[0].outlook
        assert not harness.status("stl").unfit_reason
        await control.undrain_replica("algo-0", **SIGNED)
        assert not harness.status("algo").unfit_reason and "drained" not in control.breakers()[0].outlook


async def test_a_replica_of_another_model_does_not_keep_a_specialist_serving(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s", replicas=make_replicas(ENSEMBLE, 2)) as harness:
        harness.replicas["algo-1"].restart("r2")
        await harness.tick()
        await harness.control.drain_replica("algo-0", **SIGNED)
        assert (await harness.control.audit(1))[0].after.endswith("no replica of algo is left to answer")
        assert harness.status("algo").unfit_reason


@pytest.mark.parametrize("machine", ["breaker", "escalation", "lanes", "configuration", "octet", " Breaker "])
async def test_operators_cannot_use_the_names_of_machine_authors(tmp_path: Path, machine: str) -> None:
    async with running_control(tmp_path / "s") as harness:
        with pytest.raises(Refusal) as caught:
            await harness.control.hold_breaker("algo", "open", who=machine, why="because")
        assert reason_of(caught.value) == "INVALID_FIELD" and caught.value.error.field == "change.who"
        assert machine.strip().lower() in caught.value.error.limit


async def test_a_knob_of_a_removed_intent_is_listed_and_can_be_released(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        control = harness.control
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


async def test_a_threshold_set_by_an_operator_does_not_stop_escalation(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        control = harness.control
        for name in ("codegen.shadow_threshold", "codegen/algo.shadow_threshold"):
            await control.set_knob(name, 0.8, **SIGNED)
            knobs = control.fleet_status.knobs("codegen", "algo")
            assert (knobs.threshold, knobs.by, knobs.is_escalated) == (0.8, "operator", False)
        while not control._escalation.ladder("codegen", "algo").level:
            record(harness, 4, "refused")
            await harness.tick()
        knobs = control.fleet_status.knobs("codegen", "algo")
        assert (knobs.threshold, knobs.is_escalated) == (0.8, True)
        assert not control.fleet_status.knobs("codegen", "stl").is_escalated


async def test_changes_of_one_knob_are_made_in_sequence(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        orders = (harness.control.set_knob("review.priority_floor", number % 10, **SIGNED) for number in range(30))
        await asyncio.gather(*orders)
        entries = [each for each in reversed(await harness.control.audit(100)) if each.what == "set_knob"]
        assert [each.before for each in entries[1:]] == [f"{each.after} by ann" for each in entries[:-1]]
        assert len(entries) == 30


def refused(harness: ControlHarness) -> int:
    demand = harness.control._state.demand.view("algo", harness.wall())
    return sum(each.total.refused for each in demand.values())


async def test_a_reload_reaches_the_store_and_resets_demand(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s") as harness:
        control = harness.control
        configs: list[StoreConfig] = []
        harness.store.reconfigure = configs.append  # type: ignore[method-assign, assignment]
        for _ in range(5):
            record(harness, 1, "refused")
        config = replace(ENSEMBLE.store, receipts=7)
        control.reload(changed(store=config))
        assert configs == [config]
        assert refused(harness) == 5, "a reload of another setting must keep the counts"
        control.reload(changed(escalation=replace(ENSEMBLE.escalation, sustain=50.0)))
        assert refused(harness) == 0, "a reload with another span must drop the counts"
        for _ in range(5):
            record(harness, 1, "refused")
            harness.wall.clock.sleep(8.0)
        assert refused(harness) == 5, "the longer span must count all refusals"


async def test_lanes_are_known_as_soon_as_replicas_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.control.control.TICK_SECONDS", 3600.0)
    async with running_control(tmp_path / "s", with_tasks=True) as harness:
        await eventually(
            lambda: all(harness.control.fleet_status.specialists[name].lane.lane_id for name in ENSEMBLE.names)
        )


async def test_replicas_are_observed_between_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that no longer has the lane's model becomes unfit before the next tick."""
    monkeypatch.setattr("router.control.control.TICK_SECONDS", 3600.0)
    async with running_control(tmp_path / "s", replicas=make_replicas(ENSEMBLE, 2), with_tasks=True) as harness:
        await harness.control.tick(harness.wall())
        for _ in range(3):
            harness.replicas["algo-1"].restart("r2")
            await eventually(lambda: harness.status("algo").lane.unfit == {"algo-1"})
            harness.replicas["algo-1"].restart("r1")
            await eventually(lambda: not harness.status("algo").lane.unfit)


async def test_background_tasks_find_lanes_and_end_on_close(tmp_path: Path) -> None:
    async with running_control(tmp_path / "s", ensemble=changed(), with_tasks=True) as harness:
        await eventually(
            lambda: all(harness.control.fleet_status.specialists[name].lane.lane_id for name in ENSEMBLE.names)
        )
        await harness.control.hold_breaker("algo", "open", **SIGNED)
    assert len(asyncio.all_tasks()) == 1
