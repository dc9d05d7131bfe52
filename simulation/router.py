"""A simulated router process with its store and classifier in memory."""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from octet.config.ensemble import Ensemble
from octet.rpc.memory import MemoryGuard
from router.api.grpc.services import InferenceService
from router.api.keys.gate import AccessGate
from router.assembly import RequestTraces, RouterCore, RouterEnvironment
from router.control.demand import USUAL_SECONDS
from router.dispatch.transport import Connect
from router.routing.classifier.base import ClassifierUnavailable, Distribution
from router.routing.policy import ClassifierClient
from router.store.connection import DatabaseConnection, SqliteMemory
from router.store.store import Store
from router.store.worker import StoreTask, StoreWorker
from router.verify.by_task import VerifierSet
from simulation.event_loop import HeapLoop, LoopClock, WallClock
from simulation.network import Port

T = TypeVar("T")
_COMMIT_SECONDS = 1e-3
_ID_BITS = 128
VerifierSource = Callable[[Ensemble], VerifierSet]


class _MemoryDatabase(SqliteMemory):
    """An in-memory database that outlives its connections and ends with the simulation."""

    def __init__(self) -> None:
        self._connection: DatabaseConnection | None = None

    def open(self) -> DatabaseConnection:
        if self._connection is None:
            self._connection = super().open()
            self._close, self._connection.close = self._connection.close, lambda: None  # type: ignore[method-assign]
        return self._connection


class _LoopWorker(StoreWorker):
    """Runs store tasks one after the other on the event loop instead of on a thread."""

    def __init__(self, loop: HeapLoop, *given: Any) -> None:
        super().__init__(*given)
        self._heap = loop
        self._num_waiting = 0
        self._free_at = 0.0

    def start(self) -> None:
        self._loop = self._heap

    def stop(self, stopped: Any) -> None:
        self._heap.call_at(self._next_turn(), self._close, stopped)

    def submit(self, job: StoreTask[T]) -> None:
        self._num_waiting += 1
        self._heap.call_at(self._next_turn(), self._do, job)

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    def _next_turn(self) -> float:
        self._free_at = max(self._free_at, self._heap.time()) + _COMMIT_SECONDS
        return self._free_at

    def _do(self, job: StoreTask[T]) -> None:
        self._num_waiting -= 1
        if job.set_running_or_notify_cancel():
            self._perform(job)

    def _close(self, stopped: Any) -> None:
        self._disconnect()
        stopped()


class NoClassifier:
    """A classifier that is always unavailable."""

    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return None

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        raise ClassifierUnavailable("this simulation has no classifier")


class SimulatedRouter(RouterCore):
    """A router. Create and use it inside `Process.context` of its simulated process, on a running loop."""

    def __init__(
        self,
        ensemble: Ensemble,
        addresses: dict[str, tuple[str, ...]],
        classifier: ClassifierClient,
        loop: HeapLoop,
        wall: WallClock,
        random: Random,
        connect: Connect,
        verifiers: VerifierSource,
    ) -> None:
        self.ensemble = ensemble
        self.clock = clock = LoopClock(loop)
        longest, worker = max(ensemble.correctness.window, USUAL_SECONDS), partial(_LoopWorker, loop)
        database = _MemoryDatabase()
        store = Store(database, ensemble.store, ensemble.name, longest, clock=clock, wall=wall.now, worker=worker)
        environment = RouterEnvironment(
            clock, wall.now, random, connect, lambda: f"{random.getrandbits(_ID_BITS):032x}", store, verifiers
        )
        gate, memory = AccessGate(None, clock, wall.now_ms), MemoryGuard(lambda: None, clock)
        traces = RequestTraces("", ensemble.telemetry, clock, random.randbytes)
        super().__init__(ensemble, addresses, classifier, environment, gate, memory, traces)
        self.port = Port()
        self.port.add_generic_rpc_handlers((InferenceService(self.service, self.slos.header).handler(),))

    async def warm(self, seconds: float) -> None:
        """Return once every specialist has a warm replica. Raises TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            while self.fleet.waiting_for:
                self.fleet.changed.clear()
                await self.fleet.changed.wait()
