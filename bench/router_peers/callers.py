"""Paths to an answer: router processes, and callers that count tokens and cost little."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Protocol, Self

import grpc
from grpc import aio

from bench.http_client import HttpClient, chat_request
from bench.peers.process import PeerFailed, ServerProcess, tree
from bench.processes import pinned
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from router.dispatch.transport import READ_LIMITS, ReplicaTarget, open_transport

_TOLD = re.compile(rb"\[(\d+) tokens every (\d+) us(, each by itself)?\]")
_BEGINS = b"["
WORD = " word"  # one token; no prompt contains it


class OrderMissing(ValueError):
    """A prompt without an order."""


@dataclass(frozen=True, slots=True)
class Order:
    tokens: int
    pace_us: int = 0  # microseconds between tokens
    joins: bool = True  # whether a replica may join tokens into one message

    def __str__(self) -> str:
        return f"[{self.tokens} tokens every {self.pace_us} us{'' if self.joins else ', each by itself'}]"

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The last order in the text. Searched from the end: a prompt may be long."""
        at = len(raw)
        while (at := raw.rfind(_BEGINS, 0, at)) >= 0:
            found = _TOLD.match(raw, at)
            if found is not None:
                return cls(int(found[1]), int(found[2]), found[3] is None)
        raise OrderMissing(f"no order in {raw[-200:]!r}")


_TOPICS = (
    "why does SFINAE drop this overload when the concept is not satisfied",
    "which iterator category does std::ranges::sort want of a std::deque",
    "write a function for the longest increasing subsequence in n log n",
    "who owns the raw pointer after std::unique_ptr::release returns it",
    "is a relaxed atomic load enough to see what the other thread wrote under the mutex",
    "epoll_wait returns EINTR when the process gets a signal, how do I go on",
    "target_link_libraries does not find the static library of the subdirectory",
    "the program prints the wrong sum, find the bug in the loop",
)
_LINE = "for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights.at(i);\n"
_numbers = count()


def prompts(size: int) -> Iterator[str]:
    """Every text is new, so that no classifier and no cache has it."""
    for number, topic in zip(_numbers, cycle(_TOPICS), strict=False):
        head = f"{topic} (case {number})\n"
        yield head + _LINE * (max(0, size - len(head)) // len(_LINE) + bool(size))


OnTokens = Callable[[int, int], None]  # called with the number of tokens and of messages
Request = Callable[[str, int], bytes]  # of a prompt and a number of tokens
_WORD = WORD.encode()
_FIRST_WORD = b'"' + _WORD  # at the beginning of a message
_SHOWN = 300
ROUTER, REPLICA = "/octet.v1.Inference/Generate", "/octet.v1.Specialist/Generate"


class CallFailed(RuntimeError):
    """There was no answer. The message is one line."""


class TokenCounter:
    """Counts the tokens of one answer, however its bytes are cut."""

    def __init__(self, on_tokens: OnTokens | None) -> None:
        self._on_tokens = on_tokens
        self._began = perf_counter()
        self._first = 0.0
        self._tail = b""

    def add(self, data: bytes) -> None:
        joined = self._tail + data
        tokens = joined.count(_WORD) - self._tail.count(_WORD)
        if tokens:
            self._first = self._first or perf_counter() - self._began
            if self._on_tokens is not None:
                self._on_tokens(tokens, joined.count(_FIRST_WORD))
        self._tail = joined[-(len(_FIRST_WORD) - 1) :]

    def add_message(self, message: bytes) -> None:
        tokens = message.count(_WORD)
        if tokens:
            self._first = self._first or perf_counter() - self._began
            if self._on_tokens is not None:
                self._on_tokens(tokens, 1)

    def first_token(self) -> float:
        """Seconds. Raises CallFailed."""
        if not self._first:
            raise CallFailed(f"an answer without a token: {self._tail[:_SHOWN]!r}")
        return self._first


class HttpCaller:
    """Of `/v1/chat/completions`."""

    def __init__(self, host: str, port: int, model: str, *, acks_at_once: bool) -> None:
        self._host, self._port, self._model = host, port, model
        self._client = HttpClient(host, port, acks_at_once=acks_at_once)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    async def call(self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True) -> float:
        """Seconds to the first token of an answer that is read to its end. Raises CallFailed."""
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


def router_request(specialist: str) -> Request:
    def request(prompt: str, tokens: int) -> bytes:
        asked = wire.InferRequest(force_specialists=[specialist], max_tokens=tokens)
        asked.messages.add(role="user", content=prompt)
        return bytes(asked.SerializeToString())

    return request


def replica_request(prompt: str, tokens: int) -> bytes:
    asked = replica_wire.GenerateRequest(max_tokens=tokens)
    asked.chat.messages.add(role="user", content=prompt)
    return bytes(asked.SerializeToString())


class GrpcCaller:
    """With grpcio, or with the router's own client of replicas, which costs less."""

    def __init__(self, address: str, method: str, request: Request, *, own_client: bool = False) -> None:
        self._address, self._method, self._request, self._own_client = address, method, request, own_client

    async def __aenter__(self) -> Self:
        if self._own_client:
            self._channel: Any = open_transport()(ReplicaTarget("0", self._address), READ_LIMITS)
        else:
            self._channel = aio.insecure_channel(self._address)
            self._generate = self._channel.unary_stream(self._method)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True) -> float:
        """Seconds to the first token. Raises CallFailed. A whole answer is a stream that is read to its end."""
        request = self._request(f"{prompt} {order}", order.tokens)
        counter = TokenCounter(on_tokens)
        try:
            async for event in self._start(request):
                counter.add_message(event)
        except grpc.RpcError as error:
            raise CallFailed(f"{error.code().name}: {error.details()}") from error
        return counter.first_token()

    def _start(self, request: bytes) -> Any:
        return self._channel.stream(self._method, request) if self._own_client else self._generate(request)


class RouterProcess(ServerProcess):
    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, cores: set[int]) -> None:
        with pinned(cores):
            super().__init__(name, command, env, log)

    def memory(self) -> int:
        return sum(map(_pss_of, tree(self.pid)))


def _pss_of(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/{pid}/smaps_rollup has no Pss")
    return int(found[1]) * 1024


OCTET, CLASSIFIED, GRPC = "octet", "octet, classified", "octet, gRPC"
LIMIT, GRPC_LIMIT, REPLICA_LIMIT = "limit", "limit, gRPC", "limit, replica"
# directly to a backend: of the peers; of Octet with grpcio; of Octet with a client that costs less
_POLL = 0.25
_FIRST, _WARM, _WARM_CALLS = Order(1), Order(8), 40


class Caller(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def call(
        self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True
    ) -> float: ...


@dataclass(frozen=True, slots=True)
class RoutePath:
    system: str
    router: RouterProcess | None  # None: directly to a backend
    caller: Callable[[bool], Caller]  # argument: whether to acknowledge at once


async def until_it_answers(way: RoutePath, seconds: float) -> None:
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


async def warm_up(way: RoutePath) -> None:
    """Does what a router does only once."""
    try:
        async with way.caller(True) as caller:
            for _ in range(_WARM_CALLS):
                await caller.call(next(prompts(0)), _WARM)
    except CallFailed as error:
        raise PeerFailed(way.system, f"failed while it warmed up: {error}") from error
