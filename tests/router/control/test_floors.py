"""Learned floors of running routers: when they are learned, shared, kept, learned again, and what they do."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.budgets import Counts
from octet.config.ensemble import CorrectnessConfig, SpecialistConfig, TaskConfig
from octet.rpc.refusal import Refusal
from router.control.state import CORRECTNESS, verifier_key
from tests.patience import PATIENCE
from tests.router.control.harness import (
    BREACH,
    ENSEMBLE,
    SIGNED,
    WINDOW,
    ControlHarness,
    FakeWallClock,
    reason_of,
    running_control,
)

AUTO = replace(
    ENSEMBLE,
    specialists=(
        SpecialistConfig("algo", fallback="stl", verify="cpp"),
        SpecialistConfig("stl", floor="none"),
        SpecialistConfig("debug", floor=0.6, verify="cpp"),
    ),
    correctness=CorrectnessConfig(window=WINDOW, breach=BREACH, min_samples=10, learn_samples=40),
)


def judge(harness: ControlHarness, passed: int, failed: int, verifier: str = "cpp", name: str = "algo") -> None:
    lane = harness.status(name).lane.lane_id
    for outcome, number in (("passed", passed), ("failed", failed)):
        for _ in range(number):
            harness.control.record_outcome(lane, outcome, verifier)


def shown_floor(harness: ControlHarness, name: str = "algo") -> tuple[float | None, bool]:
    info = next(each for each in harness.control.breakers() if each.specialist == name)
    return (round(info.floor, 4) if info.HasField("floor") else None), info.floor_learned


async def test_a_floor_is_learned_shown_and_acts(tmp_path: Path) -> None:
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        assert harness.status("algo").is_learning and not harness.status("stl").is_learning
        judge(harness, 12, 27)
        await harness.tick()
        info = harness.control.breakers()[0]
        assert shown_floor(harness) == (None, False) and info.outlook == "learning the floor: 39 of 40 samples"
        judge(harness, 0, 1)
        await harness.tick()
        floor, learned = shown_floor(harness)
        assert learned and floor is not None and 0 < floor < 0.3, "a model that compiles 30 % of its answers"
        assert not harness.status("algo").is_learning
        entry = (await harness.control.audit(1, "algo"))[0]
        assert (entry.who, entry.what, entry.before) == ("breaker", "learn_floor", "no floor")
        assert entry.after == f"cpp {floor:.1%}" and entry.why == "cpp: 12 of 40 passed in lane 1"
        judge(harness, 0, 400)
        await harness.run(BREACH - 2)
        assert harness.shown("algo") == "closed"
        await harness.run(4)
        assert harness.shown("algo") == "shadow_only", "a collapse opens the breaker after the breach"
        assert (await harness.changes_of("algo"))[-1] == "trip"
        assert shown_floor(harness)[0] == floor, "bad answers do not lower the floor"


async def test_only_a_learned_floor_leaves_a_last_resort(tmp_path: Path) -> None:
    """With no traffic but its own, a demoted specialist could never show that it has recovered."""
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        judge(harness, 30, 10)
        await harness.tick()
        for name in ("algo", "debug"):
            judge(harness, 0, 100, name=name)
        assert not harness.status("algo").is_last_resort
        await harness.run(BREACH + 2)
        shown = {name: (harness.shown(name), harness.status(name).is_last_resort) for name in ("algo", "debug")}
        assert shown == {"algo": ("shadow_only", True), "debug": ("shadow_only", False)}
        infos = {each.specialist: each for each in harness.control.breakers()}
        assert infos["algo"].is_last_resort and infos["algo"].outlook.startswith("answers what nothing else can; ")
        await harness.control.relearn_floor("algo", **SIGNED)
        assert harness.status("algo").is_last_resort, "without a floor, only its answers can show a new one"
        await harness.control.hold_breaker("algo", "open", **SIGNED)
        assert not harness.status("algo").is_last_resort


async def test_another_verifier_restores_no_lane(tmp_path: Path) -> None:
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        for verifier in ("cpp", "non_empty"):
            judge(harness, 40, 0, verifier)
        await harness.tick()
        judge(harness, 0, 200)
        await harness.run(BREACH + 2)
        assert harness.shown("algo") == "shadow_only"
        for _ in range(round(3 * WINDOW / 10)):
            judge(harness, 20, 0, "non_empty")
            await harness.run(10)
        assert harness.shown("algo") == "shadow_only", "without answers in C++, nothing shows that they compile again"
        for _ in range(round(2 * WINDOW / 10) + 2):
            judge(harness, 10, 0)
            await harness.run(10)
        assert harness.shown("algo") == "closed"
        assert (await harness.changes_of("algo"))[-3:] == ["trip", "recover", "close"]


async def test_a_drift_of_the_mix_demotes_no_specialist(tmp_path: Path) -> None:
    """The pass rate of all answers together falls far below every floor, but no verifier's does."""
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        judge(harness, 100, 0, "non_empty")
        judge(harness, 20, 40, "cpp")
        await harness.tick()
        for _ in range(round(4 * WINDOW / 10)):
            judge(harness, 3, 6, "cpp")
            await harness.run(10)
        info = harness.control.breakers()[0]
        assert harness.shown("algo") == "closed" and info.pass_rate == pytest.approx(1 / 3)
        assert {each.verifier for each in info.verifiers} == {"cpp", "non_empty"}
        judge(harness, 0, 60, "json")
        await harness.tick()
        assert harness.shown("algo") == "closed", "what always failed by a new verifier is its usual rate"


async def test_all_routers_agree_and_remember(shared_url: str) -> None:
    wall = FakeWallClock()
    async with (
        running_control(shared_url, ensemble=AUTO, wall=wall) as one,
        running_control(shared_url, ensemble=AUTO, wall=wall) as other,
    ):
        random = Random(1)
        for _ in range(60):
            judge(random.choice((one, other)), *random.choice(((1, 0), (1, 0), (0, 1))))
        books = [harness.control._breakers.floors.book for harness in (one, other)]
        async with asyncio.timeout(PATIENCE):
            while not all(book("algo").learned for book in books):
                for harness in (one, other):
                    await harness.control.tick(wall())
                await asyncio.sleep(0.01)
        assert books[0]("algo") == books[1]("algo") and books[0]("algo").learned["cpp"].total >= 40
        learned = shown_floor(one)
        assert (await one.changes_of("algo")).count("learn_floor") == 1
    async with running_control(shared_url, ensemble=AUTO, wall=wall) as later:
        assert shown_floor(later) == learned, "a restart keeps the floor"


async def test_an_operator_has_the_floor_learned_again(tmp_path: Path) -> None:
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        judge(harness, 40, 0)
        await harness.tick()
        high, _ = shown_floor(harness)
        judge(harness, 0, 160)
        await harness.tick()
        info = await harness.control.relearn_floor("algo", **SIGNED)
        assert not info.HasField("floor") and not info.floor_learned
        await harness.run(5)
        assert shown_floor(harness) == (None, False), "earlier answers do not count"
        judge(harness, 20, 20)
        await harness.tick()
        low, learned = shown_floor(harness)
        assert learned and low is not None and high is not None and low < high
        changes = [what for what in await harness.changes_of("algo") if what.endswith("learn_floor")]
        assert changes == ["learn_floor", "relearn_floor", "learn_floor"]
        for name, reason in (("stl", "CONFLICT"), ("nobody", "UNKNOWN_NAME")):
            with pytest.raises(Refusal) as refused:
                await harness.control.relearn_floor(name, **SIGNED)
            assert reason_of(refused.value) == reason


async def test_a_number_pins_and_none_turns_off(tmp_path: Path) -> None:
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        for name in ("stl", "debug"):
            judge(harness, 60, 0, "cpp", name)
            judge(harness, 60, 0, "json", name)
        await harness.tick()
        assert shown_floor(harness, "stl") == (None, False)
        info = next(each for each in harness.control.breakers() if each.specialist == "debug")
        by_verifier = {each.verifier: (round(each.floor, 2), each.floor_learned) for each in info.verifiers}
        assert by_verifier == {"cpp": (0.6, False), "json": (0.86, True)}


async def test_a_demoted_specialist_learns_no_floor(tmp_path: Path) -> None:
    """Otherwise the answers that demoted it would become the measure."""
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        judge(harness, 0, 100, "cpp", "debug")
        await harness.run(BREACH + 3)
        assert harness.shown("debug") == "shadow_only"
        judge(harness, 0, 100, "json", "debug")
        await harness.run(3)
        assert set(harness.control._breakers.floors.book("debug").learned) == set()


async def test_a_fresh_lane_is_held_to_the_floor_and_an_operators_lane_renews_it(tmp_path: Path) -> None:
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        judge(harness, 40, 0)
        await harness.tick()
        high, _ = shown_floor(harness)
        harness.replicas.disk["my-lora"] = "d1"
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.tick()
        await harness.control.promote("algo", **SIGNED)
        await harness.tick()
        assert harness.status("algo").lane.fresh and shown_floor(harness)[0] == high
        judge(harness, 19, 0)
        await harness.tick()
        assert harness.status("algo").lane.fresh and shown_floor(harness)[0] == high
        judge(harness, 21, 2)
        await harness.run(2)
        assert not harness.status("algo").lane.fresh
        assert shown_floor(harness)[0] != high, "the trusted lane of an operator sets its own floor"
        assert (await harness.changes_of("algo"))[-1] == "learn_floor"


async def test_a_long_name_of_a_verifier_loses_no_counts(tmp_path: Path) -> None:
    """A name may have 512 characters, a key in the store only 256 bytes. Another router reads the counts."""
    long, other = f"json:{'schemas/' * 60}a.json", f"json:{'schemas/' * 60}b.json"
    specialists = (replace(AUTO.specialists[0], verify=long), *AUTO.specialists[1:])
    ensemble = replace(AUTO, specialists=specialists, tasks=(*AUTO.tasks, TaskConfig("parse", verify=other)))
    wall = FakeWallClock()
    async with running_control(tmp_path / "db", ensemble=ensemble, wall=wall) as harness:
        judge(harness, 30, 10, long)
        judge(harness, 5, 2, other)
        assert len(await harness.store.buckets(CORRECTNESS, 0)) == 2
    async with running_control(tmp_path / "db", ensemble=ensemble, wall=wall) as harness:
        await harness.tick()
        info, lane = harness.control.breakers()[0], harness.status("algo").lane.lane_id
        assert harness.control._state.tally("algo", lane, wall()).by_verifier == {
            long: Counts(30, 10),
            other: Counts(5, 2),
        }
        assert info.floor_learned and harness.control._breakers.floors.book("algo").learned.keys() == {long}


@given(name=st.text(max_size=600), other=st.text(max_size=600))
def test_the_key_of_a_verifier_fits_and_tells_it_apart(name: str, other: str) -> None:
    assert len(verifier_key(name).encode()) <= 100
    assert verifier_key(name) == name or len(name.encode()) > 100
    assert (verifier_key(name) == verifier_key(other)) == (name == other)


async def test_learning_ends_if_the_verifier_cannot_run_and_says_why(tmp_path: Path) -> None:
    async with running_control(tmp_path / "db", ensemble=AUTO) as harness:
        lane = harness.status("algo").lane.lane_id
        for number in range(1, 41):
            assert harness.status("algo").is_learning
            harness.control.record_outcome(lane, "unavailable")
            await harness.tick()
            missed = "1 answer" if number == 1 else f"{number} answers"
            why = f"learning the floor: 0 of 40 samples; the verifier 'cpp' could not run for the last {missed}"
            assert harness.control.breakers()[0].outlook == why
        assert not harness.status("algo").is_learning, "more samples would not help"
        judge(harness, 1, 0)
        await harness.tick()
        assert harness.status("algo").is_learning, "the verifier can run again"
        assert harness.control.breakers()[0].outlook == "learning the floor: 1 of 40 samples"
