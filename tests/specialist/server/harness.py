"""A replica behind a real socket, and callers that behave and misbehave."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from octet.client.replica import SpecialistClient, SpecialistError
from octet.clock import SystemClock
from octet.identity import Lane
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.engine import CostModel, FaultSource, SimModel
from specialist.engines.sim.vocabulary import NUM_SAMPLED
from specialist.scheduling.sequence import Request
from specialist.server.replica import AssembledReplica, create_sim_replica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ReplicaSettings, ServiceSettings
from specialist.server.validation import GenerateLimits

FREE = CostModel(*(0.0,) * 8)
QUICK = CostModel(0.0002, 0.00001, 0.0, 0.0005, 0.00002, 0.0, 0.0, 0.0)
"""A step takes half a millisecond: long enough to be caught in the middle of an answer."""

_ResultT = TypeVar("_ResultT")


@dataclass
class Served:
    server: ReplicaServer
    replica: AssembledReplica
    client: SpecialistClient

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def idle(self) -> None:
        """Until nothing is live, and then once more through the engine's thread."""
        async with asyncio.timeout(60):
            while self.replica.scheduler.ledger.live or self.server.handler.num_live:
                await asyncio.sleep(0.005)

    def check_whole(self) -> None:
        """Every block is free, and the pool proves itself."""
        pool = self.replica.scheduler.pool
        pool.check()
        assert pool.num_free == pool.capacity
        assert not self.replica.scheduler.ledger.live


def small(**settings: Any) -> ReplicaSettings:
    return ReplicaSettings(**{"name": "writer", "engine": "sim", "num_blocks": 128, "context": 512, **settings})


def sim(
    cost: CostModel = FREE, *, faults: FaultSource = lambda step: None, **settings: Any
) -> Callable[[], AssembledReplica]:
    return lambda: create_sim_replica(small(**settings), SystemClock(), cost, faults=faults)


@asynccontextmanager
async def serving(
    build: Callable[[], AssembledReplica] | None = None, *, limits: GenerateLimits | None = None, **settings: Any
) -> AsyncIterator[Served]:
    replica = (build or sim())()
    server = ReplicaServer(replica, ServiceSettings(**{"port": 0, **settings}), limits)
    await server.start()
    try:
        async with SpecialistClient(f"127.0.0.1:{server.port}") as client:
            yield Served(server, replica, client)
    finally:
        await server.stop(0)


@dataclass
class Heard:
    """All events of one call."""

    accepted: wire.Accepted | None = None
    chunks: list[wire.Chunk] = field(default_factory=list)
    usage: wire.Usage | None = None
    error: SpecialistError | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    def hear(self, event: wire.GenerateEvent) -> None:
        """In the order the contract promises."""
        kind = event.WhichOneof("event")
        assert self.usage is None, "nothing comes after usage"
        if kind == "accepted":
            assert self.accepted is None and not self.chunks
            self.accepted = event.accepted
        elif kind == "chunk":
            assert self.accepted is not None
            self.chunks.append(event.chunk)
        else:
            assert kind == "usage" and self.accepted is not None
            self.usage = event.usage


async def ask(client: SpecialistClient, request: wire.GenerateRequest, *, timeout: float | None = None) -> Heard:
    heard = Heard()
    try:
        async for event in client.generate(request, timeout=timeout):
            heard.hear(event)
    except SpecialistError as error:
        heard.error = error
    return heard


def asking(text: str = "hello", **fields: Any) -> wire.GenerateRequest:
    return wire.GenerateRequest(**{"text": text, "max_tokens": 8, **fields})


def expected(
    replica: AssembledReplica, request: wire.GenerateRequest, adapters: tuple[str, ...] = ()
) -> tuple[int, ...]:
    """The sim model's answer, computed without blocks or batches."""
    prompt = tuple(request.tokens.ids) if request.HasField("tokens") else replica.codec.encode(request.text)
    lane = Lane(replica.lane.specialist, replica.lane.revision, adapters)
    stop_ids = frozenset() if request.ignore_eos else replica.codec.stop_ids
    plain = Request("x", lane, prompt, max_tokens=request.max_tokens, stop_ids=stop_ids, seed=request.seed)
    return SimModel(NUM_SAMPLED).answer(plain)


def adapter_directory(root: Path, name: str, content: bytes = b"weights") -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(content)
    return directory


def run(coroutine: Coroutine[Any, Any, _ResultT], seconds: float = 150) -> _ResultT:
    async def bounded() -> _ResultT:
        async with asyncio.timeout(seconds):
            return await coroutine

    return asyncio.run(bounded())
