"""Receipts as a router writes them. Every name in them is unique."""

from itertools import count
from typing import Any

from hypothesis import strategies as st

from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import operator_pb2 as wire
from router.receipts import _MAX_ATTEMPTS

REASONS = [each for each in error_pb2.ErrorReason.values() if each != error_pb2.ERROR_REASON_UNSPECIFIED]
SECONDS = st.floats(0.0, 30.0)
COUNTS = st.integers(0, 5000)
SHADOW_ENDS = (
    *(("", ""), ("sent", ""), ("answered", ""), ("shed", "no_budget"), ("shed", "no_replica")),
    *(("shed", "no_choice"), ("shed", "too_long"), ("failed", "timed_out")),
)
BREAKERS = ("closed", "shadow_only", "recovering", "held_open", "held_closed")


class Names:
    """Generates unique names, none of which contains another."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self, kind: str) -> str:
        return f"{kind}x{next(self._numbers)}x"


@st.composite
def explanations(draw: st.DrawFn) -> wire.Story:
    names = Names()
    receipt = wire.Receipt(
        request_id=names("request"),
        created_unix_ms=draw(st.integers(1_600_000_000_000, 1_900_000_000_000)),
        priority=draw(st.integers(0, 9)),
        trace_id=draw(st.sampled_from(["", names("trace")])),
    )
    source = draw(st.sampled_from(["none", "session_id", "metadata", "user"]))
    receipt.session_source = source
    receipt.session_id = names("session") if source in ("session_id", "metadata") else ""
    if draw(st.booleans()):
        receipt.caller, receipt.tenant = names("key"), names("tenant")
    _decide(draw, receipt, names)
    if receipt.decision.primary:
        _stand_between(draw, receipt, names)
    asked = receipt.decision.primary and draw(st.booleans())
    if asked:
        _ask(draw, receipt, names)
    if not asked or (receipt.attempts and receipt.attempts[-1].reason):
        _fail(draw, receipt, names)
    _time(draw, receipt)
    return _behind(draw, receipt, names)


def _decide(draw: st.DrawFn, receipt: Any, names: Names) -> None:
    decision = receipt.decision
    decision.source = draw(st.sampled_from(wire.DecisionSource.values()))
    decision.why = names("why")
    decision.decided_by = names("rule")
    decision.notes.extend(names("note") for _ in range(draw(st.integers(0, 2))))
    if decision.source != wire.DECISION_SOURCE_UNSPECIFIED:
        decision.primary = names("primary")
        decision.second_choice = draw(st.sampled_from(["", names("second")]))
        decision.task, decision.intent = names("task"), draw(st.sampled_from(["", names("intent")]))
        decision.max_tokens = draw(COUNTS)
    if draw(st.booleans()):
        sure = draw(st.floats(0, 1))
        decision.confidence = sure
        decision.distribution.add(specialist=decision.primary or "reject", probability=sure)
        decision.distribution.add(specialist=names("other"), probability=1 - sure)


def _stand_between(draw: st.DrawFn, receipt: Any, names: Names) -> None:
    between = receipt.between
    between.correctness = draw(st.sampled_from(BREAKERS))
    between.shadow_threshold = draw(st.sampled_from([0.0, 0.5, 0.75]))
    between.priority_floor = draw(st.integers(0, 9))
    between.knobs_by = draw(st.sampled_from(["", "operator", "escalation"]))
    between.lane = draw(st.sampled_from(["", "serving", "fresh"]))
    if draw(st.booleans()):
        between.instead_of, between.why = receipt.decision.primary, names("because")
    if draw(st.booleans()):
        why = draw(st.sampled_from(["low_confidence", "rule_routed", "fresh_lane", "demoted"]))
        between.shadow.CopyFrom(wire.ShadowOrder(specialist=names("shadow"), adapters=[names("lora")], why=why))
        outcome, reason = draw(st.sampled_from(SHADOW_ENDS))
        between.shadow.outcome, between.shadow.reason = outcome, reason
        if outcome in ("sent", "answered", "failed") or reason == "too_long":
            between.shadow.replica = names("replica")


def _ask(draw: st.DrawFn, receipt: Any, names: Names) -> None:
    """Draw failed attempts and, possibly, an attempt that answered."""
    failures = draw(st.integers(0, _MAX_ATTEMPTS - 1))
    for _ in range(failures):
        name = draw(st.sampled_from([receipt.decision.primary, receipt.decision.second_choice or names("else")]))
        receipt.attempts.add(
            specialist=name,
            replica=names("replica"),
            reason=draw(st.sampled_from(REASONS)),
            message=names("said"),
            seconds=draw(SECONDS),
            began=draw(SECONDS),
        )
    if failures and draw(st.booleans()):
        return
    receipt.specialist = receipt.decision.second_choice or receipt.decision.primary
    receipt.replica = names("replica")
    receipt.attempts.add(specialist=receipt.specialist, replica=receipt.replica, seconds=draw(SECONDS))
    receipt.between.spilled = bool(receipt.decision.second_choice) and draw(st.booleans())
    receipt.breaker = "closed"
    accepted = receipt.accepted
    accepted.prompt_tokens, accepted.queue_position = draw(COUNTS), draw(st.integers(0, 99))
    accepted.max_tokens, accepted.seed = draw(COUNTS), draw(COUNTS)
    if draw(st.booleans()):
        accepted.forecast.wait, accepted.forecast.total = draw(SECONDS), draw(SECONDS)
        accepted.forecast.displaced, accepted.forecast.set_aside = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        if draw(st.booleans()):
            accepted.forecast.slack = draw(SECONDS)
    _use(draw, receipt, names)


def _use(draw: st.DrawFn, receipt: Any, names: Names) -> None:
    usage = receipt.usage
    usage.finish_reason = draw(
        st.sampled_from([specialist_pb2.FINISH_REASON_STOP, specialist_pb2.FINISH_REASON_LENGTH])
    )
    usage.prompt_tokens = receipt.accepted.prompt_tokens
    usage.cache_hit_tokens = draw(st.integers(0, usage.prompt_tokens))
    usage.miss_reason = draw(st.sampled_from(specialist_pb2.MissReason.values()))
    usage.completion_tokens, usage.times_preempted = draw(COUNTS), draw(st.integers(0, 4))
    usage.timings.queued, usage.timings.total = draw(SECONDS), draw(SECONDS)
    if usage.times_preempted and draw(st.booleans()):
        usage.timings.preempted = draw(SECONDS)
    if usage.finish_reason == specialist_pb2.FINISH_REASON_STOP and draw(st.booleans()):
        usage.stop_string = names("stop")
    if draw(st.booleans()):
        outcome = draw(st.sampled_from(["passed", "failed", "skipped"]))
        receipt.validation.CopyFrom(
            wire.Validation(verifier=names("verifier"), outcome=outcome, detail=names("detail"))
        )


def _fail(draw: st.DrawFn, receipt: Any, names: Names) -> None:
    receipt.error.CopyFrom(error_pb2.Error(reason=draw(st.sampled_from(REASONS)), message=names("error")))
    if draw(st.booleans()):
        receipt.error.field, receipt.error.limit, receipt.error.value = names("field"), names("limit"), names("value")
    if draw(st.booleans()):
        receipt.error.retry_after_ms = draw(st.integers(0, 60_000))


def _time(draw: st.DrawFn, receipt: Any) -> None:
    """Draw increasing timings, up to the last stage that the request reached."""
    marks = sorted(draw(st.lists(SECONDS, min_size=5, max_size=5)))
    timings = receipt.timings
    if receipt.decision.why:
        timings.decided = marks[0]
    if receipt.attempts:
        timings.dispatched = marks[1]
    if receipt.HasField("accepted"):
        timings.accepted = marks[2]
        if receipt.usage.completion_tokens:
            timings.first_chunk = marks[3]
    timings.total = marks[4]


def _behind(draw: st.DrawFn, receipt: Any, names: Names) -> wire.Story:
    explanation = wire.Story(receipt=receipt, judged=draw(st.sampled_from(["", "passed", "failed"])))
    if receipt.between.HasField("shadow") and draw(st.booleans()):
        explanation.comparison.CopyFrom(
            wire.Comparison(
                primary=receipt.decision.primary,
                shadow=receipt.between.shadow.specialist,
                primary_outcome="passed",
                shadow_outcome="failed",
                agreed=draw(st.booleans()),
                similarity=draw(st.floats(0, 1)),
            )
        )
    for _ in range(draw(st.integers(0, 2))):
        explanation.changes.add(
            who=names("who"),
            what="set_knob",
            subject=names("subject"),
            why=names("reason"),
            before="0",
            after=names("after"),
            at_unix_ms=receipt.created_unix_ms - draw(st.integers(-5000, 3_600_000)),
        )
    return explanation
