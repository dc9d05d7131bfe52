"""A receipt is complete and small for every request and answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.quality.shadow_copy import OrderedShadow, ShadowCounters
from router.receipts import MAX_RECEIPT_BYTES, ReceiptDraft, decision_to_wire, refused_receipt
from router.request import Request, RoutingDecision, TraceContext, identify_session
from router.routing.classifier.base import Distribution
from router.routing.dispatch_plan import MAX_BETWEEN_BYTES, MAX_SHADOW_NAME, Candidate, ShadowOrder
from router.routing.policy import RoutingPolicy
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, INTENTS, NAMES, opinion, opinions
from tests.router.routing.sample_requests import new_validator, sensible, validated_request

ASKS = sensible(NAMES, INTENTS).map(lambda message: new_validator().validate(message, None, None))
POLICY = RoutingPolicy(ENSEMBLE)
WIDE = "\N{SNOWMAN}" * 2000
DIGESTS = ["d" * 64] * 4
LANE = wire.Lane(specialist="algo", revision="r" * 64, adapter_digests=DIGESTS)
ACCEPTED = wire.Accepted(request_id="theirs", lane=LANE, prompt_tokens=7, queue_position=2, max_tokens=64, seed=11)


def worst_ask() -> Request:
    name = "n" * 128
    return Request(
        name,
        (wire.Message(role="user", content="x"),),
        "x",
        0.0,
        1.0,
        TraceContext("f" * 32, "e" * 16),
        session=identify_session(name, {}, "", b""),
    )


def worst_decision() -> RoutingDecision:
    sampling = wire.Sampling(
        temperature=0.1, top_k=2**31 - 1, top_p=0.1, min_p=0.1, typical_p=0.1, repetition_penalty=1.1,
        presence_penalty=0.1, frequency_penalty=0.1, num_logprobs=20,
        logit_bias=[wire.LogitBias(token=2**31 - 1 - n, bias=0.1) for n in range(1024)],
    )  # fmt: skip
    return RoutingDecision(
        "classifier", WIDE, WIDE, WIDE, WIDE, tuple((WIDE, 0.01) for _ in range(100)), 0.1, "c" * 64, WIDE, WIDE,
        (WIDE,) * 9, sampling, 2**62, (WIDE,) * 99, "a" * 64, "b" * 64,
    )  # fmt: skip


def worst_error() -> wire.Error:
    return wire.Error(
        reason=wire.ERROR_REASON_DUPLICATE_REQUEST,
        field=WIDE,
        limit=WIDE,
        value=WIDE,
        message=WIDE,
        retry_after_ms=2**62,
    )


def test_the_worst_receipt_fits_in_metadata_beside_its_error() -> None:
    draft = ReceiptDraft(worst_ask(), 0.0, 2**62)
    draft.decided(worst_decision(), 0.1)
    draft.planned(wire.Between(why="w" * (MAX_BETWEEN_BYTES - MAX_SHADOW_NAME - 64), lead="n" * 64))
    shadow = OrderedShadow(ShadowOrder(Candidate(WIDE, names=(WIDE,) * 9), "low_confidence"), ShadowCounters())
    shadow.sent(WIDE)
    shadow.end("shed", "quarantined")
    draft.write_shadow = shadow.write
    for _ in range(50):
        draft.dispatched(0.2)
        draft.attempt(WIDE, WIDE, 0.1, worst_error())
    draft.accepted(WIDE, WIDE, "half_open", ACCEPTED, 0.3)
    draft.first_chunk(0.4)
    usage = wire.Usage(
        finish_reason=wire.FINISH_REASON_ERROR, stop_string=WIDE, prompt_tokens=2**62, completion_tokens=2**62,
        cache_hit_tokens=2**62, times_preempted=2**62, miss_reason=wire.MISS_REASON_NO_BOUNDARY,
        timings=wire.Timings(queued=0.1, prefill=0.1, decode=0.1, total=0.1),
    )  # fmt: skip
    draft.finished(usage, 0.5)
    draft.failed(worst_error(), 0.6)
    size = draft.to_wire().ByteSize()
    assert MAX_RECEIPT_BYTES * 0.7 < size <= MAX_RECEIPT_BYTES
    assert refused_receipt(WIDE, worst_error(), 2**62).ByteSize() < MAX_RECEIPT_BYTES


@given(ASKS, opinions() | st.none(), st.text(max_size=500))
def test_any_receipt_is_small_and_names_its_request(ask: Request, thought: Distribution | None, message: str) -> None:
    draft = ReceiptDraft(ask, ask.arrival, 5)
    decision = POLICY.decide(ask, thought, DIGEST)
    draft.decided(decision, ask.arrival + 0.001)
    draft.failed(wire.Error(reason=wire.ERROR_REASON_NO_REPLICA, message=message), ask.arrival + 1)
    receipt = draft.to_wire()
    assert receipt.ByteSize() <= MAX_RECEIPT_BYTES
    assert (receipt.request_id, receipt.trace_id) == (ask.request_id, ask.trace.trace_id)
    assert (receipt.decision.why, receipt.decision.primary) == (decision.why, decision.primary)
    assert [(each.specialist, each.probability) for each in receipt.decision.distribution] == list(
        decision.distribution
    )


def test_a_receipt_describes_every_step() -> None:
    ask = validated_request(request_id="r1", session_id="s1", priority=7)
    draft = ReceiptDraft(ask, ask.arrival, 1234)
    draft.decided(POLICY.decide(ask, opinion(algo=0.8, debug=0.15), DIGEST), ask.arrival + 0.5)
    draft.dispatched(ask.arrival + 1)
    draft.attempt("algo", "algo/0", 0.25, wire.Error(reason=wire.ERROR_REASON_DRAINING, message="draining"))
    draft.dispatched(ask.arrival + 1.5)
    draft.accepted("algo", "algo/1", "closed", ACCEPTED, ask.arrival + 2)
    begun = draft.to_wire()
    draft.first_chunk(ask.arrival + 3)
    draft.finished(wire.Usage(finish_reason=wire.FINISH_REASON_STOP, completion_tokens=5), ask.arrival + 4)
    draft.attempt("algo", "algo/1", 2.5)
    receipt = draft.to_wire()
    timings = receipt.timings
    assert (timings.decided, timings.dispatched, timings.accepted, timings.first_chunk, timings.total) == (
        0.5,
        1,
        2,
        3,
        4,
    )
    assert (begun.timings.total, begun.timings.HasField("first_chunk"), begun.HasField("usage")) == (2, False, False)
    assert [(each.replica, each.reason) for each in receipt.attempts] == [
        ("algo/0", wire.ERROR_REASON_DRAINING),
        ("algo/1", wire.ERROR_REASON_UNSPECIFIED),
    ]
    assert (receipt.specialist, receipt.replica, receipt.breaker) == ("algo", "algo/1", "closed")
    assert receipt.lane == LANE
    assert (receipt.accepted.queue_position, receipt.accepted.seed, receipt.accepted.max_tokens) == (2, 11, 64)
    assert (receipt.priority, receipt.session_id, receipt.created_unix_ms) == (7, "s1", 1234)
    assert receipt.session_source == "session_id"
    assert receipt.usage.completion_tokens == 5 and not receipt.HasField("error")
    assert receipt.decision.source == wire.DECISION_SOURCE_CLASSIFIER


STEPS = st.one_of(
    st.builds(lambda why: ("planned", (wire.Between(why=why, instead_of="algo"),)), st.sampled_from(["", "so", WIDE])),
    st.builds(
        lambda specialist, is_spill, first: ("dispatched_to", (specialist, is_spill, first)),
        st.sampled_from(["algo", "stl", worst_decision().primary]),
        st.booleans(),
        st.sampled_from(["", "algo", WIDE]),
    ),
    st.just(("decided", (worst_decision(), 0.1))),
    st.just(("dispatched", (0.2,))),
    st.just(("accepted", ("algo", "algo/1", "closed", ACCEPTED, 0.3))),
    st.just(("failed", (worst_error(), 0.4))),
)


@given(st.lists(st.tuples(STEPS, st.sampled_from(["", "write_pending", "to_wire", "routed_event"])), max_size=8))
def test_a_draft_gives_the_same_receipt_at_any_time(steps: list[tuple[tuple[str, Any], str]]) -> None:
    late, early, between = (ReceiptDraft(worst_ask(), 0.0, 5) for _ in range(3))
    for (name, arguments), look in steps:
        for draft in (late, early, between):
            getattr(draft, name)(*arguments)
        early.write_pending()
        if look:
            getattr(between, look)()
    assert late.to_wire() == early.to_wire() == between.to_wire()
    assert late.routed_event() == early.routed_event() == between.routed_event()


@pytest.mark.parametrize("is_spill", [True, False])
def test_no_fallback_is_named_if_the_primary_answers_after_all(is_spill: bool) -> None:
    """The receipt names no fallback if escalation preferred the second choice, but the primary answered."""
    draft, primary = ReceiptDraft(worst_ask(), 0.0, 5), worst_decision().primary
    draft.decided(worst_decision(), 0.1)
    draft.planned(wire.Between(why="escalation", instead_of=primary, lead="stl"))
    draft.dispatched_to("stl", False, "")
    assert draft.to_wire().between.instead_of
    draft.dispatched_to(primary, is_spill, "" if is_spill else "stl")
    between = draft.to_wire().between
    assert (between.instead_of, between.spilled, between.lead) == ("", False, "stl")


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"force_specialists": ["algo"]}, wire.DECISION_SOURCE_FORCED),
        ({"intent": "build-fix"}, wire.DECISION_SOURCE_INTENT),
        ({"prompt": "thread pool"}, wire.DECISION_SOURCE_RULE),
        ({"exclude_specialists": list(NAMES)}, wire.DECISION_SOURCE_UNSPECIFIED),
    ],
)
def test_decision_source_is_on_the_wire(fields: dict[str, object], source: int) -> None:
    assert decision_to_wire(POLICY.decide(validated_request(**fields), None, "")).source == source
