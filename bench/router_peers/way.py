"""Ways to an answer: whom to ask, and through which router."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, Self

from bench.peers.process import PeerFailed
from bench.router_peers.http_caller import CallFailed, Heard
from bench.router_peers.order import Order
from bench.router_peers.process import RouterProcess
from bench.router_peers.prompt import prompts

OCTET, CLASSIFIED, GRPC = "octet", "octet, classified", "octet, gRPC"
LIMIT, GRPC_LIMIT, REPLICA_LIMIT = "limit", "limit, gRPC", "limit, replica"
"""Straight to a backend: of the peers, of ours with gRPC's own client, and of ours with one that costs nothing."""
_POLL = 0.25
_FIRST, _WARM, _WARM_CALLS = Order(1), Order(8), 40


class Caller(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def call(self, prompt: str, order: Order, heard: Heard | None = None, *, stream: bool = True) -> float: ...


@dataclass(frozen=True, slots=True)
class Way:
    system: str
    router: RouterProcess | None
    """None: straight to a backend."""
    caller: Callable[[bool], Caller]
    """Of: whether it acknowledges at once what it receives."""


async def until_it_answers(way: Way, seconds: float) -> None:
    """Raises PeerFailed when it has died, or does not within so many seconds."""
    end = monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(max(_POLL, end - monotonic())), way.caller(True) as caller:
                await caller.call(next(prompts(0)), _FIRST)
                return
        except (CallFailed, TimeoutError) as error:
            if way.router is not None:
                way.router.check()
            if monotonic() > end:
                raise PeerFailed(way.system, f"no answer within {seconds:g} s: {str(error)[:300]}") from error
        await asyncio.sleep(_POLL)


async def warm_up(way: Way) -> None:
    """What a router does only once is done before anything counts. Raises PeerFailed."""
    try:
        async with way.caller(True) as caller:
            for _ in range(_WARM_CALLS):
                await caller.call(next(prompts(0)), _WARM)
    except CallFailed as error:
        raise PeerFailed(way.system, f"failed while it warmed up: {error}") from error
