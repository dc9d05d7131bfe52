"""Explanations report every fact of a receipt and nothing else."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.breakers import BreakerRecord, BreakerState, BreakerStatus, may_serve
from admission.breakers import breaker_status as shown_state
from octet.cli.why import explain_request, format_explanation, format_waterfall
from octet.cli.why_sections import MAX_ATTEMPTS, REASON_TEXTS
from octet.client.operator import RequestExplanation
from octet.client.receipts import Receipt
from octet.client.stages import UNITS_PER_SECOND, Stage, request_stages
from octet.client.wire_record import enum_label
from octet.terminal import format_seconds
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from router.receipts import _MAX_ATTEMPTS
from tests.octet.cli.why.receipts import explanations
from tests.octet.messages import messages

_NAME = re.compile(r"[a-z]+x\d+x")
_WIDTH = 80
_ROW = re.compile(r"(.+?) +([\d.]+) ms(  \|.*\|)?")


def explained(explanation: wire.Story, *, is_complete: bool = True) -> str:
    """Return the whole text as one line."""
    return " ".join(
        format_explanation(
            explain_request(RequestExplanation.from_wire(explanation), is_complete=is_complete), 10_000
        ).split()
    )


def expected_texts(explanation: wire.Story) -> Iterator[str]:
    """Yield strings that must occur in the text."""
    receipt = explanation.receipt
    decision, between, usage, error = receipt.decision, receipt.between, receipt.usage, receipt.error
    yield from (receipt.request_id, f"with priority {receipt.priority} (", receipt.session_id, receipt.caller)
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
        yield f"in place of {between.instead_of}" if between.instead_of else ""
        yield "breaker of" if between.correctness else ""
        yield "was fresh" if between.lane == "fresh" else ""
        yield "It spilled over" if between.spilled else ""
    for number, attempt in enumerate(receipt.attempts, 1):
        yield f"{number}. {attempt.replica} of {attempt.specialist}: {'no answer' if attempt.reason else 'answered'}"
        yield from (
            attempt.message,
            format_seconds(attempt.seconds),
            enum_label(wire.ErrorReason.DESCRIPTOR, attempt.reason),
        )
    if receipt.HasField("accepted"):
        yield from _admission_texts(receipt.accepted)
    if receipt.HasField("usage"):
        yield f"Of {usage.prompt_tokens} prompt token"
        yield f"{usage.cache_hit_tokens} came from the cache"
        yield enum_label(specialist_pb2.MissReason.DESCRIPTOR, usage.miss_reason)
        yield f"It generated {usage.completion_tokens} token"
        yield usage.stop_string
        yield f"Steps guessed {usage.drafted_tokens} token" if usage.drafted_tokens else ""
        yield "It was preempted" if usage.times_preempted else "It was never preempted."
        yield (f"for {format_seconds(usage.timings.preempted)} in total" if usage.timings.HasField("preempted") else "")
    if receipt.HasField("error"):
        yield from (
            enum_label(wire.ErrorReason.DESCRIPTOR, error.reason),
            error.message,
            error.field,
            error.limit,
        )
        yield error.value
        yield (
            f"advised after {format_seconds(error.retry_after_ms / 1000)}" if error.HasField("retry_after_ms") else ""
        )
    yield from _behind(explanation)


def _admission_texts(accepted: Any) -> Iterator[str]:
    before = {0: "nothing ahead", 1: "1 request ahead"}.get(
        accepted.queue_position, f"{accepted.queue_position} requests ahead"
    )
    yield f"admitted it with {before} in the queue"
    yield f"seed {accepted.seed}."
    if accepted.HasField("forecast"):
        wait, total = format_seconds(accepted.forecast.wait), format_seconds(accepted.forecast.total)
        yield f"start after {wait} and to end after {total}"
        yield "shed for it" if accepted.forecast.displaced else ""
        yield "suspended for it" if accepted.forecast.set_aside else ""
        yield (
            f"{format_seconds(accepted.forecast.slack)} before its deadline"
            if accepted.forecast.HasField("slack")
            else ""
        )


def _behind(explanation: wire.Story) -> Iterator[str]:
    receipt = explanation.receipt
    if receipt.between.HasField("shadow"):
        order = receipt.between.shadow
        yield from (f"planned for {order.specialist} + {order.adapters[0]}, because", f"({order.why})")
        yield f"It was sent to {order.replica}" if order.replica else ""
        yield "It was not sent: " if order.outcome and not order.replica else ""
        yield f"but was {order.outcome}: " if order.reason and order.replica else ""
    if explanation.HasField("comparison"):
        yield "The two answers agreed" if explanation.comparison.agreed else "The two answers did not agree"
    if receipt.HasField("validation"):
        yield from (receipt.validation.verifier, receipt.validation.detail)
        yield {"passed": "passed it", "failed": "failed it", "skipped": "could not judge it"}[
            receipt.validation.outcome
        ]
    yield f"Sampled for evaluation, the answer {explanation.judged}." if explanation.judged else ""
    for change in explanation.changes:
        yield f"{change.who}: set knob {change.subject}, 0 -> {change.after} ({change.why})"


def unexpected_texts(explanation: wire.Story) -> Iterator[str]:
    """Yield strings that must not occur in the text."""
    receipt = explanation.receipt
    answers = [not each.reason for each in receipt.attempts]
    never: tuple[tuple[bool, str], ...] = (
        (receipt.between.spilled, "spilled"),
        (receipt.between.HasField("shadow"), "A shadow was planned"),
        (bool(receipt.between.shadow.replica), "with a shadow"),
        (bool(receipt.between.shadow.replica), "It was sent to"),
        (bool(receipt.between.instead_of), "in place of"),
        (receipt.usage.times_preempted > 0, "was preempted"),
        (receipt.HasField("error"), "The caller received an error"),
        (not receipt.HasField("error"), "answered it in"),
        (True in answers[1:], "It failed over from"),
        (receipt.accepted.forecast.HasField("slack"), "before its deadline."),
        (receipt.HasField("accepted"), "admitted it with"),
        (receipt.HasField("validation"), "asked for validation"),
        (explanation.HasField("comparison"), "The two answers"),
        (bool(explanation.judged), "Sampled for evaluation"),
        (receipt.error.HasField("retry_after_ms"), "A retry"),
        (receipt.session_source != "none", "the conversation session"),
        (bool(receipt.caller), "Its caller used"),
        (len(receipt.attempts) > 0, " 1. replicax"),
    )
    yield from (words for holds, words in never if not holds)


BREAKERS: dict[BreakerStatus, str] = {
    "closed": "its answers were trusted",
    "shadow_only": "it got only shadow traffic",
    "recovering": "still got only shadow traffic",
    "held_open": "it got only shadow traffic",
    "held_closed": "it served",
}


@pytest.mark.parametrize("state", get_args(BreakerStatus))
def test_breaker_text_matches_whether_it_serves(state: BreakerStatus) -> None:
    held = {"held_open": BreakerRecord(hold="open"), "held_closed": BreakerRecord(hold="closed")}
    standing = held.get(state) or BreakerRecord(state=cast(BreakerState, state))
    assert shown_state(standing) == state
    receipt = wire.Receipt(decision=wire.Decision(primary="stl"), between=wire.Between(correctness=state))
    words = explained(wire.Story(receipt=receipt))
    assert BREAKERS[state] in words and ("shadow traffic" in words) == (not may_serve(standing))


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("held_open", "(an operator held its breaker open)"),
        ("shadow_only", "(its answers were wrong too often)"),
        ("recovering", "it was recovering)"),
    ],
)
def test_demotion_is_explained(state: str, cause: str) -> None:
    error = wire.Error(reason=error_pb2.ERROR_REASON_DEMOTED)
    receipt = wire.Receipt(decision=wire.Decision(primary="stl"), error=error, between=wire.Between(correctness=state))
    headline = explain_request(RequestExplanation.from_wire(wire.Story(receipt=receipt))).headline
    assert "the specialist is demoted and no fallback can answer" in headline
    assert headline.endswith(cause) and ("wrong" in headline) == (state != "held_open")


@given(explanations())
@settings(max_examples=100, deadline=None)
def test_every_fact_is_reported_and_nothing_else(explanation: wire.Story) -> None:
    words = explained(explanation)
    assert [each for each in expected_texts(explanation) if each and each not in words] == []
    assert [each for each in unexpected_texts(explanation) if each in words] == []
    assert set(_NAME.findall(words)) <= set(_NAME.findall(str(explanation))), (
        "every name in the text must come from the explanation"
    )


@given(explanations())
@settings(max_examples=40, deadline=None)
def test_caller_explanation_is_limited_to_the_receipt(explanation: wire.Story) -> None:
    alone = wire.Story(receipt=explanation.receipt)
    words = explained(alone, is_complete=False)
    assert "No related change was made" not in words and "There is no comparison" not in words
    assert ("visible to operators only" in words) == bool(explanation.receipt.between.shadow.replica)
    assert "No related change was made" in explained(alone)


@given(messages(wire.Story), st.integers(20, 200))
@settings(max_examples=60, deadline=None)
def test_any_message_is_explained_without_control_characters(explanation: wire.Story, width: int) -> None:
    text = format_explanation(explain_request(RequestExplanation.from_wire(explanation)), width)
    assert text.replace("\n", "").isprintable()
    assert all(len(line) <= max(width, 22) for line in text.split("\n\ntime\n")[0].splitlines())


def check_parts(stage: Stage) -> None:
    """Check that the parts of a stage, at every depth, follow one another and fill it."""
    assert 0 <= stage.start <= stage.end
    if stage.parts:
        assert (stage.parts[0].start, stage.parts[-1].end) == (stage.start, stage.end)
        assert all(one.end == following.start for one, following in pairwise(stage.parts))
        assert sum(each.length for each in stage.parts) == stage.length
    for each in stage.parts:
        check_parts(each)


@given(explanations() | messages(wire.Story))
@settings(max_examples=150, deadline=None)
def test_parts_of_every_stage_add_up_to_it(explanation: wire.Story) -> None:
    receipt = RequestExplanation.from_wire(explanation).receipt
    whole = request_stages(receipt)
    check_parts(whole)
    assert (whole.start, bool(whole.parts)) == (0, whole.length > 0 or bool(whole.parts))
    if 0 <= receipt.timings.total <= 1e9:
        assert whole.end == round(receipt.timings.total * UNITS_PER_SECOND)


@given(st.lists(st.tuples(*[st.floats(0, 2)] * 2, st.booleans()), max_size=4), *[st.floats(0, 2)] * 3)
def test_time_of_no_attempt_is_other(
    attempts: list[tuple[float, float, bool]], dispatched: float, waited: float, queued: float
) -> None:
    """The parts are what was measured, clipped to their stage; the rest is an explicit part of its own."""
    receipt = wire.Receipt(accepted=specialist_pb2.Accepted())
    timings = receipt.timings
    timings.decided = timings.dispatched = dispatched
    timings.accepted = dispatched + waited
    timings.first_chunk = timings.answered = timings.total = dispatched + waited + 1
    receipt.usage.timings.queued = queued
    for number, (began, seconds, has_failed) in enumerate(attempts):
        reason = error_pb2.ERROR_REASON_QUEUE_FULL if has_failed else error_pb2.ERROR_REASON_UNSPECIFIED
        receipt.attempts.add(replica=f"r-{number}", began=began, seconds=seconds, reason=reason)
    stages = {each.name: each for each in request_stages(Receipt.from_wire(receipt)).parts}
    waiting = {each.name: each.length for each in stages["first token"].parts}
    least = min(round(queued * UNITS_PER_SECOND), stages["first token"].length)
    expected = {"queue": least, "other": UNITS_PER_SECOND - least} if least else {}
    assert waiting == {name: length for name, length in expected.items() if length}
    for part in stages["admission"].parts:
        if part.name != "other":
            began, seconds, has_failed = attempts[int(part.name.removeprefix("r-"))]
            assert part.has_failed == has_failed
            assert part.start >= round(began * UNITS_PER_SECOND)
            assert part.end <= round((began + seconds) * UNITS_PER_SECOND)


@given(explanations())
@settings(max_examples=40, deadline=None)
def test_displayed_figures_add_up(explanation: wire.Story) -> None:
    lines = format_waterfall(RequestExplanation.from_wire(explanation).receipt)
    rows = [found for line in lines if (found := _ROW.fullmatch(line)) and not line.startswith("by the")]
    sums: list[list[int]] = []  # a stage, then its parts
    for row in rows[:-1]:
        figure = round(10 * float(row[2]))
        if row[1].startswith(" "):
            sums[-1].append(figure)
        else:
            sums.append([figure])
    total = round(10 * float(rows[-1][2]))
    assert rows[-1][1] == "total" and sum(stage[0] for stage in sums) == total
    assert all(sum(parts) == stage for stage, *parts in sums if parts)
    assert abs(total - explanation.receipt.timings.total * 10_000) <= 0.5 + 1e-6
    assert len({len(found[3]) for found in rows[:-1]}) <= 1, "all bars must have the same width"


def test_kept_attempts_match_the_receipt() -> None:
    assert MAX_ATTEMPTS == _MAX_ATTEMPTS


def test_every_error_reason_has_a_text() -> None:
    """Only the unspecified reason and the reasons of operator calls and jobs have no text."""
    named = {enum_label(wire.ErrorReason.DESCRIPTOR, each) for each in error_pb2.ErrorReason.values()}
    assert named - set(REASON_TEXTS) == {"", "conflict", "unknown_name", "unknown_job"}
    assert set(REASON_TEXTS) <= named


@pytest.mark.parametrize("number", [20, 21, 50])
def test_latest_changes_are_listed_and_the_rest_counted(number: int) -> None:
    changes = [wire.AuditEntry(who=f"who{n}who", what="drain", subject="x") for n in range(number)]
    words = explained(wire.Story(changes=changes))
    assert words.count("who: drain x") == 20 and "who19who" in words
    assert (f"And {number - 20} earlier changes" in words) == (number > 20)
