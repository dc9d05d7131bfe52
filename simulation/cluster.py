"""Simulated machines with replicas, and any number of simulated routers in front of them."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple, Self, TypeVar

from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.rpc.memory import MemoryUsage
from router.dispatch.http2.call import ReadLimits
from router.dispatch.transport import ReplicaTarget
from router.verify.by_task import open_verifiers
from simulation.event_loop import HeapLoop, Process, WallClock
from simulation.network import Address, Channel, Delays, Link
from simulation.replica import ReplicaSpec, SimulatedReplica
from simulation.router import NoClassifier, SimulatedRouter
from specialist.engines.base import Completion
from specialist.engines.sim.engine import CostModel, FaultSource, InjectedFault, no_faults
from specialist.scheduling.step import Rollback, Step, StepOutcome

_T = TypeVar("_T")
_TOKEN = 1  # the only token that the timed engine emits; never a stop token
_RESTART_SECONDS = 0.5  # seconds until the supervisor has restarted a process
_WARM_SECONDS = 60.0
_FIRST_PORT = 10_000


class Machine:
    """Runs the processes of a replica, one at a time: starts, stops, resumes, kills and replaces them."""

    def __init__(
        self,
        name: str,
        spec: ReplicaSpec,
        loop: HeapLoop,
        random: Random,
        delays: Delays | None = None,
        faults: FaultSource = no_faults,
    ) -> None:
        self.name = name
        self.spec = spec
        self._loop = loop
        self._random = random
        self._faults = faults
        self.slowness = 1.0  # factor on the time of engine steps
        self.memory: MemoryUsage | None = None  # None if memory is not limited
        self.link = Link(loop, random, delays)
        self._address = Address()
        self.process = Process(name)
        self.replica: SimulatedReplica | None = None  # the current process; None while there is none
        self.on_start: list[Callable[[Machine], None]] = []
        self._num_starts = 0
        self._killed: list[Process] = []  # keeps killed processes, whose callbacks must not be garbage-collected

    def channel(self) -> Channel:
        """Return a channel to whichever process runs when a call is made."""
        return Channel(self._loop, self.link, self._address, self._random)

    def start(self) -> None:
        """Start a process unless one is running."""
        if self.replica is None:
            self.process = Process(f"{self.name}/{self._num_starts}")
            self._num_starts += 1
            self.process.context.copy().run(self._build)

    def _build(self) -> None:
        self.replica = SimulatedReplica(self.spec, self._loop, self._random, self._fault, lambda: self.memory)
        self.replica.on_failure = self._failed
        self._address.listen(self.process, self.replica.port)
        for callback in self.on_start:
            callback(self)
        self._loop.create_task(self.replica.start(), name=f"starting {self.name}")

    def _fault(self, step: Step) -> InjectedFault | None:
        fault = self._faults(step)
        if fault is None and self.slowness != 1.0:
            return InjectedFault("slow", factor=self.slowness)
        return fault

    def kill(self) -> None:
        """End the process as kill -9 does; its connections are reset."""
        if self.replica is not None:
            self.process.kill()
            self._killed.append(self.process)
            self.replica = None
            self.link.lose()

    def stop(self) -> None:
        """Stop the process as SIGSTOP does; its connections stay open."""
        self.process.stop()

    def resume(self) -> None:
        if self.process.state == "stopped":
            self._loop.resume(self.process)

    def _failed(self) -> None:
        """Let the supervisor replace the process soon, because its engine has died or cannot start."""
        outside = Process("supervisor").context
        self._loop.call_later(_RESTART_SECONDS, self._replace, self.process, context=outside)

    def _replace(self, process: Process) -> None:
        if self.process is process and self.replica is not None:
            self.kill()
            self.start()


class TimedEngine:
    """An engine that computes nothing and takes as long as the cost model says."""

    def __init__(self, cost: CostModel, clock: Clock) -> None:
        self._cost = cost
        self._clock = clock
        self._adapters: tuple[str, ...] = ()

    def run(self, step: Step) -> Iterable[Completion]:
        self._clock.sleep(self._cost.seconds(step, switched=step.adapters != self._adapters))
        self._adapters = step.adapters
        return [Completion(step, StepOutcome(tuple((_TOKEN,) * row.num_samples for row in step.rows)))]

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        """Does nothing: there is no KV memory to zero."""


class BusyTimes(NamedTuple):
    """Seconds for which engines and routers were busy, from the start of the simulation to `time`."""

    time: float
    engines: dict[str, float]  # simulated seconds, summed over the replicas of each specialist
    routers: tuple[float, ...]  # CPU seconds of this computer


class SimulatedCluster:
    """Simulated routers and replicas: `with SimulatedCluster(...) as cluster: cluster.run(coroutine)`. The coroutine
    awaits `cluster.start()` first."""

    def __init__(
        self,
        ensemble: Ensemble,
        specs: Mapping[str, ReplicaSpec],
        replicas: Mapping[str, int],
        *,
        routers: int,
        seed: int,
    ) -> None:
        self._ensemble = ensemble
        self.loop = HeapLoop()
        self._has_frozen = False
        self._cpu = self.loop.cpu_seconds = {}
        self._wall = WallClock(self.loop)
        self._random = Random(seed)
        self._machines: dict[str, tuple[Machine, ...]] = {}
        self._by_address: dict[str, Machine] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        for name, spec in specs.items():
            machines = tuple(Machine(f"{name}-{i}", spec, self.loop, self._fork()) for i in range(replicas[name]))
            first = _FIRST_PORT + len(self._by_address)
            self._machines[name] = machines
            self._addresses[name] = tuple(f"10.0.0.1:{first + i}" for i in range(len(machines)))
            self._by_address |= zip(self._addresses[name], machines, strict=True)
        self._processes = [Process(f"router-{number}") for number in range(routers)]
        self._routers: list[SimulatedRouter] = []
        self.callers: list[Channel] = []  # a channel to each router

    def _fork(self) -> Random:
        return Random(self._random.getrandbits(64))

    def _connect(self, target: ReplicaTarget, _: ReadLimits) -> Channel:
        return self._by_address[target.address].channel()

    async def start(self) -> None:
        """Start all processes. Return once every router knows a serving replica of every specialist."""
        for machine in self._by_address.values():
            machine.start()
        for process in self._processes:
            router = process.context.copy().run(self._build, process)
            await self.loop.create_task(router.start(), context=process.context.copy())
        await asyncio.gather(*(router.warm(_WARM_SECONDS) for router in self._routers))
        self._has_frozen = not gc.get_freeze_count()  # `gc.unfreeze()` would also release what the caller has frozen
        if self._has_frozen:
            gc.freeze()  # as routers and replicas do

    def _build(self, process: Process) -> SimulatedRouter:
        clocks = self.loop, self._wall, self._fork()
        router = SimulatedRouter(
            self._ensemble, self._addresses, NoClassifier(), *clocks, self._connect, open_verifiers
        )
        address = Address()
        address.listen(process, router.port)
        self._routers.append(router)
        self.callers.append(Channel(self.loop, Link(self.loop, self._fork()), address, self._fork()))
        return router

    async def stop(self) -> None:
        for process, router in zip(self._processes, self._routers, strict=True):
            await self.loop.create_task(router.close(), context=process.context.copy())

    def busy_times(self) -> BusyTimes:
        engines = {
            name: sum(each.replica.engine.busy_seconds for each in machines if each.replica is not None)
            for name, machines in self._machines.items()
        }
        routers = tuple(self._cpu.get(process.name, 0.0) for process in self._processes)
        return BusyTimes(self.loop.time(), engines, routers)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        result: _T = self.loop.run_until_complete(work)
        return result

    def __enter__(self) -> Self:
        gc.callbacks.append(self.loop.count_collection)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self.loop.count_collection)
        if self._has_frozen:
            gc.unfreeze()
        self.loop.cancel_all()
        self.loop.close()
