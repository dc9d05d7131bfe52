"""Stands where a grpc.aio.Channel would: calls to one place, over one link."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import grpc

from bench.simulation.call import Call, Pairs
from bench.simulation.heap_loop import HeapLoop
from bench.simulation.link import Link
from bench.simulation.port import Port
from bench.simulation.process import Process

_FIRST_BACKOFF = 0.1
_MOST_BACKOFF = 0.5
"""As the router's channels are configured."""
_REFUSED_SECONDS = 1e-3
Serialize: TypeAlias = Callable[[Any], bytes]
Parse: TypeAlias = Callable[[bytes], Any]


class Place:
    """An address. Whoever listens there may be gone, and somebody else may come."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.port: Port | None = None

    def listen(self, process: Process, port: Port) -> None:
        self.process, self.port = process, port

    @property
    def is_open(self) -> bool:
        """The machine answers a connection, also for a process that is stopped."""
        return self.process is not None and self.process.state != "dead"


class Channel:
    def __init__(self, loop: HeapLoop, link: Link, place: Place, random: Random) -> None:
        self._loop = loop
        self._link = link
        self._place = place
        self._random = random
        self._open: dict[Call, None] = {}
        self._waiting: dict[Call, Callable[[], None]] = {}
        """For a connection."""
        self._dialling: asyncio.TimerHandle | None = None
        self._backoff = _FIRST_BACKOFF
        self._closed = False
        link.on_loss.append(self._lost)

    def unary_stream(self, method: str, serialize: Serialize | None = None, parse: Parse | None = None) -> Any:
        def call(
            request: Any, *, timeout: float | None = None, metadata: Pairs | None = None, wait_for_ready: bool = False
        ) -> Call:
            raw = request if serialize is None else serialize(request)
            return self._call(method, raw, timeout, tuple(metadata or ()), parse, wait_for_ready)

        return call

    unary_unary = unary_stream

    async def close(self) -> None:
        self._closed = True
        self._link.on_loss.remove(self._lost)
        for call in tuple(self._open):
            call.cancel()
        if self._dialling is not None:
            self._dialling.cancel()

    def _call(
        self, method: str, raw: bytes, timeout: float | None, metadata: Pairs, parse: Parse | None, waits: bool
    ) -> Call:
        call = Call(self._loop, self._link, timeout, parse, self._gone)
        self._open[call] = None
        if self._connected():
            self._send(call, method, raw, metadata)
        elif waits:
            self._waiting[call] = lambda: self._send(call, method, raw, metadata)
            self._dial_later()
        else:
            self._loop.call_later(_REFUSED_SECONDS, call.fail, grpc.StatusCode.UNAVAILABLE, "failed to connect")
        return call

    def _connected(self) -> bool:
        return self._place.is_open and self._link.is_whole

    def _send(self, call: Call, method: str, raw: bytes, metadata: Pairs) -> None:
        place = self._place
        if place.process is None or place.port is None:
            raise RuntimeError("nobody listens there")
        call.begin(place.port, place.process, method, raw, metadata)

    def _dial_later(self) -> None:
        if self._dialling is None and not self._closed:
            seconds = self._backoff * (0.8 + 0.4 * self._random.random())
            self._dialling = self._loop.call_later(seconds, self._dial)

    def _dial(self) -> None:
        self._dialling = None
        if not self._connected():
            self._backoff = min(2 * self._backoff, _MOST_BACKOFF)
            if self._waiting:
                self._dial_later()
            return
        self._backoff = _FIRST_BACKOFF
        waiting, self._waiting = self._waiting, {}
        for send in waiting.values():
            send()

    def _gone(self, call: Call) -> None:
        self._open.pop(call, None)
        self._waiting.pop(call, None)

    def _lost(self) -> None:
        """The connection is gone: callers hear it soon, handlers too where there are any left."""
        for call in tuple(self._open):
            if call.handling is None:
                continue
            call.handling.lost()
            self._loop.call_later(_REFUSED_SECONDS, call.fail, grpc.StatusCode.UNAVAILABLE, "the connection was lost")
