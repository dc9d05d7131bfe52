"""What traces cost: the same requests without traces, with all of them, and on request."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile
from typing import Any

import grpc
import uvloop
from grpc import aio
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from bench.processes import ROOT, SiteFailed, replica_and_router
from bench.router import at_once
from bench.timing import Targets
from octet.telemetry.otlp import to_sdk_span
from octet.telemetry.requests import ClockAnchor, SpanIds
from octet.v1 import inference_pb2 as wire
from router.observe.traces import build_spans
from router.request import TraceContext
from simulation.results import BenchRecord, summary
from specialist.engines.sim.engine import CostModel, cost_model_to_json

NAME = "talker"


@dataclass(frozen=True, slots=True)
class TracedSite:
    address: str  # of the router
    pids: tuple[int, ...]

    def cpu(self) -> float:
        return sum(_cpu(pid) for pid in self.pids)


class Collector:
    def __init__(self) -> None:
        self.num_bytes = 0
        self.url = ""

    def take(self, raw: bytes, _: object) -> bytes:
        self.num_bytes += len(raw)
        return b""


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    export = {"Export": grpc.unary_unary_rpc_method_handler(collector.take)}
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, export),))
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0)


@contextmanager
def traced_site(engine: Sequence[str], otlp: str, checkout: Path | None = None) -> Iterator[TracedSite]:
    """`engine` holds options of `octet specialist`; `checkout` is another state of this project."""
    traces = ["--otlp", otlp] if otlp else []
    with replica_and_router(NAME, engine, more=traces, checkout=checkout or ROOT) as (replica, router):
        if router is not None:
            yield TracedSite(router.address, (router.pid, replica.pid))


def _cpu(pid: int) -> float:
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


_REQUESTS = 640
_BATCH = 64
_CASE = "the router's part of one request"


def drawing_records(runs: int) -> Iterator[BenchRecord]:
    samples = [_round(number) for number in range(runs + 1)][1:]
    yield summary([drawn for drawn, _ in samples], "tracing", _CASE, "spans drawn", "µs", "octet")
    yield summary([written for _, written in samples], "tracing", _CASE, "spans written out", "µs", "octet")


def _round(number: int) -> tuple[float, float]:
    ids, anchor = SpanIds(secrets.token_bytes), ClockAnchor(0.0, time.time_ns())
    resource = Resource({"service.name": "octet-router"})
    requests = [_ended(f"{number}-{each}") for each in range(_REQUESTS)]
    began = time.thread_time()
    stories = [build_spans(*each, anchor, ids.new) for each in requests]
    drawn = time.thread_time()
    for at in range(0, _REQUESTS, _BATCH):
        batch = [span for story in stories[at : at + _BATCH] for span in story]
        encode_spans([to_sdk_span(span, resource) for span in batch]).SerializeToString()
    ended = time.thread_time()
    return (drawn - began) / _REQUESTS * 1e6, (ended - drawn) / _REQUESTS * 1e6


def _ended(request_id: str) -> tuple[TraceContext, float, wire.Receipt]:
    """As most requests: one replica, answered."""
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
    streams: int  # at once
    requests: int  # of each stream, per round
    tokens: int


MODEL = TracedLoad("a real model, 4 streams of 48 tokens", 4, 1, 48)
SIM = TracedLoad("a simulated model that takes no time, 16 streams of 16 tokens", 16, 6, 16)
TARGETS: Targets = {
    (MODEL.case, f"{ON} over {OFF}, {_THROUGHPUT}"): ">= 0.98 x",
    (MODEL.case, f"{ON} over {OFF}, {_CPU}"): "<= 1.02 x",
}


@dataclass(frozen=True, slots=True)
class TracedRound:
    throughput: float  # per second
    cpu: float  # seconds of both processes per thousand tokens


def measure(load: TracedLoad, engine: Sequence[str], runs: int, beside: Path | None) -> list[BenchRecord]:
    with collecting() as collector, ExitStack() as stack:
        sites = {
            OFF: stack.enter_context(traced_site(engine, "")),
            ON: stack.enter_context(traced_site(engine, collector.url)),
        }
        if beside is not None:
            sites[BESIDE] = stack.enter_context(traced_site(engine, "", beside))
        rounds = uvloop.run(_rounds(sites, load, runs))
        if not collector.num_bytes:
            raise SiteFailed("no trace has come")
    return list(_records(load.case, rounds))


async def _rounds(sites: Mapping[str, TracedSite], load: TracedLoad, runs: int) -> Sequence[Mapping[str, TracedRound]]:
    found = []
    for number in range(runs + 1):
        order = Random(number).sample(list(sites), len(sites))
        found.append({way: await _round_tracing(sites[way], load, number) for way in order})
    return found[1:]


async def _round_tracing(site: TracedSite, load: TracedLoad, number: int) -> TracedRound:
    async with aio.insecure_channel(site.address) as channel:
        asks = [_ask(channel, load, f"tell me about number {number}, part {n}") for n in range(load.streams)]
        before = site.cpu()
        brought = [await at_once(asks) for _ in range(load.requests)]
        cpu = site.cpu() - before
    tokens = load.streams * load.requests * load.tokens
    return TracedRound(tokens / sum(seconds for _, seconds in brought), cpu / tokens * 1000)


def _ask(channel: Any, load: TracedLoad, prompt: str) -> Callable[[], Any]:
    request = wire.InferRequest(prompt=prompt, force_specialists=[NAME], max_tokens=load.tokens, ignore_eos=True)
    raw = request.SerializeToString()
    generate = channel.unary_stream("/octet.v1.Inference/Generate")
    return lambda: generate(raw)


def _records(case: str, rounds: Sequence[Mapping[str, TracedRound]]) -> Iterator[BenchRecord]:
    for way in rounds[0]:
        yield summary(
            [each[way].throughput for each in rounds], _BENCH, case, f"{way}, {_THROUGHPUT}", "tok/s", "octet"
        )
        yield summary([each[way].cpu for each in rounds], _BENCH, case, f"{way}, {_CPU}", "s", "octet")
    for way, base in ((ON, OFF), (OFF, BESIDE)):
        if base in rounds[0]:
            ratios = [each[way].throughput / each[base].throughput for each in rounds]
            yield summary(ratios, _BENCH, case, f"{way} over {base}, {_THROUGHPUT}", "x", "octet")
            costs = [each[way].cpu / each[base].cpu for each in rounds]
            yield summary(costs, _BENCH, case, f"{way} over {base}, {_CPU}", "x", "octet")


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
