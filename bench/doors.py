"""The two front doors beside each other, at rest and while hundreds of connections are only held."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from random import Random

import uvloop
from grpc import aio

from bench.held import holding
from bench.http_caller import HttpCaller
from bench.measure import percentile, summary
from bench.record import Record
from bench.router_load import Call, call_of, steady
from bench.router_site import SPECIALISTS, Site, SiteFailed, site
from bench.table import Targets
from octet.v1 import inference_pb2 as wire

BENCH = "doors"
RATE = 50
"""Requests a second through each door, one door at a time."""
TOKENS = 8
HELD = 500
_DOORS = ("grpc", "http")
REST, BUSY = "at rest", f"{HELD} connections held"
ADDED = "HTTP adds to the first token, p50"
TARGETS: Targets = {
    (REST, ADDED): "<= 1.5 ms",
    **{(BUSY, f"{door}: p99 of the first token, over that at rest"): "<= 1.2 x" for door in _DOORS},
}
_MOST_WAITS, _WAIT_SECONDS = 60, 1.0
_IDLE = 0.1
"""Of a core."""
_Round = dict[str, list[float]]
"""Seconds to the first token of each call, by door."""


def measure_doors(runs: int, seconds: float) -> list[Record]:
    """Raises SiteFailed."""
    with site() as where:
        rest, busy = uvloop.run(_measure(where, runs, seconds))
    return [*_records(REST, rest), *_added(rest), *_records(BUSY, busy), *_ratios(rest, busy)]


async def _measure(where: Site, runs: int, seconds: float) -> tuple[list[_Round], list[_Round]]:
    """At rest and held in turns; every pair of rounds is one of each."""
    rest, busy = [], []
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(aio.insecure_channel(where.router))
        http = HttpCaller(where.http_port)
        stack.push_async_callback(http.close)
        calls = _calls(channel, http)
        await _round(calls, 0, 1.0)
        for number in range(runs):
            rest.append(await _round(calls, number, seconds))
            async with holding(where, HELD):
                await _settled(where)
                busy.append(await _round(calls, number, seconds))
            await _settled(where)
    return rest, busy


async def _settled(where: Site) -> None:
    """Those that never read have had what fits on the way to them."""
    for _ in range(_MOST_WAITS):
        before = where.router_cpu()
        await asyncio.sleep(_WAIT_SECONDS)
        if where.router_cpu() - before < _IDLE * _WAIT_SECONDS:
            return
    raise SiteFailed("the router does not come to rest")


def _calls(channel: aio.Channel, http: HttpCaller) -> dict[str, Call]:
    numbers = count()
    generate = channel.unary_stream("/octet.v1.Inference/Generate")

    def question() -> tuple[str, str]:
        number = next(numbers)
        return SPECIALISTS[number % len(SPECIALISTS)], f"case {number}"

    def by_grpc() -> object:
        name, prompt = question()
        request = wire.InferRequest(force_specialists=[name], max_tokens=TOKENS, ignore_eos=True)
        request.messages.add(role="user", content=prompt)
        return generate(request.SerializeToString())

    return {"grpc": call_of(by_grpc), "http": lambda: http.first_token(*question(), TOKENS)}


async def _round(calls: dict[str, Call], number: int, seconds: float) -> _Round:
    order = Random(number).sample(_DOORS, len(_DOORS))
    return {door: await steady(calls[door], RATE, seconds) for door in order}


def _records(case: str, rounds: list[_Round]) -> Iterator[Record]:
    for door in _DOORS:
        for percent in (50, 99):
            samples = [percentile(each[door], percent) * 1e3 for each in rounds]
            yield summary(samples, BENCH, case, f"{door}: p{percent} of the first token", "ms", "octet")


def _added(rounds: list[_Round]) -> Iterator[Record]:
    added = [(percentile(each["http"], 50) - percentile(each["grpc"], 50)) * 1e3 for each in rounds]
    yield summary(added, BENCH, REST, ADDED, "ms", "octet")


def _ratios(rest: list[_Round], busy: list[_Round]) -> Iterator[Record]:
    for door in _DOORS:
        pairs = zip(rest, busy, strict=True)
        ratios = [percentile(held[door], 99) / percentile(free[door], 99) for free, held in pairs]
        yield summary(ratios, BENCH, BUSY, f"{door}: p99 of the first token, over that at rest", "x", "octet")
