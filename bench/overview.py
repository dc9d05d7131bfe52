"""The cost of watchers: the router's CPU with and without a dashboard, and how soon a watcher sees a change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

import uvloop
from grpc import aio

from bench.http_client import HttpClient, http_request
from bench.processes import HOST
from bench.router_site import (
    SPECIALISTS,
    Call,
    RouterSite,
    first_chunk,
    new_questions,
    router_ask,
    running,
    site,
    steady,
)
from bench.timing import Board, Targets
from octet.v1 import operator_pb2 as wire
from simulation.results import BenchRecord

BENCH = "overview"
RATE = 20  # requests per second
TOKENS = 8
CASE = f"{len(SPECIALISTS)} specialists, {RATE} requests/s, one dashboard"
ADDED = "added to the router's CPU"
SEEN = "from a change to the watcher"
TARGETS: Targets = {(CASE, ADDED): "< 2 % of a core", (CASE, SEEN): "<= 1 s"}
_CORE = "% of a core"
_CHANGES = 3  # per round
_OPERATOR = "/octet.v1.Operator/"
_EVENTS = http_request("GET", "/v1/overview/events", HOST)
_HISTORY = http_request("GET", "/v1/history?last_seconds=20", HOST)
_HISTORY_SECONDS = 5.0  # the same interval as the dashboard


def measure_overview(runs: int, seconds: float) -> list[BenchRecord]:
    board = Board(BENCH)
    with site() as where:
        uvloop.run(_measure(where, runs, seconds, board))
    return board.records()


async def _measure(where: RouterSite, runs: int, seconds: float, board: Board) -> None:
    async with aio.insecure_channel(where.router) as channel:
        call = partial(first_chunk, router_ask(channel, new_questions(), TOKENS))
        await steady(call, RATE, 1.0)
        for number in range(runs):
            board.add(number, CASE, "octet", await _round(where, call, seconds, number))
            for change in range(_CHANGES):
                figure = (SEEN, "s", await _delay(channel, change))
                board.add(number * _CHANGES + change, CASE, "octet", [figure])


async def _round(where: RouterSite, call: Call, seconds: float, number: int) -> list[tuple[str, str, float]]:
    alone = await _share(where, call, seconds) if number % 2 else None
    async with _watched(where) as counted:
        before = counted[0]
        watched = await _share(where, call, seconds)
        overviews = (counted[0] - before) / seconds
    if alone is None:
        alone = await _share(where, call, seconds)
    return [
        ("the router's CPU, not watched", _CORE, 100 * alone),
        ("the router's CPU, watched", _CORE, 100 * watched),
        (ADDED, _CORE, 100 * (watched - alone)),
        ("overviews that a watcher gets", "/s", overviews),
    ]


async def _share(where: RouterSite, call: Call, seconds: float) -> float:
    cpu, began = where.router_cpu(), perf_counter()
    await steady(call, RATE, seconds)
    return (where.router_cpu() - cpu) / (perf_counter() - began)


@asynccontextmanager
async def _watched(where: RouterSite) -> AsyncIterator[list[int]]:
    counted = [0]
    async with running([_read_events(where.http_port, counted), _poll(where.http_port)]):
        while not counted[0]:
            await asyncio.sleep(0.01)
        yield counted


async def _read_events(port: int, counted: list[int]) -> None:
    def count_events(part: bytes) -> None:
        counted[0] += part.count(b"event: overview\n")

    await HttpClient(HOST, port).exchange(_EVENTS, count_events)
    raise RuntimeError("the stream of events has ended")


async def _poll(port: int) -> None:
    client = HttpClient(HOST, port)
    while True:
        await asyncio.sleep(_HISTORY_SECONDS)
        await client.exchange(_HISTORY, lambda part: None)


async def _delay(channel: aio.Channel, number: int) -> float:
    """Return the seconds from setting a knob to the overview that shows it."""
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
    raise RuntimeError("the stream of overviews has ended")
