"""The words of a story: whatever the receipt, every fact that matters is told, and nothing that it does not hold."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.correctness import Shown, Standing, State, serves
from admission.correctness import shown as shown_state
from octet.sdk.decision import word
from octet.sdk.receipt import Timings
from octet.sdk.story import Story
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from octet.why.asked import MOST_ATTEMPTS
from octet.why.tell import shown, tell
from octet.why.waterfall import stages, waterfall
from octet.why.words import REASONS, time
from router.receipts.receipt import _ATTEMPTS
from tests.octet.messages import messages
from tests.octet.why.receipts import stories

_NAME = re.compile(r"[a-z]+x\d+x")
_WIDTH = 80
_ROW = re.compile(r"(.+?) +([\d.]+) ms(  \|.*\|)?")


def said(story: wire.Story, *, is_whole: bool = True) -> str:
    """All of it, on one line."""
    return " ".join(shown(tell(Story.from_wire(story), is_whole=is_whole), 10_000).split())


def told(story: wire.Story) -> Iterator[str]:
    """What must be said, as it must be said."""
    receipt = story.receipt
    decision, between, usage, error = receipt.decision, receipt.between, receipt.usage, receipt.error
    yield from (receipt.request_id, f"with priority {receipt.priority};", receipt.session_id, receipt.caller)
    yield from (
        receipt.tenant,
        receipt.trace_id,
        decision.why,
        decision.primary,
        decision.second_choice,
        *decision.notes,
    )
    yield from (decision.intent, decision.task)
    if decision.HasField("confidence"):
        yield f"{decision.confidence:.2f}"
        yield from (each.specialist for each in decision.distribution)
    if receipt.HasField("between"):
        yield from (between.why, f"a shadow threshold of {between.shadow_threshold:g}", between.knobs_by)
        yield f"a priority floor of {between.priority_floor}"
        yield f"in the place of {between.instead_of}" if between.instead_of else ""
        yield "breaker of" if between.correctness else ""
        yield "was fresh" if between.lane == "fresh" else ""
        yield "It spilled over" if between.spilled else ""
    for number, attempt in enumerate(receipt.attempts, 1):
        yield f"{number}. {attempt.replica}, of {attempt.specialist}: {'no answer' if attempt.reason else 'answered'}"
        yield from (attempt.message, time(attempt.seconds), word(wire.ErrorReason, attempt.reason, "ERROR_REASON_"))
    if receipt.HasField("accepted"):
        yield from _at_the_door(receipt.accepted)
    if receipt.HasField("usage"):
        yield f"Of {usage.prompt_tokens} prompt token"
        yield f"{usage.cache_hit_tokens} came from the cache"
        yield word(specialist_pb2.MissReason, usage.miss_reason, "MISS_REASON_")
        yield f"It said {usage.completion_tokens} token"
        yield usage.stop_string
        yield "It was preempted" if usage.times_preempted else "It never had to give way."
        yield f"that took {time(usage.timings.preempted)} in all" if usage.timings.HasField("preempted") else ""
    if receipt.HasField("error"):
        yield from (word(wire.ErrorReason, error.reason, "ERROR_REASON_"), error.message, error.field, error.limit)
        yield error.value
        yield f"worthwhile after {time(error.retry_after_ms / 1000)}" if error.HasField("retry_after_ms") else ""
    yield from _behind(story)


def _at_the_door(accepted: Any) -> Iterator[str]:
    before = {0: "nobody", 1: "1 request "}.get(accepted.queue_position, f"{accepted.queue_position} requests")
    yield f"let it in with {before}"
    yield f"seed {accepted.seed}."
    if accepted.HasField("forecast"):
        yield f"begin after {time(accepted.forecast.wait)} and to end after {time(accepted.forecast.total)}"
        yield "had to be shed for it" if accepted.forecast.displaced else ""
        yield "stood aside for it" if accepted.forecast.set_aside else ""
        yield f"{time(accepted.forecast.slack)} before its deadline" if accepted.forecast.HasField("slack") else ""


def _behind(story: wire.Story) -> Iterator[str]:
    receipt = story.receipt
    if receipt.between.HasField("shadow"):
        order = receipt.between.shadow
        yield from (f"ordered of {order.specialist} + {order.adapters[0]}, because", f"({order.why})")
    if story.HasField("comparison"):
        yield "The two answers agreed" if story.comparison.agreed else "The two answers did not agree"
    if receipt.HasField("validation"):
        yield from (receipt.validation.verifier, receipt.validation.detail)
        yield {"passed": "passed it", "failed": "failed it", "skipped": "could say nothing"}[receipt.validation.outcome]
    yield f"as a sample, the answer {story.judged}." if story.judged else ""
    for change in story.changes:
        yield f"{change.who}: set knob {change.subject}, 0 -> {change.after} ({change.why})"


def untold(story: wire.Story) -> Iterator[str]:
    """What must not be said."""
    receipt = story.receipt
    answers = [not each.reason for each in receipt.attempts]
    never: tuple[tuple[bool, str], ...] = (
        (receipt.between.spilled, "spilled"),
        (receipt.between.HasField("shadow"), "A copy that nobody waits for"),
        (receipt.between.HasField("shadow"), "with a shadow"),
        (bool(receipt.between.instead_of), "in the place of"),
        (receipt.usage.times_preempted > 0, "was preempted"),
        (receipt.HasField("error"), "The caller got an error"),
        (not receipt.HasField("error"), "answered it in"),
        (True in answers[1:], "So it went from"),
        (receipt.accepted.forecast.HasField("slack"), "before its deadline."),
        (receipt.HasField("accepted"), "let it in with"),
        (receipt.HasField("validation"), "asked for a check"),
        (story.HasField("comparison"), "The two answers"),
        (bool(story.judged), "as a sample"),
        (receipt.error.HasField("retry_after_ms"), "Trying again"),
        (receipt.session_source != "none", "the conversation session"),
        (bool(receipt.caller), "Its caller showed"),
        (len(receipt.attempts) > 0, " 1. replicax"),
    )
    yield from (words for holds, words in never if not holds)


BREAKERS: dict[Shown, str] = {
    "closed": "its answers were trusted",
    "shadow_only": "it only shadowed",
    "recovering": "still only shadowed",
    "held_open": "it only shadowed",
    "held_closed": "it served",
}


@pytest.mark.parametrize("state", get_args(Shown))
def test_a_breaker_is_said_to_let_it_serve_where_it_does_and_nowhere_else(state: Shown) -> None:
    held = {"held_open": Standing(hold="open"), "held_closed": Standing(hold="closed")}
    standing = held.get(state) or Standing(state=cast(State, state))
    assert shown_state(standing) == state
    receipt = wire.Receipt(decision=wire.Decision(primary="stl"), between=wire.Between(correctness=state))
    words = said(wire.Story(receipt=receipt))
    assert BREAKERS[state] in words and ("shadowed" in words) == (not serves(standing))


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("held_open", "(an operator held its breaker open)"),
        ("shadow_only", "(its answers were wrong too often)"),
        ("recovering", "it was recovering)"),
    ],
)
def test_who_was_kept_from_answering_is_told_why(state: str, cause: str) -> None:
    error = wire.Error(reason=error_pb2.ERROR_REASON_DEMOTED)
    receipt = wire.Receipt(decision=wire.Decision(primary="stl"), error=error, between=wire.Between(correctness=state))
    headline = tell(Story.from_wire(wire.Story(receipt=receipt))).headline
    assert "the specialist is kept from answering now, and nobody stands in for it" in headline
    assert headline.endswith(cause) and ("wrong" in headline) == (state != "held_open")


@given(stories())
@settings(max_examples=100, deadline=None)
def test_every_fact_is_told_and_nothing_else(story: wire.Story) -> None:
    words = said(story)
    assert [each for each in told(story) if each and each not in words] == []
    assert [each for each in untold(story) if each in words] == []
    assert set(_NAME.findall(words)) <= set(_NAME.findall(str(story))), "a name that nobody gave"


@given(stories())
@settings(max_examples=40, deadline=None)
def test_who_may_not_operate_is_told_what_the_receipt_holds_and_no_more(story: wire.Story) -> None:
    alone = wire.Story(receipt=story.receipt)
    words = said(alone, is_whole=False)
    assert "Nothing that concerns it was changed" not in words and "No comparison is known" not in words
    assert ("only operators see" in words) == story.receipt.between.HasField("shadow")
    assert "Nothing that concerns it was changed" in said(alone)


@given(messages(wire.Story), st.integers(20, 200))
@settings(max_examples=60, deadline=None)
def test_any_message_is_told_and_nothing_in_it_is_an_order(story: wire.Story, width: int) -> None:
    text = shown(tell(Story.from_wire(story)), width)
    assert text.replace("\n", "").isprintable()
    assert all(len(line) <= max(width, 22) for line in text.split("\n\ntime\n")[0].splitlines())


seconds = st.floats(0, 1e6)


@given(st.builds(Timings, *[st.none() | seconds] * 4, seconds))
def test_stages_follow_one_another_and_add_up(timings: Timings) -> None:
    found = stages(timings)
    assert found[0].start == 0 and found[-1].end == round(timings.total * 10_000)
    assert all(one.end == next_.start for one, next_ in pairwise(found))
    assert all(each.start <= each.end for each in found)


@given(stories())
@settings(max_examples=40, deadline=None)
def test_the_figures_that_are_shown_add_up(story: wire.Story) -> None:
    lines = waterfall(Story.from_wire(story).receipt)
    rows = [found for line in lines if (found := _ROW.fullmatch(line)) and not line.startswith("by the")]
    figures = [round(10 * float(found[2])) for found in rows]
    assert rows[-1][1] == "total" and sum(figures[:-1]) == figures[-1]
    assert abs(figures[-1] - story.receipt.timings.total * 10_000) <= 0.5 + 1e-6
    assert len({len(found[3]) for found in rows[:-1]}) == 1, "bars of one width"


def test_a_receipt_keeps_as_many_attempts_as_is_said() -> None:
    assert MOST_ATTEMPTS == _ATTEMPTS


def test_every_reason_that_a_request_may_end_with_has_words() -> None:
    """Those that are left are what only operators and jobs hear."""
    named = {word(wire.ErrorReason, each, "ERROR_REASON_") for each in error_pb2.ErrorReason.values()}
    assert named - set(REASONS) == {"", "conflict", "unknown_name", "unknown_job"}
    assert set(REASONS) <= named


@pytest.mark.parametrize("number", [20, 21, 50])
def test_of_many_changes_the_latest_are_told_and_how_many_there_were(number: int) -> None:
    changes = [wire.AuditEntry(who=f"who{n}who", what="drain", subject="x") for n in range(number)]
    words = said(wire.Story(changes=changes))
    assert words.count("who: drain x") == 20 and "who19who" in words
    assert (f"And {number - 20} more before those" in words) == (number > 20)
