"""The gRPC and HTTP endpoints side by side, at rest and with hundreds of idle connections."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from itertools import cycle, islice
from random import Random
from time import perf_counter
from typing import Any

import uvloop
from grpc import aio

from bench import router_site
from bench.http_client import HttpClient, chat_request
from bench.processes import HOST, SiteFailed
from bench.router_peers.cases import Order
from bench.router_site import FASTEST, ROUTER, Call, RouterSite, first_chunk
from bench.timing import Board, Targets
from router.dispatch.http2 import frames
from simulation.results import BenchRecord, percentile

_TOKEN = b'"content":'


def stream_request(specialist: str, prompt: str, tokens: int) -> bytes:
    return chat_request(HOST, f"octet/{specialist}", prompt, tokens, stream=True)


async def first_token(client: HttpClient, specialist: str, prompt: str) -> float:
    """Return the seconds until the first token of an answer that is read to its end."""
    begun, first, body = perf_counter(), 0.0, b""

    def on_body(part: bytes) -> None:
        nonlocal first, body
        body += part
        if not first and _TOKEN in body:
            first = perf_counter() - begun

    response = await client.exchange(stream_request(specialist, prompt, TOKENS), on_body)
    if response.status != 200 or not first:
        raise RuntimeError(f"no answer: status {response.status}, {body[:600]!r}")
    return first


_WINDOW = 1024  # the HTTP/2 window of an answer in bytes, which is never opened again
_SMALL = 4096  # bytes of the receive buffer
_ENDLESS = Order(100_000, joins=False)  # more than all buffers hold
Hold = Callable[[], Coroutine[Any, Any, None]]  # holds one connection until the server closes it


def holding(where: RouterSite, count: int) -> AbstractAsyncContextManager[None]:
    """Hold `count` idle connections, equally many of each kind. A connection that is closed is opened again."""
    return router_site.running(map(_again, islice(cycle(_kinds(where)), count)))


def _kinds(where: RouterSite) -> list[Hold]:
    http, grpc = where.http_port, int(where.router.rpartition(":")[2])
    half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9"
    return [
        lambda: _silent(http, half),
        lambda: _silent(http, stream_request(FASTEST, str(_ENDLESS), _ENDLESS.tokens)),
        lambda: _shut(grpc, _half_a_call()),
        lambda: _shut(grpc, _unread_call()),
    ]


async def _again(hold: Hold) -> None:
    while True:
        with suppress(OSError):
            await hold()
        await asyncio.sleep(0.5)


async def _silent(port: int, request: bytes) -> None:
    """Send the request and read nothing until the connection ends."""
    loop = asyncio.get_running_loop()
    with socket.socket() as held:
        held.setblocking(False)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        await loop.sock_connect(held, (HOST, port))
        await loop.sock_sendall(held, request)
        while held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x01":  # the state: established
            await asyncio.sleep(1.0)


async def _shut(port: int, request: bytes) -> None:
    """Send the request. Answer HTTP/2 settings and pings, but never open the flow-control window."""
    reader, writer = await asyncio.open_connection(HOST, port)
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
    """Return a connection preface and a HEADERS frame without END_HEADERS."""
    headers = frames.frame(frames.HEADERS, 0, 1, frames.encode_literal(":method", "POST"))
    return frames.PREFACE + frames.settings({}) + headers


def _unread_call() -> bytes:
    request = router_site.infer_request(str(_ENDLESS), _ENDLESS.tokens, FASTEST)
    headers = frames.encode_call_headers("http", "octet", ROUTER)
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


def _over_rest(door: str) -> str:
    return f"{door}: p99 of the first token, over that at rest"


TARGETS: Targets = {(REST, ADDED): "<= 1.5 ms", **{(BUSY, _over_rest(door)): "<= 1.2 x" for door in _DOORS}}
_MOST_WAITS, _WAIT_SECONDS = 240, 1.0
_IDLE = 0.1  # share of a core


def measure_endpoints(runs: int, seconds: float) -> list[BenchRecord]:
    board = Board(BENCH)
    with router_site.site() as where:
        uvloop.run(_measure(where, runs, seconds, board))
    return board.records()


async def _measure(where: RouterSite, runs: int, seconds: float, board: Board) -> None:
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(aio.insecure_channel(where.router))
        http, questions = HttpClient(HOST, where.http_port), router_site.new_questions()
        stack.callback(http.close)
        calls: dict[str, Call] = {
            "grpc": partial(first_chunk, router_site.router_ask(channel, router_site.new_questions(), TOKENS)),
            "http": lambda: first_token(http, *next(questions)),
        }
        await _round(calls, 0, 1.0)
        for number in range(runs):
            rest = await _round(calls, number, seconds)
            async with holding(where, HELD):
                await _settle(where)
                busy = await _round(calls, number, seconds)
            await _settle(where)
            added = (ADDED, "ms", rest["http", 50] - rest["grpc", 50])
            over = [(_over_rest(door), "x", busy[door, 99] / rest[door, 99]) for door in _DOORS]
            board.add(number, REST, "octet", [*_figures(rest), added])
            board.add(number, BUSY, "octet", [*_figures(busy), *over])


async def _settle(where: RouterSite) -> None:
    """Wait until the router is idle: then all buffers for callers that never read are full."""
    if not await router_site.becomes_idle(where.router_cpu, _IDLE, _WAIT_SECONDS, _MOST_WAITS):
        raise SiteFailed("the router did not become idle")


async def _round(calls: dict[str, Call], number: int, seconds: float) -> dict[tuple[str, int], float]:
    """Return milliseconds until the first token, by endpoint and percentile."""
    found: dict[tuple[str, int], float] = {}
    for door in Random(number).sample(_DOORS, len(_DOORS)):
        taken = await router_site.steady(calls[door], RATE, seconds)
        found |= {(door, percent): percentile(taken, percent) * 1e3 for percent in (50, 99)}
    return found


def _figures(found: dict[tuple[str, int], float]) -> list[tuple[str, str, float]]:
    return [(f"{door}: p{percent} of the first token", "ms", found[door, percent]) for door, percent in sorted(found)]
