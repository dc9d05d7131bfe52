"""The replica's part of a trace: admission, queue, prefill and decode of a request, drawn when it has ended."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octet.clock import Clock
from octet.rpc.refusal import Refusal
from octet.telemetry.outbox import Outbox
from octet.telemetry.span import Anchor, Span, SpanIds, Value
from octet.v1 import specialist_pb2 as wire
from specialist.service.job import Job, Usage
from specialist.service.traced import Traced

GENERATE, ADMISSION, QUEUE, PREFILL, DECODE = (
    "octet.generate",
    "octet.admission",
    "octet.queue",
    "octet.prefill",
    "octet.decode",
)
_PHASES = (QUEUE, PREFILL, DECODE)
_ID = 128
_WELL = ("stop", "length")
_DIED = "replica_failed"
"""What the engine says of whatever it had, when it dies."""


def resource_of(specialist: str, instance: str) -> dict[str, str]:
    """Who sends them, by OpenTelemetry's names."""
    return {"service.name": "octet-replica", "service.instance.id": instance, "octet.specialist": specialist}


class Tracing:
    """Belongs to the event loop; what takes longer than some microseconds is left to the outbox."""

    def __init__(self, outbox: Outbox, clock: Clock, wall_ns: Callable[[], int], draw: Callable[[int], bytes]) -> None:
        """`wall_ns` is nanoseconds since 1970; `draw(n)` gives n random bytes."""
        self._outbox = outbox
        self._clock = clock
        self._wall_ns = wall_ns
        self._ids = SpanIds(draw)

    def turned_away(self, traced: Traced, error: BaseException) -> None:
        """It never reached the engine."""
        self._tell(traced, None, _why(error))

    def ended(self, traced: Traced, news: Usage | Refusal) -> None:
        """The engine has said its last word of it."""
        if isinstance(news, Refusal):
            self._tell(traced, None, _why(news))
        else:
            self._tell(traced, news, None if news.reason in _WELL else news.reason)

    def _tell(self, traced: Traced, usage: Usage | None, error: str | None) -> None:
        now = self._clock.now()
        drawing = _Drawing(traced, usage, error, now, Anchor(now, self._wall_ns()), self._ids.new)
        self._outbox.put(drawing.spans)


@dataclass(frozen=True, slots=True)
class _Drawing:
    traced: Traced
    usage: Usage | None
    """None: it never came to run, or nobody knows."""
    error: str | None
    now: float
    anchor: Anchor
    new_id: Callable[[], str]

    def spans(self) -> list[Span]:
        own_id = self.new_id()
        return [self._whole(own_id), *self._stages(own_id)]

    def _whole(self, own_id: str) -> Span:
        traced = self.traced
        parent = traced.parent
        return Span(
            GENERATE,
            parent.trace_id,
            own_id,
            parent.span_id,
            self.anchor.ns(traced.began),
            self.anchor.ns(self.now),
            self._attributes(),
            kind="server",
            error=self.error,
            state=traced.state,
            is_remote=True,
        )

    def _attributes(self) -> dict[str, Value]:
        traced, usage = self.traced, self.usage
        said: dict[str, Value] = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "octet"}
        if traced.request_id:
            said["octet.request_id"] = traced.request_id[:_ID]
        if traced.is_shadow:
            said["octet.shadow"] = True
        if self.error is not None:
            said["error.type"] = self.error
        if traced.job is not None:
            said |= _lane_attributes(traced.job)
        return said if usage is None else said | _usage_attributes(usage)

    def _stages(self, own_id: str) -> Iterator[Span]:
        """One after the other; the last one it came to has the error. Where the engine died under it, nobody knows how
        far it had come: the whole has the error then."""
        traced, usage = self.traced, self.usage
        if traced.job is not None and self.error == _DIED:
            yield self._stage(own_id, ADMISSION, traced.began, traced.decided, _admission_attributes(traced.job))
            return
        if traced.job is None or usage is None:
            said: dict[str, Value] = {"octet.admission.result": self.error or "admitted"}
            yield self._stage(own_id, ADMISSION, traced.began, self.now, said, is_last=True)
            return
        yield self._stage(own_id, ADMISSION, traced.began, traced.decided, _admission_attributes(traced.job))
        arrival = traced.job.request.arrival
        moments = [traced.decided]
        for seconds in (usage.queued, usage.prefill, usage.decode):
            if seconds is None:
                break
            moments.append(max(moments[-1], arrival + seconds if len(moments) == 1 else moments[-1] + seconds))
        for place, (name, attributes) in enumerate(_phases(usage)):
            if place < len(moments):
                is_last = place + 1 == min(len(moments), len(_PHASES))
                end = moments[place + 1] if place + 1 < len(moments) else self.now
                yield self._stage(own_id, name, moments[place], end, attributes, is_last=is_last)

    def _stage(
        self,
        own_id: str,
        name: str,
        start: float,
        end: float,
        attributes: dict[str, Value] | None = None,
        *,
        is_last: bool = False,
    ) -> Span:
        return Span(
            name,
            self.traced.parent.trace_id,
            self.new_id(),
            own_id,
            self.anchor.ns(start),
            self.anchor.ns(end),
            attributes or {},
            error=self.error if is_last else None,
            state=self.traced.state,
        )


def _phases(usage: Usage) -> list[tuple[str, dict[str, Value]]]:
    prefill: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "octet.cache_hit_tokens": usage.cache_hit_tokens,
    }
    if usage.miss_reason:
        prefill["octet.miss_reason"] = usage.miss_reason
    decode: dict[str, Value] = {
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "octet.times_preempted": usage.times_preempted,
    }
    return [(QUEUE, {}), (PREFILL, prefill), (DECODE, decode)]


def _lane_attributes(job: Job) -> dict[str, Value]:
    lane = job.request.lane
    return {
        "gen_ai.request.model": lane.specialist,
        "gen_ai.response.model": lane.specialist,
        "octet.specialist": lane.specialist,
        "octet.revision": lane.revision,
        "octet.adapter.digests": lane.adapters,
        "gen_ai.request.max_tokens": job.request.max_tokens,
    }


def _usage_attributes(usage: Usage) -> dict[str, Value]:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_hit_tokens,
        "gen_ai.response.finish_reasons": (usage.reason,),
        "octet.times_preempted": usage.times_preempted,
    }


def _admission_attributes(job: Job) -> dict[str, Value]:
    said: dict[str, Value] = {"octet.admission.result": "admitted"}
    outlook = None if job.admit is None else job.admit.outlook
    if outlook is not None:
        said |= {"octet.forecast.wait": outlook.wait, "octet.forecast.total": outlook.total}
    return said


def _why(error: BaseException) -> str:
    if isinstance(error, Refusal):
        return str(wire.ErrorReason.Name(error.error.reason)).removeprefix("ERROR_REASON_").lower()
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"
