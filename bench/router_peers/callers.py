"""Paths to an answer: router processes, and callers that count tokens at little cost."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Self

import grpc
from grpc import aio

from bench.http_client import HttpClient, chat_request
from bench.processes import PeerFailed, ServerProcess, pinned, tree
from bench.router_peers.cases import WORD, Order
from bench.router_site import TOPICS
from router.dispatch.transport import READ_LIMITS, ReplicaTarget, open_transport

_LINE = "for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights.at(i);\n"
_numbers = count()


def prompts(size: int) -> Iterator[str]:
    """Yield new prompts of at least `size` bytes, which no cache holds."""
    for number, topic in zip(_numbers, cycle(TOPICS.values()), strict=False):
        head = f"{topic} (case {number})\n"
        yield head + _LINE * (max(0, size - len(head)) // len(_LINE) + bool(size))


OnTokens = Callable[[int, int], None]  # called with the number of tokens and of messages
Request = Callable[[str, int], bytes]  # builds a request from a prompt and a number of tokens
_WORD = WORD.encode()
_FIRST_WORD = b'"' + _WORD  # at the beginning of a message
_SHOWN = 300


class CallFailed(RuntimeError):
    """There was no answer. The message is one line."""


class TokenCounter:
    """Counts the tokens of one answer, regardless of how its bytes are split."""

    def __init__(self, on_tokens: OnTokens | None) -> None:
        self._on_tokens = on_tokens
        self._began = perf_counter()
        self._first = 0.0
        self._tail = b""

    def add(self, data: bytes) -> None:
        joined = self._tail + data
        self._count(joined.count(_WORD) - self._tail.count(_WORD), joined.count(_FIRST_WORD))
        self._tail = joined[-(len(_FIRST_WORD) - 1) :]

    def add_message(self, message: bytes) -> None:
        self._count(message.count(_WORD), 1)

    def _count(self, tokens: int, messages: int) -> None:
        if tokens:
            self._first = self._first or perf_counter() - self._began
            if self._on_tokens is not None:
                self._on_tokens(tokens, messages)

    def first_token(self) -> float:
        """Return the seconds until the first token. Raises CallFailed if there is none."""
        if not self._first:
            raise CallFailed(f"the answer has no token: {self._tail[:_SHOWN]!r}")
        return self._first


class Caller(ABC):
    async def __aenter__(self) -> Self:
        return self

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...

    @abstractmethod
    async def call(self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True) -> float:
        """Read an answer to its end, and return the seconds until its first token. Raises CallFailed."""


class HttpCaller(Caller):
    """Calls `/v1/chat/completions`."""

    def __init__(self, host: str, port: int, model: str, *, acks_at_once: bool) -> None:
        self._host, self._port, self._model = host, port, model
        self._client = HttpClient(host, port, acks_at_once=acks_at_once)

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    async def call(self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True) -> float:
        content, key = f"{prompt} {order}", "authorization: Bearer none\r\n"
        request = chat_request(self._host, self._model, content, order.tokens, key, stream=stream)
        counter = TokenCounter(on_tokens)
        try:
            response = await self._client.exchange(request, counter.add)
        except ConnectionRefusedError as error:
            raise CallFailed(f"nothing listens on port {self._port}: {error}") from error
        except OSError as error:
            raise CallFailed(str(error)) from error
        if response.status != 200:
            raise CallFailed(f"refused with status {response.status}")
        return counter.first_token()


class GrpcCaller(Caller):
    """Calls with grpcio, or with the router's own client of replicas, which uses less CPU."""

    def __init__(self, address: str, method: str, request: Request, *, own_client: bool = False) -> None:
        self._address, self._method, self._request, self._own_client = address, method, request, own_client

    async def __aenter__(self) -> Self:
        if self._own_client:
            self._channel: Any = open_transport()(ReplicaTarget("0", self._address), READ_LIMITS)
            self._generate = partial(self._channel.stream, self._method)
        else:
            self._channel = aio.insecure_channel(self._address)
            self._generate = self._channel.unary_stream(self._method)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True) -> float:
        """Ignore `stream`: over gRPC, every answer is a stream."""
        request = self._request(f"{prompt} {order}", order.tokens)
        counter = TokenCounter(on_tokens)
        try:
            async for event in self._generate(request):
                counter.add_message(event)
        except grpc.RpcError as error:
            raise CallFailed(f"{error.code().name}: {error.details()}") from error
        return counter.first_token()


class RouterProcess(ServerProcess):
    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, cores: set[int]) -> None:
        with pinned(cores):
            super().__init__(name, command, env, log)

    def memory(self) -> int:
        return sum(map(_read_pss, tree(self.pid)))


def _read_pss(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/{pid}/smaps_rollup has no Pss")
    return int(found[1]) * 1024


_POLL = 0.25
_FIRST, _WARM, _WARM_CALLS = Order(1), Order(8), 40


@dataclass(frozen=True, slots=True)
class RoutePath:
    system: str
    router: RouterProcess | None  # None: directly to a backend
    caller: Callable[[bool], Caller]  # the argument states whether to acknowledge immediately


async def until_it_answers(path: RoutePath, seconds: float) -> None:
    end = monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(max(_POLL, end - monotonic())), path.caller(True) as caller:
                await caller.call(next(prompts(0)), _FIRST)
                return
        except (CallFailed, TimeoutError) as error:
            if path.router is not None:
                path.router.check()
            if monotonic() > end:
                raise PeerFailed(path.system, f"no answer within {seconds:g} s: {str(error)[:300]}") from error
        await asyncio.sleep(_POLL)


async def warm_up(path: RoutePath) -> None:
    """Make the router do its one-time work."""
    try:
        async with path.caller(True) as caller:
            for _ in range(_WARM_CALLS):
                await caller.call(next(prompts(0)), _WARM)
    except CallFailed as error:
        raise PeerFailed(path.system, f"failed while it warmed up: {error}") from error
