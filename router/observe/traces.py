"""Spans of requests, shadows and verdicts, built from receipts. Attributes use OpenTelemetry's names for generative
models where they exist, otherwise Octet's own. A span contains no text of a prompt or an answer."""

from collections.abc import Callable
from functools import partial

from octet.clock import Clock
from octet.rpc.messages import enum_labels
from octet.telemetry.requests import AttributeValue, ClockAnchor, Span, new_span_id
from octet.telemetry.trace_export import SpanExporter
from octet.v1 import inference_pb2 as wire
from router.observe.observers import RequestObserver
from router.quality.evaluation import TracedVerdict
from router.quality.shadow_copy import ShadowStream
from router.request import Request, TraceContext

PROVIDER = "octet"
OPERATION = "chat"
ADMITTED = "admitted"
REQUEST_SPAN, ROUTE_SPAN, PICK_SPAN, VERIFY_SPAN = "octet.front_door", "octet.route", "octet.pick", "octet.verify"
Attributes = dict[str, AttributeValue]
_REASON_NAMES, _SOURCE_NAMES, _FINISH_NAMES = (
    {**enum_labels(enum.DESCRIPTOR), 0: ""} for enum in (wire.ErrorReason, wire.DecisionSource, wire.FinishReason)
)


class RequestTracer(RequestObserver):
    """Passes the spans of a traced request to the exporter when the request has ended, and the spans of its shadow and
    of late verdicts when those end. Spans are built on the exporter's thread."""

    def __init__(
        self, exporter: SpanExporter, clock: Clock, wall_ns: Callable[[], int], draw: Callable[[int], bytes]
    ) -> None:
        self._exporter = exporter
        self._clock = clock
        self._wall_ns = wall_ns
        self._new_id = partial(new_span_id, draw)

    def ended(self, request: Request, receipt: wire.Receipt) -> None:
        if request.trace.recorded:
            trace, arrival, anchor = request.trace, request.arrival, self._anchor()
            self._exporter.put(lambda: build_spans(trace, arrival, receipt, anchor, self._new_id))

    def shadow_ended(self, shadow: ShadowStream) -> None:
        anchor = self._anchor()
        self._exporter.put(lambda: [_shadow_span(shadow, anchor)])

    def answer_verified(self, verdict: TracedVerdict) -> None:
        if verdict.receipt.span_id:
            anchor = self._anchor()
            self._exporter.put(lambda: [_verdict_span(verdict, anchor, self._new_id())])

    def _anchor(self) -> ClockAnchor:
        return ClockAnchor(self._clock.now(), self._wall_ns())


def build_spans(
    trace: TraceContext, arrival: float, receipt: wire.Receipt, anchor: ClockAnchor, new_id: Callable[[], str]
) -> list[Span]:
    """Return the span of the whole request, then those of its stages. `arrival` is on the router's clock."""

    def at(seconds: float) -> int:
        return anchor.ns(arrival + seconds)

    def stage(name: str, start: float, end: float, attributes: Attributes, error: str | None = None) -> Span:
        ids = (trace.trace_id, new_id(), trace.span_id)
        return Span(name, *ids, at(start), at(end), attributes, error=error, state=trace.state)

    timings, decision = receipt.timings, receipt.decision
    error = error_reason(receipt.error.reason) or None
    ids = (trace.trace_id, trace.span_id, trace.parent_id)
    span = partial(Span, REQUEST_SPAN, *ids, at(0.0), at(timings.total), request_attributes(receipt), kind="server")
    spans = [span(error=error, state=trace.state, is_remote=bool(trace.parent_id))]
    # the stage in which the request ended gets the request's error
    if not timings.HasField("decided"):
        spans.append(stage(ROUTE_SPAN, 0.0, timings.total, {}, error))
    else:
        route_error = error if not decision.primary else None
        spans.append(stage(ROUTE_SPAN, 0.0, timings.decided, route_attributes(decision), route_error))
        if timings.HasField("dispatched"):
            spans.append(stage(PICK_SPAN, timings.decided, timings.dispatched, {}))
        elif decision.primary:
            spans.append(stage(PICK_SPAN, timings.decided, timings.total, {}, error))
    for attempt in receipt.attempts:
        spans.append(
            Span(
                f"{OPERATION} {attempt.specialist}",
                *(trace.trace_id, attempt.span_id or new_id(), trace.span_id),
                *(at(attempt.began), at(attempt.began + attempt.seconds)),
                attempt_attributes(attempt, receipt),
                kind="client",
                error=error_reason(attempt.reason) or None,
                state=trace.state,
            )
        )
    if receipt.HasField("validation") and timings.HasField("answered"):
        verdict: Attributes = {
            "octet.verifier": receipt.validation.verifier,
            "octet.outcome": receipt.validation.outcome,
        }
        spans.append(stage(VERIFY_SPAN, timings.answered, timings.total, verdict))
    return spans


def request_attributes(receipt: wire.Receipt) -> Attributes:
    decision, between = receipt.decision, receipt.between
    found: Attributes = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": decision.primary,
        "gen_ai.response.model": receipt.specialist,
        "octet.request_id": receipt.request_id,
        "octet.specialist": receipt.specialist or decision.primary,
        "octet.shadow.specialist": between.shadow.specialist if between.shadow.replica else "",
        "octet.adapter.digests": tuple(receipt.lane.adapter_digests),
        "octet.admission.result": ADMITTED if receipt.HasField("accepted") else error_reason(receipt.error.reason),
        "octet.breaker": receipt.breaker,
        "octet.correctness": between.correctness,
        "octet.lane": between.lane,
        "octet.instead_of": between.instead_of,
        "error.type": error_reason(receipt.error.reason),
    }
    found = {name: value for name, value in found.items() if value}
    found["octet.priority"] = receipt.priority
    if between.spilled:
        found["octet.spilled"] = True
    return found | usage_attributes(receipt.usage) if receipt.HasField("usage") else found


def route_attributes(decision: wire.Decision) -> Attributes:
    found: Attributes = {
        "octet.decision.source": _SOURCE_NAMES.get(decision.source, ""),
        "octet.decision.by": decision.decided_by,
        "octet.primary": decision.primary,
        "octet.second_choice": decision.second_choice,
        "octet.intent": decision.intent,
        "octet.task": decision.task,
    }
    found = {name: value for name, value in found.items() if value}
    if decision.HasField("confidence"):
        found["octet.decision.confidence"] = decision.confidence
    return found


def attempt_attributes(attempt: wire.Attempt, receipt: wire.Receipt) -> Attributes:
    found = _call_attributes(attempt.specialist, attempt.replica)
    if attempt.reason != wire.ERROR_REASON_UNSPECIFIED:
        return {**found, "error.type": error_reason(attempt.reason)}
    if receipt.HasField("usage") and attempt.replica == receipt.replica:
        found |= usage_attributes(receipt.usage)
    return found


def _call_attributes(specialist: str, replica: str) -> Attributes:
    return {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": specialist,
        "octet.specialist": specialist,
        "octet.replica": replica,
    }


def usage_attributes(usage: wire.Usage) -> Attributes:
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_hit_tokens,
        "gen_ai.response.finish_reasons": (_FINISH_NAMES.get(usage.finish_reason, ""),),
    }
    if usage.times_preempted:
        found["octet.times_preempted"] = usage.times_preempted
    return found


def error_reason(number: int) -> str:
    """Return the name of an error reason; "" for no error, the number if this router does not know the reason."""
    return _REASON_NAMES.get(number, str(number))


def _shadow_span(shadow: ShadowStream, anchor: ClockAnchor) -> Span:
    specialist = shadow.order.candidate.specialist
    attributes = _call_attributes(specialist, shadow.replica.name) | {
        "octet.shadow": True,
        "octet.shadow.why": shadow.order.why,
        "octet.shadow.ending": shadow.ordered.ending or "",
        "octet.shadow.reason": shadow.ordered.reason,
    }
    if shadow.ordered.ending == "answered":
        attributes |= usage_attributes(shadow.usage)
    ids = (shadow.primary.trace_id, shadow.span_id, shadow.primary.span_id)
    times = (anchor.ns(shadow.began), anchor.ns(shadow.ended))
    error = "failed" if shadow.ordered.ending == "failed" else None
    return Span(f"{OPERATION} {specialist}", *ids, *times, attributes, kind="client", error=error)


def _verdict_span(verdict: TracedVerdict, anchor: ClockAnchor, span_id: str) -> Span:
    receipt = verdict.receipt
    attributes: Attributes = {
        "octet.specialist": verdict.specialist,
        "octet.verifier": verdict.verifier,
        "octet.outcome": verdict.outcome,
        "octet.afterwards": True,
        "octet.shadow": verdict.is_shadow,
    }
    began, ended = anchor.ns(verdict.began), anchor.ns(verdict.ended)
    return Span(VERIFY_SPAN, receipt.trace_id, span_id, receipt.span_id, began, ended, attributes)
