"""A lane that collapses is caught within 20 judged answers: as a candidate, when fresh, when old, and with one replica.
A healthy lane whose answers are long and cut is not."""

import asyncio
import sysconfig
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random

import pytest

from admission.collapse import DEGENERATE, SPAN, cut_signal
from octet.config.ensemble import CorrectnessConfig, LanesConfig, SpecialistConfig
from router.control.collapse import RECENT
from router.verify.degenerate import describe_degeneration
from tests.patience import PATIENCE
from tests.router.control.harness import (
    NOW,
    SIGNED,
    WINDOW,
    ControlHarness,
    FakeWallClock,
    changed,
    make_replicas,
    running_control,
)

ROOT = Path(__file__).parents[3]
CUT, CUT_LONG = cut_signal(256), cut_signal(1024)
QUESTIONS = count()
WHAT = "a unit of 3 characters repeats 160 times"
LASTING = changed(
    correctness=CorrectnessConfig(window=100_000.0),
    specialists=(SpecialistConfig("algo", fallback="stl"), SpecialistConfig("stl"), SpecialistConfig("debug")),
)
"""No specialist has a floor, so only a collapse opens a breaker."""


def run_scenario(
    tmp_path: Path, scenario: Callable[[ControlHarness], Awaitable[None]], num_replicas: int = 1, **changes: object
) -> None:
    async def run() -> None:
        replicas = make_replicas(LASTING, num_replicas)
        ensemble = replace(LASTING, **changes)  # type: ignore[arg-type]
        async with running_control(tmp_path / "s", ensemble=ensemble, replicas=replicas) as harness:
            harness.replicas.disk["my-lora"] = "d1"
            await scenario(harness)

    asyncio.run(run())


def judge(
    harness: ControlHarness,
    signals: Mapping[str, bool],
    *,
    candidate: bool = False,
    tenant: str = "",
    question: str = "",
) -> None:
    """Judge an answer; without a `question`, to one that was not asked before."""
    status = harness.status("algo")
    lane = status.candidate if candidate else status.lane
    assert lane is not None
    what = WHAT if signals.get(DEGENERATE) else ""
    question = question or f"question {next(QUESTIONS)}"
    harness.control.record_signals(lane.lane_id, "algo", tenant, question, signals, what)


async def judge_until(
    harness: ControlHarness, has_acted: Callable[[], bool], signals: Mapping[str, bool], *, candidate: bool = False
) -> int:
    """Judge answers until the control plane acts. Return their number."""
    judged = 0
    while not has_acted():
        judged += 1
        assert judged <= SPAN, "the lane has collapsed unnoticed"
        judge(harness, signals, candidate=candidate)
        await harness.tick()
    return judged


async def serve_healthy(harness: ControlHarness, answers: int, seed: int = 1) -> None:
    random = Random(seed)
    for number in range(answers):
        judge(harness, {DEGENERATE: random.random() < 0.01, CUT: random.random() < 0.05})
        if number % 20 == 0:
            await harness.tick()
    assert harness.shown("algo") == "closed"


async def last_reason(harness: ControlHarness) -> tuple[str, str]:
    (entry,) = await harness.control.audit(1, "algo")
    return entry.what, entry.why


def test_a_collapsed_candidate_is_dropped(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await serve_healthy(harness, 100)
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await judge_until(
            harness, lambda: harness.status("algo").candidate is None, {DEGENERATE: True, CUT: True}, candidate=True
        )
        what, why = await last_reason(harness)
        assert what == "roll_back" and "judged answers are degenerate" in why and WHAT in why
        assert harness.shown("algo") == "closed" and harness.status("algo").lane.number == 1

    run_scenario(tmp_path, scenario)


def test_a_collapsed_fresh_lane_is_rolled_back(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await serve_healthy(harness, 100)
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        await judge_until(harness, lambda: harness.status("algo").lane.number == 1, {DEGENERATE: True})
        assert (await last_reason(harness))[0] == "roll_back"
        assert harness.shown("algo") == "closed", "the breaker of the previous lane must not open"

    run_scenario(tmp_path, scenario)


def test_a_fresh_lane_without_a_way_back_opens_its_breaker(tmp_path: Path) -> None:
    """Rollback is turned off, or the only replica already runs other weights."""

    async def not_allowed(harness: ControlHarness) -> None:
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True})
        assert (await last_reason(harness))[0] == "collapse" and harness.status("algo").lane.number == 2

    async def refreshed(harness: ControlHarness) -> None:
        await serve_healthy(harness, 100)
        harness.replicas["algo-0"].restart("r2")
        await harness.run(8)
        assert harness.status("algo").lane.revision == "r2" and harness.status("algo").lane.fresh
        await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True})

    run_scenario(tmp_path / "a", not_allowed, lanes=LanesConfig(roll_back=False))
    run_scenario(tmp_path / "b", refreshed)


def test_an_old_lane_opens_its_breaker_at_once_and_says_why(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await serve_healthy(harness, 500)
        assert await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True}) <= 12
        what, why = await last_reason(harness)
        assert what == "collapse" and "8 of the last 8 judged answers are degenerate" in why
        info = harness.control.breakers()[0]
        assert info.collapse == why and info.outlook.startswith(f"collapsed: {why}")
        assert why in harness.status("algo").reason and not harness.status("algo").serves
        assert harness.status("algo").is_suspect and not harness.status("stl").is_suspect

    run_scenario(tmp_path, scenario)


def test_a_collapsed_lane_serves_again_only_after_a_sustained_recovery(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True})
        await harness.run(2 * WINDOW)
        assert harness.shown("algo") == "shadow_only", "no answer has shown that the lane is as usual"
        for _ in range(SPAN):
            judge(harness, {DEGENERATE: False})
        await harness.tick()
        assert harness.shown("algo") == "recovering"
        await harness.run(WINDOW - 2)
        assert harness.shown("algo") == "recovering"
        await harness.run(4)
        assert harness.shown("algo") == "closed" and not harness.control.breakers()[0].collapse
        whats = [each for each in await harness.changes_of("algo") if each in ("collapse", "recover", "close")]
        assert whats == ["collapse", "recover", "close"]

    run_scenario(tmp_path, scenario, correctness=CorrectnessConfig(window=WINDOW))


def test_a_recovering_lane_that_collapses_again_is_demoted_at_once(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True})
        await harness.run(WINDOW + 1)
        for _ in range(SPAN):
            judge(harness, {DEGENERATE: False})
        await harness.tick()
        assert harness.shown("algo") == "recovering"
        await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True})

    run_scenario(tmp_path, scenario, correctness=CorrectnessConfig(window=WINDOW))


def real_texts(random: Random, most: int) -> Iterator[str]:
    """Yield parts of Python's standard library and of the documentation, as long as answers are."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [*random.sample(sorted(library.glob("*.py")), 60), *sorted((ROOT / "docs").glob("*.md"))]
    texts = [text for each in files if len(text := each.read_text(errors="replace")) > 3000]
    for _ in range(most):
        text, size = random.choice(texts), random.randint(200, 1500)
        start = random.randrange(len(text) - size)
        yield text[start : start + size]


@pytest.mark.parametrize(
    ("num_answers", "distinct"), [(5000, 1000), pytest.param(10_000, 10_000, marks=pytest.mark.slow)]
)
def test_thousands_of_long_answers_of_a_healthy_lane_do_not_trip(
    tmp_path: Path, num_answers: int, distinct: int
) -> None:
    """Half of them are cut. A seventh of the prompts always loop, and each prompt is asked a dozen times in a row."""

    @cache
    def is_degenerate(answer: str, is_cut: bool) -> bool:
        usual = frozenset({"Latin"})
        return bool(describe_degeneration("How?", answer, is_cut=is_cut, num_tokens=len(answer) // 4, usual=usual))

    async def scenario(harness: ControlHarness) -> None:
        random = Random(5)
        texts, flagged = list(real_texts(random, distinct)), set[str]()
        for number in range(num_answers):
            prompt, text = number // 12 * 7919 % 400, texts[number % distinct]
            is_cut = prompt % 7 == 0 or random.random() < 0.5
            answer = texts[prompt] + " and so on" * 300 if prompt % 7 == 0 else text
            is_bad = is_degenerate(answer, is_cut)
            flagged.update({text} if is_bad and answer is text else ())
            tenant = f"tenant {number % 3}"
            judge(harness, {DEGENERATE: is_bad, CUT: is_cut}, question=f"prompt {prompt}", tenant=tenant)
            if number % 25 == 0:
                await harness.tick()
                assert harness.shown("algo") == "closed"
        assert "collapse" not in await harness.changes_of("algo")
        assert len(flagged) <= distinct / 1000, "real text is degenerate only by mistake"

    run_scenario(tmp_path, scenario)


def test_sudden_cuts_roll_back_a_fresh_lane_but_only_mark_an_old_one(tmp_path: Path) -> None:
    """The weights of an old lane have not changed, so its callers want longer answers."""

    async def scenario(harness: ControlHarness) -> None:
        await serve_healthy(harness, 200)
        for _ in range(SPAN):
            judge(harness, {DEGENERATE: False, CUT: True})
        await harness.tick()
        assert harness.shown("algo") == "closed"
        assert "cut at their length" in harness.control.breakers()[0].suspicion
        await serve_healthy(harness, 100, seed=2)
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        await judge_until(harness, lambda: harness.status("algo").lane.number == 1, {DEGENERATE: False, CUT: True})

    run_scenario(tmp_path, scenario)


def test_one_tenant_cannot_trip_the_breaker_of_others(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for number in range(200):
            judge(harness, {DEGENERATE: False}, tenant=f"tenant {number % 50}")
        for _ in range(60):
            judge(harness, {DEGENERATE: True}, tenant="hostile")
            await harness.tick()
        assert harness.shown("algo") == "closed", "a burst"
        for number in range(200):
            judge(harness, {DEGENERATE: bool(number % 4)}, tenant="hostile" if number % 4 else "other")
            await harness.tick()
        assert harness.shown("algo") == "closed", "between the others' answers"
        for number in range(SPAN):
            judge(harness, {DEGENERATE: True}, tenant=f"tenant {number % 2}")
            await harness.tick()
        assert harness.shown("algo") == "shadow_only", "the others get degenerate answers, too"

    run_scenario(tmp_path, scenario)


def test_one_tenant_cannot_roll_back_a_refresh_with_longer_answers(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for number in range(60):
            judge(harness, {DEGENERATE: False, CUT: False}, tenant="hostile")
            judge(harness, {DEGENERATE: False, CUT_LONG: False}, tenant=f"tenant {number % 9}")
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        await harness.control.promote("algo", **SIGNED)
        for _ in range(2 * SPAN):
            judge(harness, {DEGENERATE: False, CUT: True}, tenant="hostile")
            await harness.tick()
        for number in range(SPAN):
            judge(harness, {DEGENERATE: False, CUT_LONG: False}, tenant=f"tenant {number % 9}")
            await harness.tick()
        assert harness.status("algo").lane.number == 2
        for number in range(SPAN):
            judge(harness, {DEGENERATE: False, CUT_LONG: True}, tenant=f"tenant {number % 9}")
            await harness.tick()
        assert harness.status("algo").lane.number == 1, "the answers to all tenants are cut"

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_successor_of_a_collapsed_lane_that_is_no_better_is_found(tmp_path: Path, is_fresh: bool) -> None:
    async def scenario(harness: ControlHarness) -> None:
        await serve_healthy(harness, 100)
        await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True})
        for _ in range(3000):
            judge(harness, {DEGENERATE: True})
        await harness.tick()
        await harness.control.load_adapter("algo", "my-lora", **SIGNED)
        if is_fresh:
            await harness.control.promote("algo", **SIGNED)
        number = harness.status("algo").lane.number
        await judge_until(
            harness,
            lambda: harness.status("algo").candidate is None and harness.status("algo").lane.number == 1,
            {DEGENERATE: True},
            candidate=not is_fresh,
        )
        assert number == 1 + is_fresh and (await last_reason(harness))[0] == "roll_back"

    run_scenario(tmp_path, scenario)


def test_a_lane_with_a_single_prompt_is_caught(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for _ in range(12):
            judge(harness, {DEGENERATE: True}, question="the only one")
            await harness.tick()
        assert harness.shown("algo") == "shadow_only"

    run_scenario(tmp_path, scenario)


def test_few_rows_are_shared_and_none_for_the_cuts_of_a_trusted_lane(tmp_path: Path) -> None:
    async def scenario(harness: ControlHarness) -> None:
        for _ in range(600):
            judge(harness, {DEGENERATE: False, CUT: True})
            await harness.tick()
        assert not await harness.store.buckets(RECENT, 0)
        for number in range(600):
            judge(harness, {DEGENERATE: number % 3 == 0, CUT: True})
            await harness.tick()
        assert 0 < len(await harness.store.buckets(RECENT, 0)) <= SPAN * 11

    run_scenario(tmp_path, scenario)


def test_routers_that_share_a_store_find_a_collapse_together(tmp_path: Path) -> None:
    async def run() -> None:
        replicas, wall = make_replicas(LASTING, 1), FakeWallClock()
        async with (
            running_control(tmp_path / "s", ensemble=LASTING, replicas=replicas, wall=wall) as one,
            running_control(tmp_path / "s", ensemble=LASTING, replicas=replicas, wall=wall) as other,
        ):
            for _ in range(8):
                for each in (one, other):
                    judge(each, {DEGENERATE: True})
                    await each.tick()
            async with asyncio.timeout(PATIENCE):
                while {one.shown("algo"), other.shown("algo")} != {"shadow_only"}:
                    await asyncio.sleep(0.02)
                    await one.tick(0)
                    await other.tick(0)
            assert (await one.changes_of("algo")).count("collapse") == 1

    asyncio.run(run())


def test_a_restarted_router_still_knows_the_newest_answers(tmp_path: Path) -> None:
    async def run() -> None:
        replicas, wall = make_replicas(LASTING, 1), FakeWallClock()
        async with running_control(tmp_path / "s", ensemble=LASTING, replicas=replicas, wall=wall) as harness:
            for _ in range(8):
                judge(harness, {DEGENERATE: True})
                await harness.tick()
        async with running_control(tmp_path / "s", ensemble=LASTING, replicas=replicas, wall=wall) as harness:
            assert harness.status("algo").is_suspect
            assert await judge_until(harness, lambda: harness.shown("algo") == "shadow_only", {DEGENERATE: True}) <= 10
        assert wall() > NOW

    asyncio.run(run())
