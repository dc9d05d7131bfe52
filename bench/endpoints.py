"""The gRPC and HTTP endpoints beside each other, at rest and with hundreds of idle connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from random import Random
from time import perf_counter
from typing import Any

import uvloop
from grpc import aio

from bench.http_client import HttpClient, chat_request
from bench.processes import SiteFailed
from bench.router import SPECIALISTS, Call, RouterSite, call_of, site, steady
from bench.router_farm import NAME as HOSE
from bench.timing import Targets
from octet.v1 import inference_pb2 as wire
from router.dispatch.http2 import frames
from simulation.results import BenchRecord, percentile, summary

_HOST = "127.0.0.1"
_TOKEN = b'"content":'


class EndpointCaller:
    """Of `/v1/chat/completions`."""

    def __init__(self, port: int) -> None:
        self._client = HttpClient(_HOST, port)

    async def first_token(self, specialist: str, prompt: str, tokens: int) -> float:
        """Seconds to the first token of an answer that is read to its end."""
        begun, first, body = perf_counter(), 0.0, b""

        def on_body(part: bytes) -> None:
            nonlocal first, body
            body += part
            if not first and _TOKEN in body:
                first = perf_counter() - begun

        response = await self._client.exchange(stream_request(specialist, prompt, tokens), on_body)
        if response.status != 200 or not first:
            raise RuntimeError(f"no answer: status {response.status}, {body[:600]!r}")
        return first

    def close(self) -> None:
        self._client.close()


def stream_request(specialist: str, prompt: str, tokens: int) -> bytes:
    return chat_request(_HOST, f"octet/{specialist}", prompt, tokens, stream=True)


_WINDOW = 1024  # bytes of an answer: the window is never opened again
_SMALL = 4096  # bytes of the receive buffer
_WORDS = 100_000  # more than all buffers hold
Hold = Callable[[], Coroutine[Any, Any, None]]  # one connection until the server closes it


@asynccontextmanager
async def holding(where: RouterSite, count: int) -> AsyncIterator[None]:
    """Holds `count` idle connections, of all kinds equally. One that is closed is opened again."""
    kinds = _kinds(where)
    tasks = [asyncio.create_task(_again(kinds[number % len(kinds)])) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _kinds(where: RouterSite) -> list[Hold]:
    http, grpc = where.http_port, int(where.router.rpartition(":")[2])
    half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9"
    return [
        lambda: _silent(http, half),
        lambda: _silent(http, stream_request(HOSE, "go", _WORDS)),
        lambda: _shut(grpc, _half_a_call()),
        lambda: _shut(grpc, _unread_call()),
    ]


async def _again(hold: Hold) -> None:
    while True:
        with suppress(OSError):
            await hold()
        await asyncio.sleep(0.5)


async def _silent(port: int, request: bytes) -> None:
    """Reads nothing until the connection ends."""
    loop = asyncio.get_running_loop()
    with socket.socket() as held:
        held.setblocking(False)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        await loop.sock_connect(held, ("127.0.0.1", port))
        await loop.sock_sendall(held, request)
        while not _is_cut(held):
            await asyncio.sleep(1.0)


def _is_cut(held: socket.socket) -> bool:
    """TCP_INFO's first byte is the connection's state; 1 is established."""
    return held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x01"


async def _shut(port: int, request: bytes) -> None:
    """Answers settings and pings, but never opens its window."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
                writer.write(frames.frame(kind, frames.ACK, 0, payload if kind == frames.PING else b""))
    except asyncio.IncompleteReadError:
        return
    finally:
        writer.close()


def _half_a_call() -> bytes:
    """Headers without an end."""
    headers = frames.frame(frames.HEADERS, 0, 1, frames.encode_literal(":method", "POST"))
    return frames.PREFACE + frames.settings({}) + headers


def _unread_call() -> bytes:
    request = wire.InferRequest(prompt="go", force_specialists=[HOSE], max_tokens=_WORDS).SerializeToString()
    headers = frames.encode_call_headers("http", "octet", "/octet.v1.Inference/Generate")
    message = b"\0" + len(request).to_bytes(4, "big") + request
    opening = frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: _WINDOW})
    opening += frames.frame(frames.HEADERS, frames.END_HEADERS, 1, headers)
    return opening + frames.frame(frames.DATA, frames.END_STREAM, 1, message)


BENCH = "doors"
RATE = 50  # requests per second, one endpoint at a time
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
_IDLE = 0.1  # of a core
_Round = dict[str, list[float]]  # seconds to the first token, by endpoint


def measure_endpoints(runs: int, seconds: float) -> list[BenchRecord]:
    with site() as where:
        rest, busy = uvloop.run(_measure(where, runs, seconds))
    added = [(percentile(each["http"], 50) - percentile(each["grpc"], 50)) * 1e3 for each in rest]
    records = [*_records(REST, rest), summary(added, BENCH, REST, ADDED, "ms", "octet"), *_records(BUSY, busy)]
    for door in _DOORS:
        pairs = zip(rest, busy, strict=True)
        ratios = [percentile(held[door], 99) / percentile(free[door], 99) for free, held in pairs]
        records.append(summary(ratios, BENCH, BUSY, f"{door}: p99 of the first token, over that at rest", "x", "octet"))
    return records


async def _measure(where: RouterSite, runs: int, seconds: float) -> tuple[list[_Round], list[_Round]]:
    rest, busy = [], []
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(aio.insecure_channel(where.router))
        http = EndpointCaller(where.http_port)
        stack.callback(http.close)
        calls = _calls(channel, http)
        await _round(calls, 0, 1.0)
        for number in range(runs):
            rest.append(await _round(calls, number, seconds))
            async with holding(where, HELD):
                await _settled(where)
                busy.append(await _round(calls, number, seconds))
            await _settled(where)
    return rest, busy


async def _settled(where: RouterSite) -> None:
    """Waits until buffers to callers that never read are full."""
    for _ in range(_MOST_WAITS):
        before = where.router_cpu()
        await asyncio.sleep(_WAIT_SECONDS)
        if where.router_cpu() - before < _IDLE * _WAIT_SECONDS:
            return
    raise SiteFailed("the router does not come to rest")


def _calls(channel: aio.Channel, http: EndpointCaller) -> dict[str, Call]:
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


def _records(case: str, rounds: list[_Round]) -> Iterator[BenchRecord]:
    for door in _DOORS:
        for percent in (50, 99):
            samples = [percentile(each[door], percent) * 1e3 for each in rounds]
            yield summary(samples, BENCH, case, f"{door}: p{percent} of the first token", "ms", "octet")
