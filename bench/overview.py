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

from bench.measure import summary
from bench.record import Record
from bench.router_load import Call, call_of, steady
from bench.router_site import SPECIALISTS, Site, site
from bench.table import Targets
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire

BENCH = "overview"
RATE = 20
"""Requests a second, eight tokens each."""
TOKENS = 8
CASE = f"{len(SPECIALISTS)} specialists, {RATE} requests/s, one dashboard"
ADDED = "added to the router's CPU"
SEEN = "from a change to the watcher"
TARGETS: Targets = {(CASE, ADDED): "< 2 % of a core", (CASE, SEEN): "<= 1 s"}
_CHANGES = 3
"""In a round."""
_OPERATOR = "/octet.v1.Operator/"
_EVENTS = b"GET /v1/overview/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
_AN_EVENT = b"event: overview\n"
_HISTORY = b"GET /v1/history?last_seconds=20 HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
_HISTORY_SECONDS = 5.0
"""As often as the page asks for new points of its plots."""


@dataclass(frozen=True, slots=True)
class _Round:
    alone: float
    """Shares of a core."""
    watched: float
    delays: tuple[float, ...]
    """Seconds."""
    overviews: float
    """A second, that one watcher got."""


def measure_overview(runs: int, seconds: float) -> list[Record]:
    """Raises SiteFailed."""
    with site() as where:
        rounds = uvloop.run(_measure(where, runs, seconds))
    return list(_records(rounds))


async def _measure(where: Site, runs: int, seconds: float) -> list[_Round]:
    async with aio.insecure_channel(where.router) as channel:
        call = _call(channel)
        await steady(call, RATE, 1.0)
        return [await _round(where, channel, call, seconds, number) for number in range(runs)]


async def _round(where: Site, channel: aio.Channel, call: Call, seconds: float, number: int) -> _Round:
    """Alone and watched in turns, in an order that changes."""
    alone = await _share(where, call, seconds) if number % 2 else None
    async with _watched(where) as counted:
        before = counted[0]
        watched = await _share(where, call, seconds)
        overviews = (counted[0] - before) / seconds
    if alone is None:
        alone = await _share(where, call, seconds)
    delays = [await _delay(channel, which) for which in range(_CHANGES)]
    return _Round(alone, watched, tuple(delays), overviews)


async def _share(where: Site, call: Call, seconds: float) -> float:
    cpu, began = where.router_cpu(), perf_counter()
    await steady(call, RATE, seconds)
    return (where.router_cpu() - cpu) / (perf_counter() - began)


@asynccontextmanager
async def _watched(where: Site) -> AsyncIterator[list[int]]:
    """As a page does it. How many overviews it has had."""
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
    async for piece in _said(port, _EVENTS):
        counted[0] += piece.count(_AN_EVENT)
    raise RuntimeError("the events have ended")


async def _poll(port: int) -> None:
    while True:
        await asyncio.sleep(_HISTORY_SECONDS)
        async for _ in _said(port, _HISTORY):
            pass


async def _said(port: int, ask: bytes) -> AsyncIterator[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(ask)
        while piece := await reader.read(1 << 16):
            yield piece
    finally:
        writer.close()


async def _delay(channel: aio.Channel, number: int) -> float:
    """From a knob that is set to the overview that has it."""
    value = number / 10
    ask = wire.SetKnobRequest(name="unspecified.shadow_threshold", value=value)
    ask.change.who, ask.change.why = "octet bench", "how soon it is seen"
    watch = _watch(channel)
    async for _ in watch:
        break
    await _call_operator(channel, "SetKnob", ask)
    began = perf_counter()
    async for overview in watch:
        if any(knob.name == ask.name and knob.value == value for knob in overview.knobs):
            watch.cancel()
            return perf_counter() - began
    raise RuntimeError("the overviews have ended")


def _watch(channel: aio.Channel) -> Any:
    method = channel.unary_stream(f"{_OPERATOR}WatchOverview", response_deserializer=wire.Overview.FromString)
    return method(b"")


async def _call_operator(channel: aio.Channel, name: str, ask: Any) -> None:
    await channel.unary_unary(f"{_OPERATOR}{name}")(ask.SerializeToString())


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


def _records(rounds: list[_Round]) -> Iterator[Record]:
    unit = "% of a core"
    yield summary([each.alone * 100 for each in rounds], BENCH, CASE, "the router's CPU, nobody looks", unit, "octet")
    yield summary([each.watched * 100 for each in rounds], BENCH, CASE, "the router's CPU, watched", unit, "octet")
    added = [(each.watched - each.alone) * 100 for each in rounds]
    yield summary(added, BENCH, CASE, ADDED, unit, "octet")
    yield summary([each.overviews for each in rounds], BENCH, CASE, "overviews that a watcher gets", "/s", "octet")
    yield summary([delay for each in rounds for delay in each.delays], BENCH, CASE, SEEN, "s", "octet")
