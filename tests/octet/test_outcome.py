"""Every error reason maps to an outcome."""

import pytest

from octet.telemetry.outcomes import (
    OUTCOMES,
    RequestOutcome,
    error_outcome,
    first_asked,
    request_outcome,
    responsible_specialist,
)
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire

CANCELLED = {"CANCELLED", "CALLER_STALLED"}
FAILED = {
    *("UNSPECIFIED", "DEADLINE", "ENGINE_FAILED", "REPLICA_FAILED", "REPLICA_LOST", "NO_REPLICA", "INTERNAL"),
    "STORE_UNAVAILABLE",
}
REFUSED = {
    *("MALFORMED", "INVALID_FIELD", "PROMPT_TOO_LONG", "UNKNOWN_ADAPTER", "ADAPTER_REFUSED", "NO_TOOLS"),
    "QUARANTINED",
    *("NO_SPECIALIST", "UNKNOWN_SPECIALIST", "UNKNOWN_REQUEST", "UNKNOWN_NAME", "UNKNOWN_JOB", "DUPLICATE_REQUEST"),
    *("QUEUE_FULL", "DEADLINE_UNREACHABLE", "WOULD_DELAY_OTHERS", "SHED", "DRAINING", "NOT_READY"),
    *("BELOW_FLOOR", "DEMOTED", "CONFLICT", "UNAUTHENTICATED", "FORBIDDEN", "KEY_LIMIT"),
}
REASONS = {name.removeprefix("ERROR_REASON_"): number for name, number in error_pb2.ErrorReason.items()}


def test_every_reason_is_covered() -> None:
    assert set(REASONS) == CANCELLED | FAILED | REFUSED
    assert len(CANCELLED) + len(FAILED) + len(REFUSED) == len(REASONS)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", REASONS)
def test_begun_answer_is_not_a_refusal(name: str, begun: bool) -> None:
    receipt = wire.Receipt(error=wire.Error(reason=REASONS[name]))
    if begun:
        receipt.timings.first_chunk = 0.5
    found: RequestOutcome = "cancelled" if name in CANCELLED else "failed" if begun or name in FAILED else "refused"
    assert request_outcome(receipt) == error_outcome(receipt.error, begun=begun) == found
    assert found in OUTCOMES


def test_request_without_an_error_was_answered_by_its_actual_or_chosen_specialist() -> None:
    receipt = wire.Receipt(decision=wire.Decision(primary="stl"))
    assert request_outcome(receipt) == "answered" and responsible_specialist(receipt) == "stl"
    receipt.specialist = "debug"
    assert responsible_specialist(receipt) == "debug"


@pytest.mark.parametrize(
    ("attempts", "lead", "spilled", "first"),
    [
        ((), "", False, "sql"),
        ((), "shell", False, "shell"),
        (("shell",), "shell", False, "shell"),
        (("shell", "stl"), "", False, "shell"),
        (("stl", "stl"), "shell", True, "shell"),
        (("stl",), "shell", False, "stl"),
        (("sql", "stl"), "", True, "sql"),
    ],
    ids=[
        "no specialist was asked, and the decision counts",
        "a stand-in that was away",
        "a stand-in without room",
        "no fallback, and another specialist was asked",
        "the first of many attempts are not kept",
        "the lead could not even be asked",
        "spilled",
    ],
)
def test_a_refusal_counts_for_the_first_specialist_of_the_plan(
    attempts: tuple[str, ...], lead: str, spilled: bool, first: str
) -> None:
    receipt = wire.Receipt(
        decision=wire.Decision(primary="sql"),
        between=wire.Between(lead=lead, spilled=spilled),
        attempts=[wire.Attempt(specialist=name) for name in attempts],
        error=wire.Error(reason=error_pb2.ERROR_REASON_QUEUE_FULL),
    )
    assert first_asked(receipt) == responsible_specialist(receipt) == first
    receipt.specialist = "debug"
    assert (first_asked(receipt), responsible_specialist(receipt)) == (first, "debug")
