"""How answers are evaluated after the caller has received them: which verifier is used, for which lane the verdict
counts, and which answers are skipped."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.collapse import DEGENERATE
from octet.config.ensemble import CorrectnessConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from router.quality.answers import FinishedAnswer, ShadowAnswer, ShadowHandle
from router.quality.evaluation import EvaluationRules
from router.quality.evaluation_queue import EvaluationQueue
from router.routing.dispatch_plan import Candidate
from router.verify.by_task import VerifierSet, open_verifiers
from router.verify.verdict import Outcome
from tests.patience import PATIENCE
from tests.router.shadow.harness import (
    LANES,
    PRIMARY,
    SHADOW,
    Grader,
    RecordedEvents,
    answering,
    candidate,
    chunk,
    ensemble_of,
    order,
    running_shadows,
)
from tests.specialist.server.harness import run

STOP, LENGTH = specialist_pb2.FINISH_REASON_STOP, specialist_pb2.FINISH_REASON_LENGTH


class PendingShadow(ShadowHandle):
    """A shadow that ends when the test calls `finish`."""

    def __init__(self, why: Any = "fresh_lane", specialist: str = SHADOW) -> None:
        super().__init__(order(specialist, why), lambda reason: None)
        self.cancelled = 0

    def cancel(self, reason: Any = None) -> None:
        self.cancelled += 1


class EvaluationHarness:
    """An evaluation queue with fake verifiers, to which tests submit answers directly."""

    def __init__(self, max_waiting: int = 256, answer_bytes: int = 10_000, most_bytes: int = 1 << 20) -> None:
        self.events = RecordedEvents()
        self.graders = {PRIMARY: Grader("good", "good"), SHADOW: Grader("fine", "fine")}
        self.rules = EvaluationRules(VerifierSet(dict(self.graders)), answer_bytes, max_waiting, 0.6)
        self.queue = EvaluationQueue(self.events, lambda: 1, self.rules, most_bytes)
        self.queue.start()
        self.num_finished = 0

    def finished(
        self, *texts: str, finish: Any = STOP, sample: bool = True, question: str = "q", **fields: Any
    ) -> FinishedAnswer:
        captured = self.queue.capture()
        for text in texts:
            captured.add(chunk(text).SerializeToString())
        self.num_finished += 1
        receipt = wire.Receipt(
            request_id=f"r-{self.num_finished}",
            specialist=PRIMARY,
            lane=wire.Lane(specialist=PRIMARY, revision="r1"),
            decision=wire.Decision(primary=fields.pop("decided", PRIMARY)),
            usage=wire.Usage(finish_reason=finish),
        )
        lane = fields.pop("candidate", candidate())
        return FinishedAnswer(receipt, question, captured, lane, sample, **fields)

    def answer(self, *texts: str, finish: Any = STOP, lane: str = SHADOW, num_tokens: int = 0) -> ShadowAnswer:
        captured = self.queue.capture()
        for text in texts:
            captured.add(chunk(text).SerializeToString())
        usage = wire.Usage(finish_reason=finish, completion_tokens=num_tokens)
        return ShadowAnswer(wire.Lane(specialist=lane, revision="r1"), usage, captured)

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.queue.num_waiting or self.queue.budget.taken:
                await asyncio.sleep(0.001)


def run_scenario(scenario: Callable[[EvaluationHarness], Any], **bounds: int) -> None:
    async def bounded() -> None:
        harness = EvaluationHarness(**bounds)
        try:
            await scenario(harness)
        finally:
            await harness.queue.close()
            assert not harness.queue.budget.taken

    run(bounded())


@pytest.mark.parametrize(
    ("text", "finish", "lane", "outcomes"),
    [
        ("good", STOP, candidate(), ["passed"]),
        ("bad", STOP, candidate(), ["failed"]),
        ("good", LENGTH, candidate(), []),
        ("good", specialist_pb2.FINISH_REASON_CANCELLED, candidate(), []),
        ("good", specialist_pb2.FINISH_REASON_ERROR, candidate(), []),
        ("good", STOP, candidate(lane_id=""), []),
        ("good", STOP, candidate(revision="r1"), ["passed"]),
        ("good", STOP, candidate(revision="r0"), []),
        ("good" * 3000, STOP, candidate(), []),
    ],
)
def test_a_sample_counts_for_its_lane_if_its_verifier_can_judge_it(
    text: str, finish: Any, lane: Candidate, outcomes: list[Outcome]
) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.queue.submit(harness.finished(text, finish=finish, candidate=lane))
        await harness.settled()
        assert harness.events.judgements == [(LANES[PRIMARY], PRIMARY, outcome) for outcome in outcomes]
        conclusive = [each for each in harness.events.evaluated if each[1] != "skipped"]
        assert conclusive == [("r-1", outcome) for outcome in outcomes]
        assert len(harness.graders[PRIMARY].asked) == len(outcomes)

    run_scenario(scenario)


@pytest.mark.parametrize("finish", [STOP, LENGTH, specialist_pb2.FINISH_REASON_DEADLINE])
def test_a_degenerate_answer_fails_whatever_its_verifier_says(finish: Any) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        finished = harness.finished("good. " * 100, finish=finish)
        finished.receipt.decision.max_tokens = 300
        harness.queue.submit(finished)
        await harness.settled()
        ((_, judged),) = harness.events.judged
        assert (judged.kind, judged.outcome) == ("degenerate", "failed")
        assert "repeats" in judged.why and judged.signals[DEGENERATE]
        assert judged.signals.get("cut256") == {STOP: False, LENGTH: True}.get(finish)
        assert harness.events.evaluated == [("r-1", "failed")]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("finish", "says", "counted"),
    [
        (STOP, "passed", [("code", "failed")]),
        (STOP, "failed", [("code", "failed")]),
        (STOP, "skipped", [("non_empty", "failed")]),
        (STOP, "unavailable", []),
        (LENGTH, None, []),
    ],
)
def test_a_degenerate_answer_counts_for_the_verifier_that_judges_such_an_answer(
    finish: Any, says: Outcome | None, counted: list[tuple[str, Outcome]]
) -> None:
    """Otherwise more prose, of which some always loops, would lower the pass rate of the verifier of code."""

    async def scenario(harness: EvaluationHarness) -> None:
        found = list[tuple[str, Outcome]]()
        harness.graders[PRIMARY].name, harness.graders[PRIMARY].says = "code", says
        harness.events.lane_evaluated = (  # type: ignore[method-assign]
            lambda lane_id, specialist, outcome, verifier: found.append((verifier, outcome))
        )
        harness.queue.submit(harness.finished("good. " * 100, finish=finish))
        await harness.settled()
        assert found == counted
        assert [(judged.kind, judged.outcome) for _, judged in harness.events.judged] == [("degenerate", "failed")]

    run_scenario(scenario)


@pytest.mark.parametrize(("stop_string", "text"), [("\n", ""), ("\n", " \t"), (None, "")])
def test_an_answer_that_begins_with_a_stop_sequence_of_the_caller_is_not_judged(
    stop_string: str | None, text: str
) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        finished = harness.finished(text)
        if stop_string is not None:
            finished.receipt.usage.stop_string = stop_string
        harness.queue.submit(finished)
        await harness.settled()
        assert [judged.kind for _, judged in harness.events.judged] == ["degenerate"] * (stop_string is None)
        assert len(harness.events.judgements) == (stop_string is None)

    run_scenario(scenario)


def test_a_collapsed_shadow_fails_even_if_it_was_cut() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        shadow = PendingShadow("fresh_lane", PRIMARY)
        harness.queue.submit(harness.finished("good", sample=False, finish=LENGTH), shadow)
        shadow.finish(harness.answer("Z. " * 200, finish=LENGTH, num_tokens=20))
        await harness.settled()
        assert [(judged.outcome, judged.kind) for _, judged in harness.events.judged] == [("failed", "degenerate")]

    run_scenario(scenario)


def test_a_cut_answer_is_verified_by_its_complete_part() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        grader = harness.graders[PRIMARY]
        grader.name = "json"
        harness.queue.submit(harness.finished('{"good": [1, 2], "b": "unfin', finish=LENGTH))
        harness.queue.submit(harness.finished('"unfinished', finish=LENGTH))
        await harness.settled()
        assert [answer for _, answer in grader.asked] == ['{"good": [1, 2]}']
        assert [(judged.outcome, judged.kind) for _, judged in harness.events.judged] == [
            ("passed", "cut"),
            ("skipped", "cut"),
        ]
        assert [outcome for _, outcome in harness.events.evaluated] == ["passed", "skipped"]

    run_scenario(scenario)


def test_a_repetition_that_was_asked_for_and_a_disabled_verifier_give_no_signal() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.queue.submit(harness.finished("good " * 100, question="Write good 100 times"))
        await harness.settled()
        harness.graders[PRIMARY].name, harness.graders[PRIMARY].says = "none", "skipped"
        harness.queue.submit(harness.finished("good " * 100))
        await harness.settled()
        assert [(judged.outcome, dict(judged.signals)) for _, judged in harness.events.judged] == [
            ("passed", {}),
            ("skipped", {}),
        ]

    run_scenario(scenario)


def test_what_the_own_verifier_skips_is_judged_by_the_next() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.graders[PRIMARY].says = "skipped"
        harness.queue.submit(harness.finished("good"))
        await harness.settled()
        assert [outcome for _, _, outcome in harness.events.judgements] == ["passed"]
        assert harness.queue.counters.undecided == 0

    run_scenario(scenario)


def test_inconclusive_verdicts_count_for_nothing() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.graders[PRIMARY].says = "unavailable"
        harness.queue.submit(harness.finished("good"))
        await harness.settled()
        assert not harness.events.judgements and harness.queue.counters.undecided == 1

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("specialist", "why", "decided", "counted"),
    [
        (SHADOW, "low_confidence", PRIMARY, []),
        (SHADOW, "demoted", SHADOW, [(LANES[SHADOW], SHADOW, "passed")]),
        (PRIMARY, "fresh_lane", PRIMARY, [(LANES[PRIMARY], PRIMARY, "failed")]),
        (PRIMARY, "fresh_lane", SHADOW, [(LANES[PRIMARY], PRIMARY, "failed")]),
    ],
)
def test_a_shadow_counts_for_its_lane_by_its_own_verifier_if_the_request_was_routed_there(
    specialist: str, why: Any, decided: str, counted: list[tuple[str, str, Outcome]]
) -> None:
    """The verdict that counts for the shadow's lane comes from the verifier of the shadow's specialist. The comparison
    of the two answers uses the primary's verifier."""

    async def scenario(harness: EvaluationHarness) -> None:
        shadow = PendingShadow(why, specialist)
        harness.queue.submit(harness.finished("good", sample=False, decided=decided), shadow)
        shadow.finish(harness.answer("fine"))
        await harness.settled()
        assert harness.events.judgements == counted
        (comparison,) = harness.events.comparisons
        assert (comparison.primary_outcome, comparison.shadow_outcome) == ("passed", "failed")
        assert len(harness.graders[PRIMARY].asked) == 2, "no answer may be verified twice"

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("text", "finish", "num_tokens", "is_failure"),
    [("good", STOP, 20, True), ("good", STOP, 19, False), ("poor", STOP, 20, False), ("good", LENGTH, 20, False)],
)
def test_a_shadow_that_runs_away_where_the_primary_stopped_has_failed(
    text: str, finish: Any, num_tokens: int, is_failure: bool
) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        shadow = PendingShadow("fresh_lane", PRIMARY)
        finished = harness.finished(text, sample=False, finish=finish)
        finished.receipt.usage.completion_tokens = 10
        harness.queue.submit(finished, shadow)
        shadow.finish(harness.answer("good and good and good", finish=LENGTH, num_tokens=num_tokens))
        await harness.settled()
        assert [judgement[-1] for judgement in harness.events.judgements] == (["failed"] if is_failure else [])

    run_scenario(scenario)


@pytest.mark.parametrize(("one", "other"), [(STOP, LENGTH), (LENGTH, STOP), (LENGTH, LENGTH)])
def test_a_truncated_answer_leaves_the_comparison_unverified(one: Any, other: Any) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        shadow = PendingShadow()
        harness.queue.submit(harness.finished("good words", sample=False, finish=one), shadow)
        shadow.finish(harness.answer("good words", finish=other))
        await harness.settled()
        (comparison,) = harness.events.comparisons
        assert (comparison.primary_outcome, comparison.shadow_outcome) == ("skipped", "skipped")
        assert comparison.agreed

    run_scenario(scenario)


def test_a_lane_is_not_compared_with_itself() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        shadow = PendingShadow()
        harness.queue.submit(harness.finished("good"), shadow)
        shadow.finish(harness.answer("good", lane=PRIMARY))
        await harness.settled()
        assert not harness.events.comparisons and len(harness.events.judgements) == 1

    run_scenario(scenario)


def test_a_sample_is_evaluated_without_its_shadows_answer() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        for sample in (True, False):
            shadow = PendingShadow()
            harness.queue.submit(harness.finished("good", sample=sample), shadow)
            assert harness.queue.num_waiting == 1
            shadow.finish(None)
            assert harness.queue.num_waiting == sample, (
                "an answer that is neither sampled nor compared must leave the queue"
            )
            await harness.settled()
        assert len(harness.events.judgements) == 1 and not harness.events.comparisons

    run_scenario(scenario)


def test_a_full_queue_sheds_the_oldest() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        grader = harness.graders[PRIMARY]
        grader.go_on.clear()
        harness.queue.submit(harness.finished("good 0"))
        async with asyncio.timeout(PATIENCE):
            while not grader.asked:
                await asyncio.sleep(0)
        for number in range(1, 8):
            harness.queue.submit(harness.finished(f"good {number}"))
            assert harness.queue.num_waiting <= 3
        grader.go_on.set()
        await harness.settled()
        assert [answer for _, answer in grader.asked] == ["good 0", "good 5", "good 6", "good 7"]
        assert harness.queue.counters.shed == 4

    run_scenario(scenario, max_waiting=3)


def test_a_long_question_sheds_the_oldest_or_itself() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        grader = harness.graders[PRIMARY]
        grader.go_on.clear()
        for number in range(10):
            harness.queue.submit(harness.finished(f"good {number}", question="x" * 20_000))
            assert harness.queue.budget.taken <= 100_000
            await asyncio.sleep(0)
        harness.queue.submit(harness.finished("good", question="x" * 200_000))
        assert harness.queue.counters.unread == 1
        grader.go_on.set()
        await harness.settled()
        assert harness.queue.counters.shed + harness.queue.counters.judged == 10
        assert harness.queue.counters.judged >= 1

    run_scenario(scenario, most_bytes=100_000)


def test_a_failing_verifier_does_not_stop_the_queue() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        async def broken(question: str, answer: str) -> Any:
            raise RuntimeError("a mistake")

        harness.graders[PRIMARY].verify = broken  # type: ignore[method-assign]
        harness.queue.submit(harness.finished("good"))
        await harness.settled()
        harness.queue.apply(replace(harness.rules, verifiers=VerifierSet({PRIMARY: Grader("g", "good")})))
        harness.queue.submit(harness.finished("good"))
        await harness.settled()
        assert (harness.queue.counters.failed, harness.queue.counters.judged) == (1, 1)

    run_scenario(scenario)


def test_a_submitted_answer_keeps_the_rules_of_its_submission() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        shadow = PendingShadow()
        harness.queue.submit(harness.finished("good words harness", sample=False), shadow)
        harness.queue.apply(
            replace(harness.rules, similar=0.0, verifiers=VerifierSet({PRIMARY: Grader("never", "\0")}))
        )
        shadow.finish(harness.answer("good other stuff"))
        await harness.settled()
        (comparison,) = harness.events.comparisons
        assert (comparison.primary_outcome, comparison.agreed) == ("passed", False)

    run_scenario(scenario)


def test_a_large_answer_is_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        threads: list[Any] = []

        async def to_thread(work: Any, *given: Any) -> Any:
            threads.append(work)
            return work(*given)

        monkeypatch.setattr(asyncio, "to_thread", to_thread)
        harness.queue.submit(harness.finished("good"))
        await harness.settled()
        assert not threads
        harness.queue.submit(harness.finished(*["good "] * 5000))
        await harness.settled()
        assert len(threads) == 3, "decoding and both checks of the text need other threads"
        assert len(harness.events.judgements) == 2

    run_scenario(scenario, answer_bytes=100_000)


def test_the_event_loop_runs_while_a_long_queue_is_evaluated() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        for _ in range(200):
            harness.queue.submit(harness.finished("good"))
        turns = 0
        while harness.queue.num_waiting:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100

    run_scenario(scenario)


def test_a_closed_queue_accepts_nothing_and_cancels_shadows() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        waiting, late = PendingShadow(), PendingShadow()
        harness.graders[PRIMARY].go_on.clear()
        harness.queue.submit(harness.finished("good"))
        harness.queue.submit(harness.finished("good"), waiting)
        async with asyncio.timeout(PATIENCE):
            while not harness.graders[PRIMARY].asked:
                await asyncio.sleep(0)
        await harness.queue.close()
        harness.queue.submit(harness.finished("good"), late)
        waiting.finish(harness.answer("good"))
        assert (waiting.cancelled, late.cancelled) == (1, 1)
        assert not harness.queue.num_waiting and not harness.events.judgements
        assert [grader.closed for grader in harness.graders.values()] == [1, 1]

    run_scenario(scenario)


def test_a_slow_verifier_delays_no_other_verifier() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.graders[PRIMARY].go_on.clear()
        for number in range(3):
            harness.queue.submit(harness.finished(f"good {number}"))
        for number in range(3):
            harness.queue.submit(harness.finished(f"fine {number}", candidate=candidate(SHADOW)))
        async with asyncio.timeout(PATIENCE):
            while len(harness.events.judgements) < 3:
                await asyncio.sleep(0)
        assert harness.events.judgements == [(LANES[SHADOW], SHADOW, "passed")] * 3
        assert [answer for _, answer in harness.graders[PRIMARY].asked] == ["good 0"], (
            "a verifier must judge one answer at a time"
        )
        harness.graders[PRIMARY].go_on.set()
        await harness.settled()
        assert [answer for _, answer in harness.graders[PRIMARY].asked] == ["good 0", "good 1", "good 2"]

    run_scenario(scenario)


def test_a_slowly_verified_shadow_does_not_delay_its_primary() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.graders[SHADOW].go_on.clear()
        for number in range(3):
            shadow = PendingShadow("demoted", SHADOW)
            harness.queue.submit(harness.finished(f"good {number}", decided=SHADOW), shadow)
            shadow.finish(harness.answer("fine"))
        async with asyncio.timeout(PATIENCE):
            while len(harness.events.judgements) < 3 or len(harness.events.comparisons) < 3:
                await asyncio.sleep(0.001)
        assert {judgement[1] for judgement in harness.events.judgements} == {PRIMARY}
        harness.graders[SHADOW].go_on.set()
        await harness.settled()
        assert harness.events.judgements[3:] == [(LANES[SHADOW], SHADOW, "passed")] * 3
        counters = harness.queue.counters
        assert (counters.judged, counters.compared, counters.shed, counters.failed) == (6, 3, 0, 0)

    run_scenario(scenario)


def test_specialists_that_share_a_verifier_take_turns() -> None:
    """A specialist whose answers take longer to verify gets fewer turns."""

    async def scenario(harness: EvaluationHarness) -> None:
        clock, grader = [0.0], harness.graders[PRIMARY]
        costs = {"bomb": 10.0, "good": 1.0}
        rules = replace(harness.rules, verifiers=VerifierSet({PRIMARY: grader, SHADOW: grader}))
        queue = EvaluationQueue(harness.events, lambda: 1, rules, clock=lambda: clock[0])
        harness.queue = queue

        async def verify(question: str, answer: str) -> Any:
            clock[0] += costs[answer]
            return await Grader.verify(grader, question, answer)

        grader.verify = verify  # type: ignore[method-assign]
        for _ in range(4):
            queue.submit(harness.finished("bomb", candidate=candidate(SHADOW)))
        for _ in range(12):
            queue.submit(harness.finished("good"))
        queue.start()
        await harness.settled()
        order = [answer for _, answer in grader.asked]
        assert order == ["bomb", *["good"] * 10, "bomb", *["good"] * 2, *["bomb"] * 2]

    run_scenario(scenario)


def test_a_shed_shadow_verdict_keeps_its_comparison() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.graders[SHADOW].go_on.clear()
        for _ in range(4):
            shadow = PendingShadow("demoted", SHADOW)
            harness.queue.submit(harness.finished("good", decided=SHADOW), shadow)
            shadow.finish(harness.answer("fine"))
            async with asyncio.timeout(PATIENCE):
                while harness.queue.counters.compared < harness.num_finished:
                    await asyncio.sleep(0.001)
            assert harness.queue.num_waiting <= 2
        await asyncio.sleep(0)
        counters = harness.queue.counters
        assert (counters.compared, counters.shed, counters.shed_shadows) == (4, 1, 0)
        harness.graders[SHADOW].go_on.set()
        await harness.settled()

    run_scenario(scenario, max_waiting=2)


@pytest.mark.parametrize("num_turns", range(6))
def test_close_at_any_moment_leaves_no_tasks_and_no_bytes(num_turns: int) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        harness.graders[SHADOW].go_on.clear()
        shadow = PendingShadow("demoted", SHADOW)
        harness.queue.submit(harness.finished("good", decided=SHADOW), shadow)
        shadow.finish(harness.answer("fine"))
        harness.queue.submit(harness.finished("fine", candidate=candidate(SHADOW)))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await harness.queue.close()
        assert not harness.queue.budget.taken and not harness.queue.num_waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [grader.closed for grader in harness.graders.values()] == [1, 1]

    run_scenario(scenario)


moves = st.lists(
    st.tuples(st.sampled_from(["submit", "shadowed", "done", "fail", "turn", "apply"]), st.integers(0, 5000)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(moves=moves, max_waiting=st.integers(1, 4))
def test_any_sequence_of_events_gives_every_byte_back(moves: list[tuple[str, int]], max_waiting: int) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        pending: list[PendingShadow] = []
        for move, size in moves:
            if move == "submit":
                harness.queue.submit(harness.finished("x" * size, question="q" * size))
            elif move == "shadowed":
                pending.append(PendingShadow())
                harness.queue.submit(harness.finished("x" * size, sample=bool(size % 2)), pending[-1])
                if pending[-1].cancelled:
                    pending.pop()
            elif move in ("done", "fail") and pending:
                shadow = pending.pop(size % len(pending))
                shadow.finish(harness.answer("y" * size) if move == "done" else None)
            elif move == "apply":
                harness.queue.apply(replace(harness.rules, queue=1 + size % 4, answer_bytes=1024 + size))
            else:
                await asyncio.sleep(0)
            assert harness.queue.budget.taken <= 60_000
        for shadow in pending:
            shadow.finish(None)
        await harness.settled()
        counters = harness.queue.counters
        assert not counters.failed and counters.submitted == sum(move in ("submit", "shadowed") for move, _ in moves)

    run_scenario(scenario, max_waiting=max_waiting, answer_bytes=4000, most_bytes=60_000)


async def test_specialists_with_equal_configuration_share_a_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_fake(spec: str, correctness: CorrectnessConfig, base: Any, pool: object) -> Grader:
        opened.append(spec)
        return Grader(spec, spec)

    monkeypatch.setattr("router.verify.verifiers.open_verifier", open_fake)
    ensemble = ensemble_of()
    verifiers = open_verifiers(ensemble)
    shared = verifiers.specialists
    assert opened == ["non_empty"] and shared[PRIMARY] is shared[SHADOW]


async def test_only_samples_are_evaluated_with_real_replicas() -> None:
    async with running_shadows(answering("no ", "good?")) as (harness, _, _shadow):
        for _ in range(3):
            await harness.ask()
        await harness.ask(sample=False)
        await harness.settled()
        assert harness.events.judgements == [(LANES[PRIMARY], PRIMARY, "passed")] * 3
