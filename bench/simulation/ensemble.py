"""A whole ensemble on one event heap: a router, replicas behind it, and callers in front."""

from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, TypeVar

from bench.simulation.channel import Channel, Place
from bench.simulation.clock import Wall
from bench.simulation.heap_loop import HeapLoop
from bench.simulation.link import Delays, Link
from bench.simulation.machine import Machine
from bench.simulation.opinions import NoOpinions
from bench.simulation.process import Process
from bench.simulation.replica import ReplicaSpec, no_fault
from bench.simulation.router import Judges, RouterHouse
from octet.config.ensemble import Ensemble
from octet.rpc.http2.channel import Reading
from router.after.verifiers import open_verifiers
from router.decide.decider import Opinions
from router.replicas.address import Target
from specialist.engines.sim import FaultSource

_T = TypeVar("_T")
_WARM_SECONDS = 60.0
_FIRST_PORT = 10_000


class SimEnsemble:
    """Use it as `with SimEnsemble(...) as ensemble:`, then `ensemble.run(coroutine)`: time goes on inside of that."""

    def __init__(
        self,
        ensemble: Ensemble,
        specs: Mapping[str, ReplicaSpec],
        replicas: Mapping[str, int],
        *,
        seed: int = 0,
        opinions: Opinions | None = None,
        delays: Delays | None = None,
        faults: FaultSource = no_fault,
        verdicts: Judges = open_verifiers,
    ) -> None:
        """`specs` and `replicas` by specialist. Without opinions requests say whom they want."""
        self.config = ensemble
        self.loop = HeapLoop()
        self.wall = Wall(self.loop)
        self.random = Random(seed)
        self._opinions = opinions or NoOpinions()
        self._delays = delays
        self._verdicts = verdicts
        self.machines: dict[str, Machine] = {}
        """By the name that the router gives the replica."""
        self._by_address: dict[str, Machine] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        for name, spec in specs.items():
            self._addresses[name] = tuple(self._machine(name, spec, i, faults) for i in range(replicas[name]))
        self.router_process = Process("router")
        self._router_place = Place()
        self.router_link = Link(self.loop, self._fork(), delays)
        self._router: RouterHouse | None = None

    @property
    def router(self) -> RouterHouse:
        if self._router is None:
            raise RuntimeError("start it first")
        return self._router

    def _fork(self) -> Random:
        return Random(self.random.getrandbits(64))

    def _machine(self, specialist: str, spec: ReplicaSpec, index: int, faults: FaultSource) -> str:
        address = f"10.0.0.1:{_FIRST_PORT + len(self.machines)}"
        machine = Machine(f"{specialist}-{index}", spec, self.loop, self._fork(), self._delays, faults)
        self.machines[machine.name] = self._by_address[address] = machine
        return address

    def _dial(self, target: Target, _: Any, __: Reading) -> Channel:
        return self._by_address[target.address].channel()

    async def start(self) -> None:
        """Returns when every specialist has a replica that serves."""
        for machine in self.machines.values():
            machine.start()
        house = self.router_process.context.copy().run(self._build_router)
        task = self.loop.create_task(house.start(), context=self.router_process.context.copy())
        await task
        await house.warm(_WARM_SECONDS)

    def _build_router(self) -> RouterHouse:
        self._router = house = RouterHouse(
            self.config, self._addresses, self._opinions, self.loop, self.wall, self._fork(), self._dial, self._verdicts
        )
        self._router_place.listen(self.router_process, house.port)
        return house

    def channel(self, link: Link | None = None) -> Channel:
        """To the router, as its callers have it."""
        return Channel(self.loop, link or self.router_link, self._router_place, self._fork())

    def caller_link(self) -> Link:
        """A way to the router of one's own."""
        return Link(self.loop, self._fork(), self._delays)

    async def stop(self) -> None:
        await self.loop.create_task(self.router.stop(), context=self.router_process.context.copy())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        result: _T = self.loop.run_until_complete(work)
        return result

    def __enter__(self) -> "SimEnsemble":
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.wind_up()
        self.loop.close()
