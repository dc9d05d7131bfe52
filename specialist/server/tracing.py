"""Spans of a request inside the replica: admission, queue, prefill and decode, built after the request has ended."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from octet.clock import Clock
from octet.rpc.refusal import Refusal
from octet.telemetry import requests
from octet.telemetry.requests import AttributeValue, ClockAnchor, Span, TraceParent, new_span_id
from octet.telemetry.trace_export import SpanExporter
from octet.v1 import specialist_pb2 as wire
from specialist.server.served_request import RequestUsage, ServedRequest

GENERATE, ADMISSION = "octet.generate", "octet.admission"
QUEUE, PREFILL, DECODE = "octet.queue", "octet.prefill", "octet.decode"
_MAX_STATE_BYTES = 512
_MAX_ID = 128
_ENGINE_DIED = "replica_failed"

_Attributes = dict[str, AttributeValue]


def read_trace_context(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[TraceParent | None, str]:
    """Return a call's first valid trace parent, and the trace state if that is printable ASCII and short."""
    parent: TraceParent | None = None
    state = ""
    for key, value in metadata:
        if key == requests.TRACEPARENT and parent is None and isinstance(value, str):
            parent = requests.parse_traceparent(value)
        elif key == requests.TRACESTATE and isinstance(value, str) and value.isascii() and value.isprintable():
            state = state or value
    return parent, state if parent is not None and len(state) <= _MAX_STATE_BYTES else ""


@dataclass(slots=True)
class ReplicaTrace:
    """One traced call. Times are on the replica's clock."""

    parent: TraceParent  # the caller's span
    state: str
    request_id: str  # the caller's id, not validated
    is_shadow: bool
    started_at: float
    admitted_at: float = 0.0
    served: ServedRequest | None = None  # set once the engine has the request and reports how it ends


class ReplicaTracing:
    """Exports the spans of traced calls. Used only on the event loop; the exporter's thread builds the spans."""

    def __init__(
        self, exporter: SpanExporter, clock: Clock, wall_ns: Callable[[], int], draw: Callable[[int], bytes]
    ) -> None:
        """`wall_ns` returns nanoseconds since 1970; `draw(n)` returns n random bytes."""
        self._exporter = exporter
        self._clock = clock
        self._wall_ns = wall_ns
        self._new_id = partial(new_span_id, draw)

    def record(self, trace: ReplicaTrace, end: RequestUsage | BaseException) -> None:
        """Export the spans of an ended call. They record an error unless it ended normally."""
        usage, error = (None, _error_type(end)) if isinstance(end, BaseException) else (end, _failure(end))
        now = self._clock.now()
        spans = _RequestSpans(trace, usage, error, now, ClockAnchor(now, self._wall_ns()), self._new_id)
        self._exporter.put(spans.build)


@dataclass(frozen=True, slots=True)
class _RequestSpans:
    trace: ReplicaTrace
    usage: RequestUsage | None  # None if the request did not run, or if its progress is unknown
    error: str | None
    now: float
    anchor: ClockAnchor
    new_id: Callable[[], str]

    def build(self) -> list[Span]:
        parent, span_id = self.trace.parent, self.new_id()
        start, end = self.anchor.ns(self.trace.started_at), self.anchor.ns(self.now)
        root = Span(GENERATE, parent.trace_id, span_id, parent.span_id, start, end, self._root_attributes())
        root = replace(root, kind="server", error=self.error, state=self.trace.state, is_remote=True)
        return [root, *self._phases(span_id)]

    def _root_attributes(self) -> _Attributes:
        trace, usage = self.trace, self.usage
        attributes: _Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "octet"}
        if trace.request_id:
            attributes["octet.request_id"] = trace.request_id[:_MAX_ID]
        if trace.is_shadow:
            attributes["octet.shadow"] = True
        if self.error is not None:
            attributes["error.type"] = self.error
        if trace.served is not None:
            request = trace.served.request
            attributes |= {
                "gen_ai.request.model": request.lane.specialist,
                "gen_ai.response.model": request.lane.specialist,
                "octet.specialist": request.lane.specialist,
                "octet.revision": request.lane.revision,
                "octet.adapter.digests": request.lane.adapters,
                "gen_ai.request.max_tokens": request.max_tokens,
            }
        if usage is not None:
            attributes |= {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_hit_tokens,
                "gen_ai.response.finish_reasons": (usage.reason,),
                "octet.times_preempted": usage.times_preempted,
            }
        return attributes

    def _phases(self, parent_id: str) -> Iterator[Span]:
        """Yield a span for each phase, in order. The last one carries the error. If the engine died, only the root span
        does, because it is unknown how far the request got."""
        trace, served, usage = self.trace, self.trace.served, self.usage
        if served is None or (usage is None and self.error != _ENGINE_DIED):
            result: _Attributes = {"octet.admission.result": self.error or "admitted"}
            yield self._phase(parent_id, ADMISSION, trace.started_at, self.now, result, is_last=True)
            return
        admission: _Attributes = {"octet.admission.result": "admitted"}
        outlook = None if served.admission is None else served.admission.outlook
        if outlook is not None:
            times = {"wait": outlook.wait, "first": outlook.first, "total": outlook.total}
            admission |= {f"octet.forecast.{name}": seconds for name, seconds in times.items()}
        yield self._phase(parent_id, ADMISSION, trace.started_at, trace.admitted_at, admission)
        if usage is None or self.error == _ENGINE_DIED:
            return
        moments = [trace.admitted_at]
        for seconds in (usage.queued, usage.prefill, usage.decode):
            if seconds is None:
                break
            end = served.request.arrival + seconds if len(moments) == 1 else moments[-1] + seconds
            moments.append(max(moments[-1], end))
        phases = _phase_attributes(usage)[: len(moments)]
        for index, (name, attributes) in enumerate(phases):
            end = moments[index + 1] if index + 1 < len(moments) else self.now
            is_last = index + 1 == len(phases)
            yield self._phase(parent_id, name, moments[index], end, attributes, is_last=is_last)

    def _phase(
        self, parent_id: str, name: str, start: float, end: float, attributes: _Attributes, *, is_last: bool = False
    ) -> Span:
        error, state = self.error if is_last else None, self.trace.state
        moments = self.anchor.ns(start), self.anchor.ns(end)
        ids = self.trace.parent.trace_id, self.new_id(), parent_id
        return Span(name, *ids, *moments, attributes, error=error, state=state)


def _phase_attributes(usage: RequestUsage) -> list[tuple[str, _Attributes]]:
    prefill: _Attributes = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "octet.cache_hit_tokens": usage.cache_hit_tokens,
    }
    if usage.miss_reason:
        prefill["octet.miss_reason"] = usage.miss_reason
    decode: _Attributes = {
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "octet.times_preempted": usage.times_preempted,
    }
    return [(QUEUE, {}), (PREFILL, prefill), (DECODE, decode)]


def _failure(usage: RequestUsage) -> str | None:
    return None if usage.reason in ("stop", "length") else usage.reason


def _error_type(error: BaseException) -> str:
    if isinstance(error, Refusal):
        return str(wire.ErrorReason.Name(error.error.reason)).removeprefix("ERROR_REASON_").lower()
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"
