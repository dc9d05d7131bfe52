"""A caller over gRPC, of Octet's router or straight of a replica."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, Self

import grpc
from grpc import aio

from bench.router_peers.http_caller import CallFailed, Heard
from bench.router_peers.order import WORD, Order
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire

_WORD = WORD.encode()
ROUTER, REPLICA = "/octet.v1.Inference/Generate", "/octet.v1.Specialist/Generate"


def router_request(specialist: str) -> Callable[[str, int], bytes]:
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
    """Belongs to the event loop."""

    def __init__(self, address: str, method: str, request: Callable[[str, int], bytes]) -> None:
        self._address, self._method, self._request = address, method, request

    async def __aenter__(self) -> Self:
        self._channel = aio.insecure_channel(self._address)
        self._generate: Any = self._channel.unary_stream(self._method)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, prompt: str, order: Order, heard: Heard | None = None, *, stream: bool = True) -> float:
        """Seconds to the first token. Raises CallFailed. A whole answer is a stream that is read to its end."""
        request = self._request(f"{prompt} {order}", order.tokens)
        began, first = perf_counter(), 0.0
        try:
            async for event in self._generate(request):
                tokens = event.count(_WORD)
                if tokens:
                    first = first or perf_counter() - began
                    if heard is not None:
                        heard(tokens, 1)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(f"{error.code().name}: {error.details()}") from error
        if not first:
            raise CallFailed("an answer without a token")
        return first
