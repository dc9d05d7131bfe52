"""A router behind a real socket, whose replicas have sockets of their own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from octet.config.ensemble import DispatchConfig, Ensemble, RouterConfig, SpecialistConfig, TaskConfig
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.api.keys.key_file import KeySource
from router.dispatch.transport import ReplicaTls
from router.routing.classifier.base import Distribution
from router.server import RouterServer
from router.settings import HttpSettings, RouterSettings
from tests.patience import PATIENCE

_SERVICE = "/octet.v1.Inference/"


class NoOpinions:
    """A classifier that must not be called: every request names its specialist."""

    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        raise AssertionError(f"classified {text!r}")

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        raise AssertionError(f"classified {text!r}")


def ensemble_of(*names: str, dispatch: DispatchConfig | None = None, router: RouterConfig | None = None) -> Ensemble:
    return Ensemble(
        specialists=tuple(SpecialistConfig(name, max_running=8) for name in names),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=64, top_p=1.0, repetition_penalty=1.0),),
        dispatch=dispatch or patient_dispatch(),
        router=router or RouterConfig(default_timeout=2 * PATIENCE),
    )


@dataclass
class CallResult:
    """All events that one call received."""

    routed: list[wire.Receipt] = field(default_factory=list)
    chunks: list[wire.Chunk] = field(default_factory=list)
    receipt: wire.Receipt | None = None
    """The receipt from the last event or from the trailing metadata."""
    code: grpc.StatusCode = grpc.StatusCode.OK
    error: error_pb2.Error | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def reason(self) -> int:
        return error_pb2.ERROR_REASON_UNSPECIFIED if self.error is None else self.error.reason

    def add(self, event: wire.InferEvent) -> None:
        """Add an event, and check that the order is as the protocol promises."""
        kind = event.WhichOneof("event")
        assert self.receipt is None, "the receipt must be the last event"
        if kind == "routed":
            assert not self.chunks
            self.routed.append(event.routed)
        elif kind == "chunk":
            assert self.routed
            self.chunks.append(event.chunk)
        else:
            assert kind == "receipt" and self.routed
            self.receipt = event.receipt

    def end(self, error: Any) -> None:
        beside = dict(error.trailing_metadata() or ())
        self.code = error.code()
        if "octet-error-bin" in beside:
            self.error = error_pb2.Error.FromString(beside["octet-error-bin"])
        if "octet-receipt-bin" in beside:
            self.receipt = wire.Receipt.FromString(beside["octet-receipt-bin"])


@dataclass
class RouterHarness:
    server: RouterServer
    channel: Any

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def generate(self, request: wire.InferRequest, **options: Any) -> Any:
        method = self.channel.unary_stream(
            f"{_SERVICE}Generate", wire.InferRequest.SerializeToString, wire.InferEvent.FromString
        )
        return method(request, **options)

    async def ask(self, request: wire.InferRequest, **options: Any) -> CallResult:
        result = CallResult()
        try:
            async for event in self.generate(request, **options):
                result.add(event)
        except grpc.aio.AioRpcError as error:
            result.end(error)
        return result

    async def call(self, name: str, request: Any, answer: Any, **options: Any) -> Any:
        """Return the result of a unary call. Raises AioRpcError if the call fails."""
        method = self.channel.unary_unary(f"{_SERVICE}{name}", type(request).SerializeToString, answer.FromString)
        return await method(request, **options)

    async def refused(self, name: str, request: Any, answer: Any, **options: Any) -> CallResult:
        result = CallResult()
        try:
            await self.call(name, request, answer, **options)
        except grpc.aio.AioRpcError as error:
            result.end(error)
        return result

    async def until(self, condition: Any, seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    async def idle(self) -> None:
        """Wait until no request is live or in flight."""
        await self.until(lambda: not len(self.server.live) and not self.num_inflight)

    @property
    def num_inflight(self) -> int:
        return sum(replica.inflight for replica in self.server.fleet.replicas)


@asynccontextmanager
async def running_router(
    replicas: Mapping[str, Sequence[str]],
    *,
    warm: bool = True,
    opinions: Any = None,
    replica_tls: ReplicaTls | None = None,
    http: HttpSettings | None = None,
    keys: KeySource | None = None,
    otlp: str = "",
    **settings: Any,
) -> AsyncIterator[RouterHarness]:
    """Run a router with these replicas. `settings` are arguments of `ensemble_of`. An ensemble with default dispatch
    settings gets `patient_dispatch`."""
    ensemble = settings.pop("ensemble", None) or ensemble_of(*replicas, **settings)
    if ensemble.dispatch == DispatchConfig():
        ensemble = replace(ensemble, dispatch=patient_dispatch())
    places = {name: tuple(addresses) for name, addresses in replicas.items()}
    door = RouterSettings(replicas=places, replica_tls=replica_tls, http=http, keys=keys, otlp=otlp)
    server = RouterServer(ensemble, door, opinions or NoOpinions())
    await server.start()
    try:
        if warm:
            async with asyncio.timeout(PATIENCE):
                await server.warm()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield RouterHarness(server, channel)
    finally:
        await server.stop(0)


def infer_request(text: str = "hello", specialist: str = "writer", **fields: Any) -> wire.InferRequest:
    return wire.InferRequest(**{"prompt": text, "force_specialists": [specialist], "max_tokens": 8, **fields})


def patient_dispatch(**changes: Any) -> DispatchConfig:
    """Return settings with which a replica does not count as hung if a busy machine delays its reports."""
    return replace(DispatchConfig(hang_seconds=60.0), **changes)
