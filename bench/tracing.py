"""What traces cost. The same requests through a router to a replica, without traces, with all of them, and on request
through another state of this project, in turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile
from typing import Any

import uvloop
from grpc import aio

from bench.measure import summary
from bench.record import Record
from bench.router_load import at_once
from bench.router_site import SiteFailed
from bench.table import Targets
from bench.tracing_drawing import drawing_records
from bench.tracing_site import NAME, TracedSite, collecting, traced_site
from octet.v1 import inference_pb2 as wire
from specialist.engines.sim import CostModel
from specialist.engines.sim.calibration import cost_model_to_json

OFF, ON, BESIDE = "off", "on", "beside"
_BENCH = "tracing"
_THROUGHPUT, _CPU = "throughput", "CPU a thousand tokens"


@dataclass(frozen=True, slots=True)
class Load:
    case: str
    streams: int
    """At once, each answered as soon as the one before it is."""
    requests: int
    """Of each stream, in a round."""
    tokens: int


MODEL = Load("a real model, 4 streams of 48 tokens", 4, 1, 48)
SIM = Load("a simulated model that takes no time, 16 streams of 16 tokens", 16, 6, 16)
TARGETS: Targets = {
    (MODEL.case, f"{ON} over {OFF}, {_THROUGHPUT}"): ">= 0.98 x",
    (MODEL.case, f"{ON} over {OFF}, {_CPU}"): "<= 1.02 x",
}


@dataclass(frozen=True, slots=True)
class Round:
    throughput: float
    """Tokens a second."""
    cpu: float
    """Seconds of both processes, a thousand tokens."""


def measure(load: Load, engine: Sequence[str], runs: int, beside: Path | None) -> list[Record]:
    """Raises SiteFailed."""
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


async def _rounds(sites: Mapping[str, TracedSite], load: Load, runs: int) -> Sequence[Mapping[str, Round]]:
    """After one that does not count; in an order that changes from round to round."""
    found = []
    for number in range(runs + 1):
        order = Random(number).sample(list(sites), len(sites))
        found.append({way: await _round(sites[way], load, number) for way in order})
    return found[1:]


async def _round(site: TracedSite, load: Load, number: int) -> Round:
    async with aio.insecure_channel(site.address) as channel:
        asks = [_ask(channel, load, f"tell me about number {number}, part {n}") for n in range(load.streams)]
        before = site.cpu()
        brought = [await at_once(asks) for _ in range(load.requests)]
        cpu = site.cpu() - before
    tokens = load.streams * load.requests * load.tokens
    return Round(tokens / sum(seconds for _, seconds in brought), cpu / tokens * 1000)


def _ask(channel: Any, load: Load, prompt: str) -> Callable[[], Any]:
    request = wire.InferRequest(prompt=prompt, force_specialists=[NAME], max_tokens=load.tokens, ignore_eos=True)
    raw = request.SerializeToString()
    generate = channel.unary_stream("/octet.v1.Inference/Generate")
    return lambda: generate(raw)


def _records(case: str, rounds: Sequence[Mapping[str, Round]]) -> Iterator[Record]:
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


def measure_tracing(runs: int, model: Path | None, beside: Path | None) -> list[Record]:
    """Raises SiteFailed."""
    chosen = [] if model is None else ["--model", str(model)]
    with NamedTemporaryFile("w", suffix=".json") as free:
        free.write(cost_model_to_json(CostModel(*(0.0,) * 8), {"from": "bench.tracing"}))
        free.flush()
        return [
            *drawing_records(runs),
            *measure(MODEL, [*chosen, "--threads", "1"], runs, beside),
            *measure(SIM, ["--engine", "sim", "--cost-model", free.name], runs, beside),
        ]
