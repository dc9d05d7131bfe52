"""A replica behind a real socket, its callers, and simulated time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from typing import Any, TypeVar

from octet.client.replica import SpecialistClient, SpecialistError
from octet.clock import Clock, ManualClock, SystemClock
from octet.identity import Lane
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.engine import CostModel, FaultSource, SimModel
from specialist.engines.sim.vocabulary import NUM_SAMPLED
from specialist.scheduling.sequence import Request
from specialist.server.replica import AssembledReplica, create_sim_replica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ReplicaSettings, ServiceSettings
from tests.patience import PATIENCE, TEST_SECONDS

FREE = CostModel(*(0.0,) * 8)
QUICK = CostModel(0.0002, 0.00001, 0.0, 0.0005, 0.00002, 0.0, 0.0, 0.0)
"""A step takes about half a millisecond, so that a test can act in the middle of an answer."""

SLOW = CostModel(0.002, 0.002, 0.0, 0.01, 0.001, 0.0, 0.0, 0.0)
"""A decode step of one row takes 11 ms."""

_ResultT = TypeVar("_ResultT")


class Calls:
    """How the harness's clients call a replica."""

    are_attached = False


@dataclass
class ReplicaHarness:
    server: ReplicaServer
    replica: AssembledReplica
    client: SpecialistClient

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def idle(self) -> None:
        """Wait until no request is live."""
        async with asyncio.timeout(PATIENCE):
            while self.replica.scheduler.ledger.live or self.server.handler.num_live:
                await asyncio.sleep(0.005)

    def check_whole(self) -> None:
        """Check that every block of the pool is free and no request is live."""
        pool = self.replica.scheduler.pool
        pool.check()
        assert pool.num_free == pool.capacity
        assert not self.replica.scheduler.ledger.live


class PausableClock(ManualClock):
    """Simulated time, in which a step of the sim engine takes no real time. While the clock is paused, the engine stays
    inside its step, so that callers act at a known time."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = Condition()
        self._is_paused = False
        self._num_permits = 0
        self._num_sleeping = 0

    @property
    def holds_a_step(self) -> bool:
        """Whether the engine is inside a step that does not end before the next permit."""
        with self._changed:
            return self._num_sleeping > 0 and not self._num_permits

    def pause(self) -> None:
        self._is_paused = True

    def allow_step(self) -> None:
        with self._changed:
            self._num_permits = 1
            self._changed.notify_all()

    def resume(self) -> None:
        with self._changed:
            self._is_paused, self._num_permits = False, 0
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        with self._changed:
            self._num_sleeping += 1
            if not self._changed.wait_for(lambda: not self._is_paused or self._num_permits, PATIENCE):
                raise TimeoutError("the clock was not resumed")
            self._num_sleeping -= 1
            self._num_permits -= self._is_paused
        super().sleep(seconds)


def small(**settings: Any) -> ReplicaSettings:
    return ReplicaSettings(**{"name": "writer", "engine": "sim", "num_blocks": 128, "context": 512, **settings})


def sim(
    cost: CostModel = FREE, *, clock: Clock | None = None, faults: FaultSource = lambda step: None, **settings: Any
) -> Callable[[], AssembledReplica]:
    return lambda: create_sim_replica(small(**settings), clock or SystemClock(), cost, faults=faults)


@asynccontextmanager
async def running_replica(
    build: Callable[[], AssembledReplica] | None = None, **settings: Any
) -> AsyncIterator[ReplicaHarness]:
    replica = (build or sim())()
    server = ReplicaServer(replica, ServiceSettings(**{"port": 0, **settings}))
    await server.start()
    try:
        async with SpecialistClient(f"127.0.0.1:{server.port}", attach=Calls.are_attached) as client:
            assert await client.wait_attached() == Calls.are_attached
            yield ReplicaHarness(server, replica, client)
    finally:
        await server.stop(0)


@dataclass
class ReceivedAnswer:
    """All events that one call received."""

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

    def add(self, event: wire.GenerateEvent) -> None:
        """Add an event, and check that it may follow the earlier events."""
        kind = event.WhichOneof("event")
        assert self.usage is None, "no event may follow usage"
        if kind == "accepted":
            assert self.accepted is None and not self.chunks
            self.accepted = event.accepted
        elif kind == "chunk":
            assert self.accepted is not None
            self.chunks.append(event.chunk)
        else:
            assert kind == "usage" and self.accepted is not None
            self.usage = event.usage


async def ask(
    client: SpecialistClient, request: wire.GenerateRequest, *, timeout: float | None = None
) -> ReceivedAnswer:
    received = ReceivedAnswer()
    try:
        async for event in client.generate(request, timeout=timeout):
            received.add(event)
    except SpecialistError as error:
        received.error = error
    return received


def generate_request(text: str = "hello", **fields: Any) -> wire.GenerateRequest:
    return wire.GenerateRequest(**{"text": text, "max_tokens": 8, **fields})


def long_answer(num_tokens: int, **fields: Any) -> wire.GenerateRequest:
    return generate_request(**{"max_tokens": num_tokens, "ignore_eos": True, **fields})


def expected(
    replica: AssembledReplica, request: wire.GenerateRequest, adapters: tuple[str, ...] = ()
) -> tuple[int, ...]:
    """Return the sim model's answer to the request, computed directly, without blocks and batches."""
    prompt = tuple(request.tokens.ids) if request.HasField("tokens") else replica.codec.encode(request.text)
    lane = Lane(replica.lane.specialist, replica.lane.revision, adapters)
    stop_ids = frozenset() if request.ignore_eos else replica.codec.stop_ids
    plain = Request("x", lane, prompt, max_tokens=request.max_tokens, stop_ids=stop_ids, seed=request.seed)
    return SimModel(NUM_SAMPLED).answer(plain)


@asynccontextmanager
async def serving_simulated(
    cost: CostModel, *, max_waiting: int = 256, watch_seconds: float = 0.25, **settings: Any
) -> AsyncIterator[tuple[ReplicaHarness, PausableClock]]:
    """Serve in simulated time, so that the load of the machine changes no deadline and no forecast."""
    clock = PausableClock()
    build = sim(cost, clock=clock, **settings)
    async with running_replica(build, max_waiting=max_waiting, watch_seconds=watch_seconds) as served:
        try:
            yield served, clock
        finally:
            clock.resume()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def begin_call(served: ReplicaHarness, request: wire.GenerateRequest) -> "asyncio.Task[ReceivedAnswer]":
    return asyncio.create_task(ask(served.client, request))


async def begin_paused(
    served: ReplicaHarness, clock: PausableClock, request: wire.GenerateRequest
) -> "asyncio.Task[ReceivedAnswer]":
    """Start a request. Pause the engine inside a step after the request's first token. Return the request's task."""
    clock.pause()
    task = begin_call(served, request)
    bookings = served.server.controller.bookings

    def has_generated() -> bool:
        clock.allow_step()
        return any(entry.generated for entry in bookings.running)

    await until(has_generated)
    await until(lambda: clock.holds_a_step or task.done())
    return task


async def ask_and_resume(served: ReplicaHarness, clock: PausableClock, request: wire.GenerateRequest) -> ReceivedAnswer:
    """Send a request to the paused engine, resume the engine once the request is booked or refused, and return the
    answer."""
    bookings = served.server.controller.bookings
    before = set(bookings.active)
    task = begin_call(served, request)
    await until(lambda: task.done() or not before.issuperset(bookings.active))
    clock.resume()
    return await task


def adapter_directory(root: Path, name: str, content: bytes = b"weights") -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(content)
    return directory


def run(coroutine: Coroutine[Any, Any, _ResultT], seconds: float = TEST_SECONDS) -> _ResultT:
    async def bounded() -> _ResultT:
        async with asyncio.timeout(seconds):
            return await coroutine

    return asyncio.run(bounded())
