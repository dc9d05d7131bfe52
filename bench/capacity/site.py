"""A simulated ensemble with any number of routers before the same replicas."""

import asyncio
import gc
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, NamedTuple, Self, TypeVar

from bench.simulation.channel import Channel, Place
from bench.simulation.clock import Wall
from bench.simulation.heap_loop import HeapLoop
from bench.simulation.link import Link
from bench.simulation.machine import Machine
from bench.simulation.opinions import NoOpinions
from bench.simulation.process import Process
from bench.simulation.replica import ReplicaSpec
from bench.simulation.router import RouterHouse
from octet.config.ensemble import Ensemble
from octet.rpc.http2.channel import Reading
from router.after.verifiers import open_verifiers
from router.replicas.address import Target

_T = TypeVar("_T")
_WARM_SECONDS = 60.0
_FIRST_PORT = 10_000


class Spent(NamedTuple):
    """Seconds, up to some moment."""

    time: float
    engines: dict[str, float]
    """Of all replicas of each specialist together, simulated."""
    routers: tuple[float, ...]
    """Of this computer's CPU."""


class Site:
    """Use it as `with Site(...) as site: site.run(coroutine)`; inside of that `await site.start()` comes first."""

    def __init__(
        self,
        ensemble: Ensemble,
        specs: Mapping[str, ReplicaSpec],
        replicas: Mapping[str, int],
        *,
        routers: int,
        seed: int,
    ) -> None:
        self.config = ensemble
        self.loop = HeapLoop()
        self._cpu: dict[str, float] = {}
        self.loop.cpu_seconds = self._cpu
        self._wall = Wall(self.loop)
        self._random = Random(seed)
        self.machines: dict[str, tuple[Machine, ...]] = {}
        self._by_address: dict[str, Machine] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        for name, spec in specs.items():
            self._add(name, spec, replicas[name])
        self._routers = [Process(f"router-{number}") for number in range(routers)]
        self._houses: list[RouterHouse] = []
        self.callers: list[Channel] = []
        """A way to each router."""

    def _add(self, name: str, spec: ReplicaSpec, count: int) -> None:
        first = _FIRST_PORT + len(self._by_address)
        machines = {
            f"10.0.0.1:{first + i}": Machine(f"{name}-{i}", spec, self.loop, self._fork()) for i in range(count)
        }
        self.machines[name] = tuple(machines.values())
        self._addresses[name] = tuple(machines)
        self._by_address |= machines

    def _fork(self) -> Random:
        return Random(self._random.getrandbits(64))

    def _dial(self, target: Target, _: Any, __: Reading) -> Channel:
        return self._by_address[target.address].channel()

    async def start(self) -> None:
        """Returns when every router knows a replica of every specialist that serves."""
        for machine in self._by_address.values():
            machine.start()
        for process in self._routers:
            house = process.context.copy().run(self._build, process)
            await self.loop.create_task(house.start(), context=process.context.copy())
        await asyncio.gather(*(house.warm(_WARM_SECONDS) for house in self._houses))
        gc.freeze()  # as routers and replicas do

    def _build(self, process: Process) -> RouterHouse:
        clocks = self.loop, self._wall, self._fork()
        house = RouterHouse(self.config, self._addresses, NoOpinions(), *clocks, self._dial, open_verifiers)
        place = Place()
        place.listen(process, house.port)
        self._houses.append(house)
        self.callers.append(Channel(self.loop, Link(self.loop, self._fork()), place, self._fork()))
        return house

    async def stop(self) -> None:
        for process, house in zip(self._routers, self._houses, strict=True):
            await self.loop.create_task(house.stop(), context=process.context.copy())

    def spent(self) -> "Spent":
        """Since the beginning."""
        busy = {name: sum(_busy(machine) for machine in machines) for name, machines in self.machines.items()}
        return Spent(self.loop.time(), busy, tuple(self._cpu.get(process.name, 0.0) for process in self._routers))

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        result: _T = self.loop.run_until_complete(work)
        return result

    def __enter__(self) -> Self:
        gc.callbacks.append(self.loop.collecting)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self.loop.collecting)
        gc.unfreeze()
        self.loop.wind_up()
        self.loop.close()


def _busy(machine: Machine) -> float:
    return 0.0 if machine.house is None else machine.house.engine.busy_seconds
