"""What it costs a router that people look at it: its CPU with and without them, and how soon they see a change."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

import uvloop
from grpc import aio

from bench.http_client import HttpClient, http_request
from bench.router import SPECIALISTS, Call, RouterSite, call_of, site, steady
from bench.timing import Targets
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from simulation.results import BenchRecord, summary

BENCH = "overview"
RATE = 20  # requests per second
TOKENS = 8
CASE = f"{len(SPECIALISTS)} specialists, {RATE} requests/s, one dashboard"
ADDED = "added to the router's CPU"
SEEN = "from a change to the watcher"
TARGETS: Targets = {(CASE, ADDED): "< 2 % of a core", (CASE, SEEN): "<= 1 s"}
_CHANGES = 3  # per round
_OPERATOR = "/octet.v1.Operator/"
_EVENTS = http_request("GET", "/v1/overview/events", "127.0.0.1")
_HISTORY = http_request("GET", "/v1/history?last_seconds=20", "127.0.0.1")
_HISTORY_SECONDS = 5.0  # as often as the dashboard


@dataclass(frozen=True, slots=True)
class _Round:
    alone: float  # shares of a core
    watched: float
    delays: tuple[float, ...]  # seconds
    overviews: float  # per second


def measure_overview(runs: int, seconds: float) -> list[BenchRecord]:
    with site() as where:
        rounds = uvloop.run(_measure(where, runs, seconds))
    return list(_records(rounds))


async def _measure(where: RouterSite, runs: int, seconds: float) -> list[_Round]:
    async with aio.insecure_channel(where.router) as channel:
        call = _call(channel)
        await steady(call, RATE, 1.0)
        return [await _round(where, channel, call, seconds, number) for number in range(runs)]


async def _round(where: RouterSite, channel: aio.Channel, call: Call, seconds: float, number: int) -> _Round:
    alone = await _share(where, call, seconds) if number % 2 else None
    async with _watched(where) as counted:
        before = counted[0]
        watched = await _share(where, call, seconds)
        overviews = (counted[0] - before) / seconds
    if alone is None:
        alone = await _share(where, call, seconds)
    delays = [await _delay(channel, which) for which in range(_CHANGES)]
    return _Round(alone, watched, tuple(delays), overviews)


async def _share(where: RouterSite, call: Call, seconds: float) -> float:
    cpu, began = where.router_cpu(), perf_counter()
    await steady(call, RATE, seconds)
    return (where.router_cpu() - cpu) / (perf_counter() - began)


@asynccontextmanager
async def _watched(where: RouterSite) -> AsyncIterator[list[int]]:
    counted = [0]
    tasks = [asyncio.create_task(_read_events(where.http_port, counted)), asyncio.create_task(_poll(where.http_port))]
    try:
        while not counted[0]:
            await asyncio.sleep(0.01)
        yield counted
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_events(port: int, counted: list[int]) -> None:
    def count_events(part: bytes) -> None:
        counted[0] += part.count(b"event: overview\n")

    await HttpClient("127.0.0.1", port).exchange(_EVENTS, count_events)
    raise RuntimeError("the events have ended")


async def _poll(port: int) -> None:
    client = HttpClient("127.0.0.1", port)
    while True:
        await asyncio.sleep(_HISTORY_SECONDS)
        await client.exchange(_HISTORY, lambda part: None)


async def _delay(channel: aio.Channel, number: int) -> float:
    """Seconds from setting a knob to the overview that shows it."""
    value = number / 10
    ask = wire.SetKnobRequest(name="unspecified.shadow_threshold", value=value)
    ask.change.who, ask.change.why = "octet bench", "how soon it is seen"
    method = channel.unary_stream(f"{_OPERATOR}WatchOverview", response_deserializer=wire.Overview.FromString)
    watch: Any = method(b"")
    async for _ in watch:
        break
    await channel.unary_unary(f"{_OPERATOR}SetKnob")(ask.SerializeToString())
    began = perf_counter()
    async for overview in watch:
        if any(knob.name == ask.name and knob.value == value for knob in overview.knobs):
            watch.cancel()
            return perf_counter() - began
    raise RuntimeError("the overviews have ended")


def _call(channel: aio.Channel) -> Call:
    generate = channel.unary_stream("/octet.v1.Inference/Generate")
    numbers = count()

    def ask() -> Any:
        number = next(numbers)
        request = inference_pb2.InferRequest(
            prompt=f"case {number}",
            force_specialists=[SPECIALISTS[number % len(SPECIALISTS)]],
            max_tokens=TOKENS,
            ignore_eos=True,
        )
        return generate(request.SerializeToString())

    return call_of(ask)


def _records(rounds: list[_Round]) -> Iterator[BenchRecord]:
    unit = "% of a core"
    yield summary([each.alone * 100 for each in rounds], BENCH, CASE, "the router's CPU, not watched", unit, "octet")
    yield summary([each.watched * 100 for each in rounds], BENCH, CASE, "the router's CPU, watched", unit, "octet")
    added = [(each.watched - each.alone) * 100 for each in rounds]
    yield summary(added, BENCH, CASE, ADDED, unit, "octet")
    yield summary([each.overviews for each in rounds], BENCH, CASE, "overviews that a watcher gets", "/s", "octet")
    yield summary([delay for each in rounds for delay in each.delays], BENCH, CASE, SEEN, "s", "octet")
