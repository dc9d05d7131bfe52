"""What the router's part of one trace costs by itself: drawn from its receipt, and written out."""

import secrets
import time
from collections.abc import Iterator

from bench.measure import summary
from bench.record import Record
from octet.telemetry.otlp_wire import request_of, resource_of, scope_of
from octet.telemetry.span import Anchor, SpanIds
from octet.v1 import inference_pb2 as wire
from router.reception.ask import Trace
from router.trace.spans import Ended, spans_of

_REQUESTS = 640
_BATCH = 64
_CASE = "the router's part of one request"


def drawing_records(runs: int) -> Iterator[Record]:
    """CPU, of the thread that does it."""
    samples = [_round(number) for number in range(runs + 1)][1:]
    yield summary([drawn for drawn, _ in samples], "tracing", _CASE, "spans drawn", "µs", "octet")
    yield summary([written for _, written in samples], "tracing", _CASE, "spans written out", "µs", "octet")


def _round(number: int) -> tuple[float, float]:
    ids, anchor = SpanIds(secrets.token_bytes), Anchor(0.0, time.time_ns())
    head = resource_of({"service.name": "octet-router"}), scope_of("octet", "0")
    requests = [_ended(f"{number}-{each}") for each in range(_REQUESTS)]
    began = time.thread_time()
    stories = [spans_of(each, anchor, ids.new) for each in requests]
    drawn = time.thread_time()
    for at in range(0, _REQUESTS, _BATCH):
        request_of([span for story in stories[at : at + _BATCH] for span in story], *head)
    ended = time.thread_time()
    return (drawn - began) / _REQUESTS * 1e6, (ended - drawn) / _REQUESTS * 1e6


def _ended(request_id: str) -> Ended:
    """As most are: asked of one replica, and answered."""
    receipt = wire.Receipt(
        request_id=request_id,
        specialist="talker",
        replica="talker-0",
        breaker="closed",
        attempts=[wire.Attempt(specialist="talker", replica="talker-0", began=0.01, seconds=1.0, span_id="c" * 16)],
        accepted=wire.Accepted(prompt_tokens=40),
        usage=wire.Usage(finish_reason=wire.FINISH_REASON_STOP, prompt_tokens=40, completion_tokens=48),
        timings=wire.RouterTimings(decided=0.008, dispatched=0.01, accepted=0.02, answered=1.01, total=1.01),
        between=wire.Between(correctness="closed", lane="serving"),
    )
    receipt.decision.primary, receipt.decision.task = "talker", "code_generation"
    trace = Trace(secrets.token_hex(16), "", 1, "", secrets.token_hex(8), recorded=True)
    return Ended(trace, 1.0, receipt)
