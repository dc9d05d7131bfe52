"""Answers are judged after the caller has them: by whose verifier, for whose lane, and which are left out."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.config.ensemble import CorrectnessConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from router.quality.answers import FinishedAnswer, ShadowAnswer, ShadowHandle
from router.quality.evaluation import EvaluationRules
from router.quality.evaluation_queue import EvaluationQueue
from router.routing.dispatch_plan import Candidate
from router.verify.verdict import Outcome
from router.verify.verifiers import open_verifiers
from tests.router.shadow.world import (
    LANES,
    PRIMARY,
    SHADOW,
    Grader,
    Told,
    chunk,
    ensemble_of,
    order,
    saying,
    way,
    world,
)
from tests.specialist.server.harness import run

STOP, LENGTH = specialist_pb2.FINISH_REASON_STOP, specialist_pb2.FINISH_REASON_LENGTH


class Later(ShadowHandle):
    """A shadow that ends when the test says so."""

    def __init__(self, why: Any = "fresh_lane", specialist: str = SHADOW) -> None:
        super().__init__(order(specialist, why), lambda: None)
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Hall:
    """An aftermath with its verifiers, and nobody before it."""

    def __init__(self, queue: int = 256, answer_bytes: int = 10_000, most_bytes: int = 1 << 20) -> None:
        self.told = Told()
        self.graders = {PRIMARY: Grader("good", "good"), SHADOW: Grader("fine", "fine")}
        self.rules = EvaluationRules(dict(self.graders), answer_bytes, queue, 0.6)
        self.after = EvaluationQueue(self.told, lambda: 1, self.rules, most_bytes)
        self.after.start()
        self.num_finished = 0

    def finished(
        self, *texts: str, finish: Any = STOP, sample: bool = True, question: str = "q", **fields: Any
    ) -> FinishedAnswer:
        kept = self.after.capture()
        for text in texts:
            kept.add(chunk(text).SerializeToString())
        self.num_finished += 1
        receipt = wire.Receipt(
            request_id=f"r-{self.num_finished}",
            specialist=PRIMARY,
            lane=wire.Lane(specialist=PRIMARY, revision="r1"),
            decision=wire.Decision(primary=fields.pop("decided", PRIMARY)),
            usage=wire.Usage(finish_reason=finish),
        )
        return FinishedAnswer(receipt, question, kept, fields.pop("way", way()), sample)

    def answer(self, *texts: str, finish: Any = STOP, lane: str = SHADOW, num_tokens: int = 0) -> ShadowAnswer:
        kept = self.after.capture()
        for text in texts:
            kept.add(chunk(text).SerializeToString())
        usage = wire.Usage(finish_reason=finish, completion_tokens=num_tokens)
        return ShadowAnswer(wire.Lane(specialist=lane, revision="r1"), usage, kept)

    async def settled(self) -> None:
        async with asyncio.timeout(60):
            while self.after.num_waiting or self.after.budget.taken:
                await asyncio.sleep(0.001)


def judging(story: Callable[[Hall], Any], **bounds: int) -> None:
    async def bounded() -> None:
        hall = Hall(**bounds)
        try:
            await story(hall)
        finally:
            await hall.after.close()
            assert not hall.after.budget.taken

    run(bounded())


@pytest.mark.parametrize(
    ("text", "finish", "lane", "told"),
    [
        ("good", STOP, way(), ["passed"]),
        ("bad", STOP, way(), ["failed"]),
        ("good", LENGTH, way(), []),
        ("good", specialist_pb2.FINISH_REASON_CANCELLED, way(), []),
        ("good", specialist_pb2.FINISH_REASON_ERROR, way(), []),
        ("good", STOP, way(lane_id=""), []),
        ("good", STOP, way(revision="r1"), ["passed"]),
        ("good", STOP, way(revision="r0"), []),
        ("good" * 3000, STOP, way(), []),
    ],
)
def test_a_sample_counts_for_its_lane_where_it_ended_by_itself(
    text: str, finish: Any, lane: Candidate, told: list[Outcome]
) -> None:
    async def story(hall: Hall) -> None:
        hall.after.submit(hall.finished(text, finish=finish, way=lane))
        await hall.settled()
        assert hall.told.judgements == [(LANES[PRIMARY], PRIMARY, outcome) for outcome in told]
        assert hall.told.looks == [("r-1", outcome) for outcome in told]
        assert len(hall.graders[PRIMARY].asked) == len(told)

    judging(story)


@pytest.mark.parametrize("says", ["skipped", "unavailable"])
def test_inconclusive_verdicts_count_for_nothing(says: Outcome) -> None:
    async def story(hall: Hall) -> None:
        hall.graders[PRIMARY].says = says
        hall.after.submit(hall.finished("good"))
        await hall.settled()
        assert not hall.told.judgements and hall.after.counters.undecided == 1

    judging(story)


@pytest.mark.parametrize(
    ("specialist", "why", "decided", "counted"),
    [
        (SHADOW, "low_confidence", PRIMARY, []),
        (SHADOW, "demoted", SHADOW, [(LANES[SHADOW], SHADOW, "passed")]),
        (PRIMARY, "fresh_lane", PRIMARY, [(LANES[PRIMARY], PRIMARY, "failed")]),
        (PRIMARY, "fresh_lane", SHADOW, [(LANES[PRIMARY], PRIMARY, "failed")]),
    ],
)
def test_a_shadow_counts_for_its_lane_by_its_own_verifier_where_the_question_was_its_own(
    specialist: str, why: Any, decided: str, counted: list[tuple[str, str, Outcome]]
) -> None:
    """And is compared by the primary's."""

    async def story(hall: Hall) -> None:
        shadow = Later(why, specialist)
        hall.after.submit(hall.finished("good", sample=False, decided=decided), shadow)
        shadow.finish(hall.answer("fine"))
        await hall.settled()
        assert hall.told.judgements == counted
        (comparison,) = hall.told.comparisons
        assert (comparison.primary_outcome, comparison.shadow_outcome) == ("passed", "failed")
        assert len(hall.graders[PRIMARY].asked) == 2, "nothing is judged twice"

    judging(story)


@pytest.mark.parametrize(
    ("text", "finish", "num_tokens", "held_against"),
    [("good", STOP, 20, True), ("good", STOP, 19, False), ("poor", STOP, 20, False), ("good", LENGTH, 20, False)],
)
def test_a_lane_that_does_not_come_to_an_end_where_the_other_did_has_failed(
    text: str, finish: Any, num_tokens: int, held_against: bool
) -> None:
    async def story(hall: Hall) -> None:
        shadow = Later("fresh_lane", PRIMARY)
        finished = hall.finished(text, sample=False, finish=finish)
        finished.receipt.usage.completion_tokens = 10
        hall.after.submit(finished, shadow)
        shadow.finish(hall.answer("good and good and good", finish=LENGTH, num_tokens=num_tokens))
        await hall.settled()
        assert [judgement[-1] for judgement in hall.told.judgements] == (["failed"] if held_against else [])

    judging(story)


@pytest.mark.parametrize(("one", "other"), [(STOP, LENGTH), (LENGTH, STOP), (LENGTH, LENGTH)])
def test_a_truncated_answer_leaves_the_comparison_unverified(one: Any, other: Any) -> None:
    async def story(hall: Hall) -> None:
        shadow = Later()
        hall.after.submit(hall.finished("good words", sample=False, finish=one), shadow)
        shadow.finish(hall.answer("good words", finish=other))
        await hall.settled()
        (comparison,) = hall.told.comparisons
        assert (comparison.primary_outcome, comparison.shadow_outcome) == ("skipped", "skipped")
        assert comparison.agreed

    judging(story)


def test_a_lane_is_not_compared_with_itself() -> None:
    async def story(hall: Hall) -> None:
        shadow = Later()
        hall.after.submit(hall.finished("good"), shadow)
        shadow.finish(hall.answer("good", lane=PRIMARY))
        await hall.settled()
        assert not hall.told.comparisons and len(hall.told.judgements) == 1

    judging(story)


def test_without_a_shadows_answer_the_sample_is_judged_all_the_same() -> None:
    async def story(hall: Hall) -> None:
        for sample in (True, False):
            shadow = Later()
            hall.after.submit(hall.finished("good", sample=sample), shadow)
            assert hall.after.num_waiting == 1
            shadow.finish(None)
            assert hall.after.num_waiting == sample, "what nobody learns from takes nobody's place"
            await hall.settled()
        assert len(hall.told.judgements) == 1 and not hall.told.comparisons

    judging(story)


def test_when_too_many_wait_the_oldest_go() -> None:
    async def story(hall: Hall) -> None:
        grader = hall.graders[PRIMARY]
        grader.go_on.clear()
        hall.after.submit(hall.finished("good 0"))
        async with asyncio.timeout(60):
            while not grader.asked:
                await asyncio.sleep(0)
        for number in range(1, 8):
            hall.after.submit(hall.finished(f"good {number}"))
            assert hall.after.num_waiting <= 3
        grader.go_on.set()
        await hall.settled()
        assert [answer for _, answer in grader.asked] == ["good 0", "good 5", "good 6", "good 7"]
        assert hall.after.counters.shed == 4

    judging(story, queue=3)


def test_a_long_question_makes_room_by_the_oldest_or_goes_itself() -> None:
    async def story(hall: Hall) -> None:
        grader = hall.graders[PRIMARY]
        grader.go_on.clear()
        for number in range(10):
            hall.after.submit(hall.finished(f"good {number}", question="x" * 20_000))
            assert hall.after.budget.taken <= 100_000
            await asyncio.sleep(0)
        hall.after.submit(hall.finished("good", question="x" * 200_000))
        assert hall.after.counters.unread == 1
        grader.go_on.set()
        await hall.settled()
        assert hall.after.counters.shed + hall.after.counters.judged == 10
        assert hall.after.counters.judged >= 1

    judging(story, most_bytes=100_000)


def test_a_verifier_or_hearer_that_breaks_its_word_ends_nothing() -> None:
    async def story(hall: Hall) -> None:
        async def broken(question: str, answer: str) -> Any:
            raise RuntimeError("a mistake")

        hall.graders[PRIMARY].verify = broken  # type: ignore[method-assign]
        hall.after.submit(hall.finished("good"))
        await hall.settled()
        hall.after.apply(replace(hall.rules, verifiers={PRIMARY: Grader("g", "good")}))
        hall.after.submit(hall.finished("good"))
        await hall.settled()
        assert (hall.after.counters.failed, hall.after.counters.judged) == (1, 1)

    judging(story)


def test_what_was_handed_over_is_judged_as_it_was_then() -> None:
    async def story(hall: Hall) -> None:
        shadow = Later()
        hall.after.submit(hall.finished("good words here", sample=False), shadow)
        hall.after.apply(replace(hall.rules, similar=0.0, verifiers={PRIMARY: Grader("never", "\0")}))
        shadow.finish(hall.answer("good other stuff"))
        await hall.settled()
        (comparison,) = hall.told.comparisons
        assert (comparison.primary_outcome, comparison.agreed) == ("passed", False)

    judging(story)


def test_a_large_answer_is_read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(hall: Hall) -> None:
        threads: list[Any] = []

        async def to_thread(work: Any, *given: Any) -> Any:
            threads.append(work)
            return work(*given)

        monkeypatch.setattr(asyncio, "to_thread", to_thread)
        hall.after.submit(hall.finished("good"))
        await hall.settled()
        assert not threads
        hall.after.submit(hall.finished(*["good "] * 5000))
        await hall.settled()
        assert len(threads) == 1 and len(hall.told.judgements) == 2

    judging(story, answer_bytes=100_000)


def test_the_loop_turns_while_a_long_queue_is_judged() -> None:
    async def story(hall: Hall) -> None:
        for _ in range(200):
            hall.after.submit(hall.finished("good"))
        turns = 0
        while hall.after.num_waiting:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100

    judging(story)


def test_a_closed_aftermath_takes_nothing_and_lets_shadows_go() -> None:
    async def story(hall: Hall) -> None:
        waiting, late = Later(), Later()
        hall.graders[PRIMARY].go_on.clear()
        hall.after.submit(hall.finished("good"))
        hall.after.submit(hall.finished("good"), waiting)
        await asyncio.sleep(0.01)
        await hall.after.close()
        hall.after.submit(hall.finished("good"), late)
        waiting.finish(hall.answer("good"))
        assert (waiting.cancelled, late.cancelled) == (1, 1)
        assert not hall.after.num_waiting and not hall.told.judgements
        assert [grader.closed for grader in hall.graders.values()] == [1, 1]

    judging(story)


def test_a_slow_verifier_delays_no_other_verifier() -> None:
    async def story(hall: Hall) -> None:
        hall.graders[PRIMARY].go_on.clear()
        for number in range(3):
            hall.after.submit(hall.finished(f"good {number}"))
        for number in range(3):
            hall.after.submit(hall.finished(f"fine {number}", way=way(SHADOW)))
        async with asyncio.timeout(60):
            while len(hall.told.judgements) < 3:
                await asyncio.sleep(0)
        assert hall.told.judgements == [(LANES[SHADOW], SHADOW, "passed")] * 3
        assert [answer for _, answer in hall.graders[PRIMARY].asked] == ["good 0"], "one at a time, for each"
        hall.graders[PRIMARY].go_on.set()
        await hall.settled()
        assert [answer for _, answer in hall.graders[PRIMARY].asked] == ["good 0", "good 1", "good 2"]

    judging(story)


def test_a_shadow_that_is_judged_slowly_delays_nothing_of_its_primarys() -> None:
    """As where a stand-in answers for a specialist whose answers take a compiler all its time."""

    async def story(hall: Hall) -> None:
        hall.graders[SHADOW].go_on.clear()
        for number in range(3):
            shadow = Later("demoted", SHADOW)
            hall.after.submit(hall.finished(f"good {number}", decided=SHADOW), shadow)
            shadow.finish(hall.answer("fine"))
        async with asyncio.timeout(60):
            while len(hall.told.judgements) < 3 or len(hall.told.comparisons) < 3:
                await asyncio.sleep(0.001)
        assert {judgement[1] for judgement in hall.told.judgements} == {PRIMARY}
        hall.graders[SHADOW].go_on.set()
        await hall.settled()
        assert hall.told.judgements[3:] == [(LANES[SHADOW], SHADOW, "passed")] * 3
        tally = hall.after.counters
        assert (tally.judged, tally.compared, tally.shed, tally.failed) == (6, 3, 0, 0)

    judging(story)


def test_specialists_that_share_a_verifier_take_turns() -> None:
    """Who takes long waits long."""

    async def story(hall: Hall) -> None:
        clock, grader = [0.0], hall.graders[PRIMARY]
        costs = {"bomb": 10.0, "good": 1.0}
        rules = replace(hall.rules, verifiers={PRIMARY: grader, SHADOW: grader})
        after = EvaluationQueue(hall.told, lambda: 1, rules, clock=lambda: clock[0])
        hall.after = after

        async def verify(question: str, answer: str) -> Any:
            clock[0] += costs[answer]
            return await Grader.verify(grader, question, answer)

        grader.verify = verify  # type: ignore[method-assign]
        for _ in range(4):
            after.submit(hall.finished("bomb", way=way(SHADOW)))
        for _ in range(12):
            after.submit(hall.finished("good"))
        after.start()
        await hall.settled()
        order = [answer for _, answer in grader.asked]
        assert order == ["bomb", *["good"] * 10, "bomb", *["good"] * 2, *["bomb"] * 2]

    judging(story)


def test_of_a_shadow_that_waits_for_its_turn_too_long_the_comparison_is_left() -> None:
    async def story(hall: Hall) -> None:
        hall.graders[SHADOW].go_on.clear()
        for _ in range(4):
            shadow = Later("demoted", SHADOW)
            hall.after.submit(hall.finished("good", decided=SHADOW), shadow)
            shadow.finish(hall.answer("fine"))
            async with asyncio.timeout(60):
                while hall.after.counters.compared < hall.num_finished:
                    await asyncio.sleep(0.001)
            assert hall.after.num_waiting <= 2
        await asyncio.sleep(0)
        tally = hall.after.counters
        assert (tally.compared, tally.shed, tally.shed_shadows) == (4, 1, 0)
        hall.graders[SHADOW].go_on.set()
        await hall.settled()

    judging(story, queue=2)


@pytest.mark.parametrize("num_turns", range(6))
def test_whenever_it_is_closed_nothing_is_left(num_turns: int) -> None:
    async def story(hall: Hall) -> None:
        hall.graders[SHADOW].go_on.clear()
        shadow = Later("demoted", SHADOW)
        hall.after.submit(hall.finished("good", decided=SHADOW), shadow)
        shadow.finish(hall.answer("fine"))
        hall.after.submit(hall.finished("fine", way=way(SHADOW)))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await hall.after.close()
        assert not hall.after.budget.taken and not hall.after.num_waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [grader.closed for grader in hall.graders.values()] == [1, 1]

    judging(story)


moves = st.lists(
    st.tuples(st.sampled_from(["hand", "shadowed", "done", "fail", "turn", "apply"]), st.integers(0, 5000)), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(moves=moves, queue=st.integers(1, 4))
def test_whatever_comes_every_byte_is_given_back(moves: list[tuple[str, int]], queue: int) -> None:
    async def story(hall: Hall) -> None:
        under_way: list[Later] = []
        for move, size in moves:
            if move == "hand":
                hall.after.submit(hall.finished("x" * size, question="q" * size))
            elif move == "shadowed":
                under_way.append(Later())
                hall.after.submit(hall.finished("x" * size, sample=bool(size % 2)), under_way[-1])
                if under_way[-1].cancelled:
                    under_way.pop()
            elif move in ("done", "fail") and under_way:
                later = under_way.pop(size % len(under_way))
                later.finish(hall.answer("y" * size) if move == "done" else None)
            elif move == "apply":
                hall.after.apply(replace(hall.rules, queue=1 + size % 4, answer_bytes=1024 + size))
            else:
                await asyncio.sleep(0)
            assert hall.after.budget.taken <= 60_000
        for later in under_way:
            later.finish(None)
        await hall.settled()
        tally = hall.after.counters
        assert not tally.failed and tally.submitted == sum(move in ("hand", "shadowed") for move, _ in moves)

    judging(story, queue=queue, answer_bytes=4000, most_bytes=60_000)


async def test_every_specialist_has_its_verifier_and_equals_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_one(spec: str, correctness: CorrectnessConfig, base: Any, workshop: object) -> Grader:
        opened.append(spec)
        return Grader(spec, spec)

    monkeypatch.setattr("router.verify.verifiers.open_verifier", open_one)
    ensemble = ensemble_of()
    verifiers = open_verifiers(ensemble)
    assert opened == ["non_empty"] and verifiers[PRIMARY] is verifiers[SHADOW]


async def test_samples_alone_are_judged_over_real_replicas() -> None:
    async with world(saying("no ", "good?")) as (here, _, _shadow):
        for _ in range(3):
            await here.ask()
        await here.ask(sample=False)
        await here.settled()
        assert here.told.judgements == [(LANES[PRIMARY], PRIMARY, "passed")] * 3
