"""How far a replica's forecasts are from the real times of its answers, while a real model serves a steady load."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple

import grpc
import uvloop
from grpc import aio

from bench.processes import ROOT, SiteFailed, replica_and_router
from bench.router_site import REPLICA, WATCH_LOAD
from bench.timing import Board, Figure, Say, Targets
from octet.v1 import specialist_pb2 as wire
from router.routing.training.records import read_records
from simulation.results import BenchRecord, percentile

BENCH = "forecast"
OCTET, BESIDE = "octet", "beside"
FIRST, KNOWN, ANY = "first token", "answer of known length", "any answer"
ALL_LOADS = "all loads"  # the published errors are those of the last 256 answers, whatever the load was
# What the replica publishes, by the prefix of the fields of `EstimateError`.
PUBLISHED = {"first": "first token, published", "total": "request, published", "stated": "any answer, published"}
_PROMPTS = ROOT / "router/data/heldout.jsonl"
_SYSTEM = (
    "You are an expert in the C++ standard library. Answer with the right container or algorithm and a short example "
    "that compiles. Mention complexity and iterator invalidation where they matter."
)
_LIMITS = (32, 64, 128, 256)  # tokens of an answer
_CROWD, _MIDDLE = 40, (0.2, 0.8)  # requests at once; the replica counts as full between these shares of their answers
_SIZES = ((0.0, 0.2), (0.2, 1.0), (1.0, 4.0), (4.0, inf))  # seconds that were forecast
_FEWEST = 10  # answers behind a figure


def targets(loads: Sequence[float]) -> Targets:
    measured = [(_case(load), what) for load in loads for what in (FIRST, KNOWN)]
    published = [(ALL_LOADS, PUBLISHED[field]) for field in ("first", "total")]
    return {(case, f"error, {what}, p90"): "<= 35 %" for case, what in measured + published}


@dataclass(frozen=True, slots=True)
class ForecastAsk:
    at: float  # seconds since the load began
    exact: bool  # whether nothing can end the answer before its limit
    request: wire.GenerateRequest


class ForecastOutcome(NamedTuple):
    """Seconds from acceptance."""

    exact: bool
    first_forecast: float | None  # None if the replica does not state it
    end_forecast: float
    first: float
    end: float


def draw_asks(prompts: Sequence[str], rate: float, seconds: float, seed: int) -> list[ForecastAsk]:
    """Draw Poisson arrivals of `rate` per second; if it is infinite, a crowd that arrives at once."""
    rng, at, asks = Random(seed), 0.0, list[ForecastAsk]()
    while len(asks) < (_CROWD if rate == inf else inf):
        at += rng.expovariate(1.0) / rate
        if at > seconds:
            break
        exact, text = rng.random() < 0.5, rng.choice(prompts)
        messages = [wire.Message(role="system", content=_SYSTEM), wire.Message(role="user", content=text)]
        request = wire.GenerateRequest(
            chat=wire.Chat(messages=messages),
            max_tokens=rng.choice(_LIMITS),
            ignore_eos=exact,
            sampling=wire.Sampling(temperature=0.2, top_p=0.95),
            seed=rng.getrandbits(31),
        )
        asks.append(ForecastAsk(at, exact, request))
    return asks


async def _call(channel: Any, ask: ForecastAsk) -> tuple[ForecastOutcome | None, float]:
    """Return the outcome, None if the replica had no forecast yet, and the time of the end. Raises SiteFailed."""
    generate = channel.unary_stream(REPLICA, wire.GenerateRequest.SerializeToString, wire.GenerateEvent.FromString)
    accepted, begun, first = wire.Accepted(), monotonic(), None
    try:
        async for event in generate(ask.request):
            kind = event.WhichOneof("event")
            if kind == "accepted":
                accepted, begun = event.accepted, monotonic()
            elif kind == "chunk" and first is None:
                first = monotonic()
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return None, monotonic()
        raise SiteFailed(f"the replica failed: {error.details()}") from error
    end, forecast = monotonic(), accepted.forecast
    if first is None or not accepted.HasField("forecast"):
        return None, end
    first_forecast = forecast.first if forecast.HasField("first") else None
    return ForecastOutcome(ask.exact, first_forecast, forecast.total, first - begun, end - begun), end


async def _play(address: str, asks: Sequence[ForecastAsk]) -> tuple[list[ForecastOutcome], list[float]]:
    """Send the requests on time. Return the outcomes, and the times of all ends in order."""
    async with aio.insecure_channel(address) as channel:
        start, calls = monotonic(), []
        for ask in asks:
            await asyncio.sleep(max(0.0, start + ask.at - monotonic()))
            calls.append(asyncio.ensure_future(_call(channel, ask)))
        done = await asyncio.gather(*calls)
    return [outcome for outcome, _ in done if outcome is not None], sorted(end for _, end in done)


def measure_capacity(address: str, prompts: Sequence[str], seed: int) -> float:
    """Return how many requests per second a full replica ends."""
    _, ends = uvloop.run(_play(address, draw_asks(prompts, inf, inf, seed)))
    low, high = (round(share * (len(ends) - 1)) for share in _MIDDLE)
    return (high - low) / (ends[high] - ends[low])


def error_figures(outcomes: Sequence[ForecastOutcome]) -> Iterator[Figure]:
    """Yield the median and the 90th percentile of |forecast - real| / real: of the time to the first token, of the
    time to the end of answers whose length was known, and of the stated time to the end of any answer. The first two
    also by the size of the forecast."""
    firsts = [(each.first_forecast, each.first) for each in outcomes if each.first_forecast is not None]
    known = [(each.end_forecast, each.end) for each in outcomes if each.exact]
    ends = [(each.end_forecast, each.end) for each in outcomes]
    for name, pairs in ((FIRST, firsts), (KNOWN, known), (ANY, ends)):
        yield from _quantiles(name, pairs)
        for low, high in _SIZES if name != ANY else ():
            size = f"above {low:g} s" if high == inf else f"{low:g} to {high:g} s"
            yield from _quantiles(f"{name}, forecast {size}", [pair for pair in pairs if low <= pair[0] < high])


def _quantiles(name: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Figure]:
    errors = [100 * abs(forecast - real) / real for forecast, real in pairs]
    if len(errors) >= _FEWEST:
        for percent in (50, 90):
            yield Figure(f"error, {name}, p{percent}", "%", percentile(errors, percent))


def published_figures(error: wire.EstimateError) -> Iterator[Figure]:
    """Yield the errors that the replica publishes. It measures until a token is generated, not until its caller has it:
    on a machine with few cores, the caller competes with the replica."""
    for field, name in PUBLISHED.items():
        for percent in (50, 90):
            if error.HasField(f"{field}_p{percent}"):
                yield Figure(f"error, {name}, p{percent}", "%", 100 * getattr(error, f"{field}_p{percent}"))


async def _read_published(address: str) -> wire.EstimateError:
    async with aio.insecure_channel(address) as channel:
        watch = channel.unary_stream(WATCH_LOAD, wire.WatchLoadRequest.SerializeToString, wire.LoadReport.FromString)
        call = watch(wire.WatchLoadRequest(min_interval_ms=0, heartbeat_ms=100))
        async for report in call:
            call.cancel()
            error: wire.EstimateError = report.estimate_error
            return error
    raise SiteFailed("the replica reported no load")


def _case(load: float) -> str:
    return f"{100 * load:g} % of capacity"


def measure_forecasts(
    model: Path | None, loads: Sequence[float], seconds: float, runs: int, beside: Path | None, say: Say
) -> tuple[list[BenchRecord], str]:
    """Measure in rounds, of which the first does not count; with `beside`, also a replica of that checkout, by turns.
    Return the records and a note."""
    prompts = [record.text for record in read_records([_PROMPTS])]
    chosen = ["--model", str(model)] if model is not None else []
    with ExitStack() as stack:

        def start(checkout: Path) -> str:
            site = replica_and_router(BENCH, chosen, checkout=checkout, routed=False)
            return stack.enter_context(site)[0].address

        sites = {OCTET: start(ROOT)} | ({} if beside is None else {BESIDE: start(beside.resolve())})
        board = Board(BENCH, list(sites))
        capacity = max(measure_capacity(address, prompts, -1) for address in sites.values())
        for number in range(runs + 1):
            for load in loads:
                asks = draw_asks(prompts, load * capacity, seconds, number)
                for system in Random(number).sample(list(sites), len(sites)):
                    outcomes, _ = uvloop.run(_play(sites[system], asks))
                    say(f"round {number} of {runs}, {_case(load)}, {system}: {len(outcomes)} of {len(asks)} answers")
                    if number:
                        board.add(number, _case(load), system, error_figures(outcomes))
            for system, address in sites.items() if number else ():
                board.add(number, ALL_LOADS, system, published_figures(uvloop.run(_read_published(address))))
    return board.records(), f"capacity: {capacity:.2f} requests per second"
