"""What the text of an answer shows about its lane, from the captured answer to the test for a collapse."""

from types import SimpleNamespace
from typing import Any

import pytest

from admission.collapse import DEGENERATE, SPAN
from octet.v1 import specialist_pb2
from router.control.collapse import CollapseMonitor
from router.routing.dispatch_plan import Candidate
from tests.router.evaluation.test_evaluation_queue import LENGTH, STOP, EvaluationHarness, run_scenario
from tests.router.shadow.harness import PRIMARY, candidate

ENGLISH = "To reverse a list, use a slice with a negative step, or call reversed and build a list from it. "
LONG_ENGLISH = " ".join(f"In case {number}, {ENGLISH}" for number in range(9))
RUSSIAN = "Чтобы развернуть список, используйте обратный срез или встроенную функцию, которая возвращает итератор. "
SERVING, FRESH = candidate(), candidate(lane_id="writer|2|fresh", fresh=True)


class JudgingLane:
    """A queue that judges answers, and a monitor that gets what they show."""

    def __init__(self, harness: EvaluationHarness) -> None:
        self.harness = harness
        store: Any = SimpleNamespace(count=lambda bucket: None)
        self.monitor = CollapseMonitor(store, 86_400.0)
        self.num_asked = 0

    async def ask(self, text: str, times: int, lane: Candidate = SERVING, *, num_tokens: int = 0, **fields: Any) -> int:
        """Judge answers of the lane to different questions. Return how many of them were degenerate."""
        events = self.harness.events.judged
        before = len(events)
        for _ in range(times):
            self.num_asked += 1
            question = f"How, in case {self.num_asked}?"
            finished = self.harness.finished(text, candidate=lane, question=question, **fields)
            finished.receipt.usage.completion_tokens = num_tokens
            self.harness.queue.submit(finished)
            await self.harness.settled()
        for lane_id, judged in events[before:]:
            self.monitor.add(lane_id, judged.tenant, judged.question, judged.signals, judged.why, self.num_asked)
        return sum(judged.signals.get(DEGENERATE, False) for _, judged in events[before:])

    def why(self, lane: Candidate = SERVING) -> str:
        return str(self.monitor.find(lane.lane_id, SERVING.lane_id, self.num_asked) or "")


@pytest.mark.parametrize("before", [20, 50, 100, 200])
def test_a_lane_that_falls_into_a_wrong_script_collapses(before: int) -> None:
    """Its degenerate answers do not become usual, however many there are; nor do those of a candidate."""

    async def scenario(harness: EvaluationHarness) -> None:
        lane = JudgingLane(harness)
        for number in range(before):
            assert not await lane.ask(f"{number}. {ENGLISH}", 1)
        bad = [await lane.ask(f"{number}. {RUSSIAN}", 1, FRESH) for number in range(3 * SPAN)]
        assert all(bad) and "wrong script" in lane.why(FRESH) and not lane.why()
        assert not await lane.ask(LONG_ENGLISH, 1)
        bad = [await lane.ask(f"{number}. {RUSSIAN}", 1) for number in range(SPAN)]
        assert all(bad) and "it is in the wrong script: Cyrillic" in lane.why()

    run_scenario(scenario)


def test_only_a_trusted_lane_makes_a_script_usual() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        lane = JudgingLane(harness)
        assert not await lane.ask(RUSSIAN, 3, FRESH), "what is usual is not known yet"
        for number in range(SPAN):
            assert not await lane.ask(f"{number}. {ENGLISH}", 1)
        assert await lane.ask(RUSSIAN, 1, FRESH) == await lane.ask(RUSSIAN, 1) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("text", ["\n" * 2000, " " * 2000, ""])
def test_a_lane_with_blank_answers_collapses(text: str) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        lane = JudgingLane(harness)
        assert await lane.ask(text, SPAN, finish=LENGTH, num_tokens=500) == SPAN
        assert "degenerate (it is empty)" in lane.why()
        assert {(judged.kind, judged.outcome) for _, judged in harness.events.judged} == {("degenerate", "failed")}

    run_scenario(scenario)


@pytest.mark.parametrize("text", ["I am a good assistant. How can I help you today?", "Z.", "I cannot."])
def test_a_lane_that_falls_into_saying_the_same_to_everything_collapses(text: str) -> None:
    """Its verifier still judges each answer."""

    async def scenario(harness: EvaluationHarness) -> None:
        lane, grader = JudgingLane(harness), harness.graders[PRIMARY]
        grader.says = "skipped"  # the next verifier is non_empty
        for number in range(60):
            assert not await lane.ask(f"In case {number}, {ENGLISH}", 1)
        assert await lane.ask(text, SPAN) >= 10
        assert "different questions got the same text" in lane.why()
        outcomes = {(judged.kind, judged.outcome) for _, judged in harness.events.judged}
        assert outcomes == {("verifier", "passed")}

    run_scenario(scenario)


@pytest.mark.parametrize("text", ["No memory errors were found in this code.", "good", "no"])
def test_one_healthy_answer_to_most_questions_does_not_trip(text: str) -> None:
    """It was usual from the start, or a verifier that reads it passed it."""

    async def scenario(harness: EvaluationHarness) -> None:
        lane, grader = JudgingLane(harness), harness.graders[PRIMARY]
        grader.says = "skipped"
        for number in range(60):
            assert not await lane.ask(text if number % 20 else f"Error {number}: it leaks in case {number}, too.", 1)
        grader.says = "passed"
        assert not await lane.ask("This is right, whatever the question asks for.", 2 * SPAN)
        assert not lane.why()

    run_scenario(scenario)


def test_a_lane_of_short_answers_recovers_with_them() -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        lane = JudgingLane(harness)
        assert await lane.ask("Z. " * 400, SPAN, finish=LENGTH) == SPAN and lane.why()
        for number in range(SPAN):
            assert not await lane.ask(("ham", "spam", "eggs")[number % 3] + f" {number % 5}", 1)
        assert not lane.why() and lane.monitor.is_clear(SERVING.lane_id)

    run_scenario(scenario)


@pytest.mark.parametrize(("finish", "signals"), [(STOP, {DEGENERATE: False}), (LENGTH, {})])
def test_a_short_answer_that_was_cut_gives_no_signal(finish: Any, signals: dict[str, bool]) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        await JudgingLane(harness).ask("Z. Z. Z.", 1, finish=finish, num_tokens=6)
        assert [dict(judged.signals) for _, judged in harness.events.judged] == [signals]

    run_scenario(scenario)


@pytest.mark.parametrize(("text", "found"), [("Z. " * 400, [True]), (LONG_ENGLISH, [False]), (ENGLISH, [])])
def test_a_long_part_of_an_abandoned_answer_gives_a_signal_but_no_verdict(text: str, found: list[bool]) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        await JudgingLane(harness).ask(text, 1, finish=specialist_pb2.FINISH_REASON_CANCELLED)
        assert [dict(judged.signals) for _, judged in harness.events.judged] == [{DEGENERATE: each} for each in found]
        assert not harness.events.judgements and not harness.events.evaluated and not harness.graders[PRIMARY].asked

    run_scenario(scenario)


FORCING = specialist_pb2.Structure
LOOP = "and again, " * 40


@pytest.mark.parametrize(
    ("asked", "cut", "complete"),
    [
        ({}, True, True),
        ({"structure": FORCING(json_object=True)}, True, True),
        ({"structure": FORCING(json_schema="{}")}, True, False),
        ({"structure": FORCING(regex="(and again, )+")}, False, False),
        ({"structure": FORCING(choice=specialist_pb2.Choices(choices=[LOOP]))}, False, False),
        ({"ignores_end": True}, False, False),
    ],
    ids=["free", "object", "schema", "regex", "choice", "ignores_end"],
)
def test_text_that_the_caller_may_have_forced_shows_nothing(asked: dict[str, Any], cut: bool, complete: bool) -> None:
    async def scenario(harness: EvaluationHarness) -> None:
        lane = JudgingLane(harness)
        for finish, is_bad in ((LENGTH, cut), (STOP, complete)):
            bad = await lane.ask(LOOP, SPAN, finish=finish, **asked)
            assert bad == (SPAN if is_bad else 0), finish
        assert bool(lane.why()) == (cut or complete)

    run_scenario(scenario)
