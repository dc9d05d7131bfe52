"""The cost of traces: the same requests with tracing off and with every request traced."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import grpc
import uvloop
from grpc import aio
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from bench.processes import HOST, ROOT, SiteFailed, Started, cpu_seconds, replica_and_router
from bench.router_site import ROUTER, Ask, at_once, infer_request
from bench.timing import Board, Figure, Subject, Targets, Work, interleave
from octet.telemetry.otlp import to_sdk_span
from octet.telemetry.requests import ClockAnchor, Span, new_span_id
from octet.v1 import inference_pb2 as wire
from router.observe.traces import build_spans
from router.request import TraceContext
from simulation.results import BenchRecord
from specialist.engines.sim.engine import CostModel, cost_model_to_json

NAME = "talker"


@contextmanager
def collecting(received: list[bytes]) -> Iterator[str]:
    """Run a collector of traces that appends each message to `received`. Yield its address."""

    def receive(raw: bytes, _: object) -> bytes:
        received.append(raw)
        return b""

    server = grpc.server(ThreadPoolExecutor(2))
    export = {"Export": grpc.unary_unary_rpc_method_handler(receive)}
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, export),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield f"http://{HOST}:{port}"
    finally:
        server.stop(0)


_REQUESTS = 640
_BATCH = 64
_CASE = "the router's part of one request"


def drawing_records(runs: int) -> list[BenchRecord]:
    new_id, anchor = partial(new_span_id, secrets.token_bytes), ClockAnchor(0.0, time.time_ns())
    resource = Resource({"service.name": "octet-router"})
    requests = [_ended(str(number)) for number in range(_REQUESTS)]

    def draw() -> list[list[Span]]:
        return [build_spans(*each, anchor, new_id) for each in requests]

    def ready_to_write() -> Work:
        traces = draw()
        batches = [[span for trace in traces[at : at + _BATCH] for span in trace] for at in range(0, _REQUESTS, _BATCH)]
        return lambda: [encode_spans([to_sdk_span(s, resource) for s in each]).SerializeToString() for each in batches]

    subjects = [
        Subject(_CASE, "spans drawn", "µs", lambda: draw, _REQUESTS),
        Subject(_CASE, "spans written out", "µs", ready_to_write, _REQUESTS),
    ]
    return interleave(_BENCH, subjects, runs).records()


def _ended(request_id: str) -> tuple[TraceContext, float, wire.Receipt]:
    """Return the trace, the arrival and the receipt of a typical request, which one replica answered."""
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
    trace = TraceContext(secrets.token_hex(16), "", 1, "", secrets.token_hex(8), recorded=True)
    return trace, 1.0, receipt


OFF, ON, BESIDE = "off", "on", "beside"
_BENCH = "tracing"
_THROUGHPUT, _CPU = "throughput", "CPU a thousand tokens"


@dataclass(frozen=True, slots=True)
class TracedLoad:
    case: str
    streams: int  # streams at the same time
    requests: int  # of each stream, per round
    tokens: int


MODEL = TracedLoad("a real model, 4 streams of 48 tokens", 4, 1, 48)
SIM = TracedLoad("a simulated model that takes no time, 16 streams of 16 tokens", 16, 6, 16)
TARGETS: Targets = {
    (MODEL.case, f"{ON} over {OFF}, {_THROUGHPUT}"): ">= 0.98 x",
    (MODEL.case, f"{ON} over {OFF}, {_CPU}"): "<= 1.02 x",
}


class TracedRound(NamedTuple):
    throughput: float  # tokens per second
    cpu: float  # CPU seconds of both processes per thousand tokens


def measure(load: TracedLoad, engine: Sequence[str], runs: int, beside: Path | None) -> list[BenchRecord]:
    """Measure the load with traces off and on. `engine` holds options of `octet specialist`; if `beside` is given, that
    checkout of this project is measured too."""
    board, received = Board(_BENCH), list[bytes]()
    with collecting(received) as collector, ExitStack() as stack:

        def start(more: Sequence[str] = (), checkout: Path = ROOT) -> tuple[Started, Started]:
            return stack.enter_context(replica_and_router(NAME, engine, more=more, checkout=checkout))

        sites = {OFF: start(), ON: start(["--otlp", collector])}
        if beside is not None:
            sites[BESIDE] = start(checkout=beside)
        for number in range(runs + 1):
            order = Random(number).sample(list(sites), len(sites))
            found = {way: uvloop.run(_round(*sites[way], load, number)) for way in order}
            if number:
                board.add(number, load.case, "octet", compute_figures(found))
        if not received:
            raise SiteFailed("no trace arrived at the collector")
    return board.records()


async def _round(replica: Started, router: Started, load: TracedLoad, number: int) -> TracedRound:
    async with aio.insecure_channel(router.address) as channel:
        asks = [_ask(channel, load, f"tell me about number {number}, part {n}") for n in range(load.streams)]
        before = cpu_seconds(router.pid) + cpu_seconds(replica.pid)
        brought = [await at_once(asks) for _ in range(load.requests)]
        cpu = cpu_seconds(router.pid) + cpu_seconds(replica.pid) - before
    tokens = load.streams * load.requests * load.tokens
    return TracedRound(tokens / sum(seconds for _, seconds in brought), cpu / tokens * 1000)


def _ask(channel: Any, load: TracedLoad, prompt: str) -> Ask:
    return partial(channel.unary_stream(ROUTER), infer_request(prompt, load.tokens, NAME))


def compute_figures(found: Mapping[str, TracedRound]) -> Iterator[Figure]:
    """Yield the figures of one round, and the ratios between sites. `found` has the measured values by site."""
    for index, metric, unit in ((0, _THROUGHPUT, "tok/s"), (1, _CPU, "s")):
        for way in (OFF, ON, BESIDE):
            if way in found:
                yield Figure(f"{way}, {metric}", unit, found[way][index])
        for way, base in ((ON, OFF), (OFF, BESIDE)):
            if base in found:
                yield Figure(f"{way} over {base}, {metric}", "x", found[way][index] / found[base][index])


def measure_tracing(runs: int, model: Path | None, beside: Path | None) -> list[BenchRecord]:
    chosen = [] if model is None else ["--model", str(model)]
    with NamedTemporaryFile("w", suffix=".json") as free:
        free.write(cost_model_to_json(CostModel(*(0.0,) * 8), {"from": "bench.tracing"}))
        free.flush()
        return [
            *drawing_records(runs),
            *measure(MODEL, [*chosen, "--threads", "1"], runs, beside),
            *measure(SIM, ["--engine", "sim", "--cost-model", free.name], runs, beside),
        ]
