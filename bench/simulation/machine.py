"""Where a replica's processes run, one after the other: it is started, stopped, killed, cut off, and comes back."""

from collections.abc import Callable
from random import Random

from bench.simulation.channel import Channel, Place
from bench.simulation.heap_loop import HeapLoop
from bench.simulation.link import Delays, Link
from bench.simulation.process import Process
from bench.simulation.replica import ReplicaHouse, ReplicaSpec, no_fault
from octet.rpc.cgroup_memory import Memory
from specialist.engines.sim import Fault, FaultSource
from specialist.step import Step

_RESTART_SECONDS = 0.5
"""Until whoever supervises a process that ended has started another."""


class Machine:
    def __init__(
        self,
        name: str,
        spec: ReplicaSpec,
        loop: HeapLoop,
        random: Random,
        delays: Delays | None = None,
        faults: FaultSource = no_fault,
    ) -> None:
        self.name = name
        self.spec = spec
        self._loop = loop
        self._random = random
        self._faults = faults
        self.slowness = 1.0
        """Its engine takes so many times as long."""
        self.memory: Memory | None = None
        """None: there is enough."""
        self.link = Link(loop, random, delays)
        self.place = Place()
        self.process = Process(name)
        self.house: ReplicaHouse | None = None
        """What lives there now; None while nothing does."""
        self.on_start: list[Callable[[Machine], None]] = []
        self.num_starts = 0
        self._graveyard: list[Process] = []

    def channel(self) -> Channel:
        """To whoever lives there when a call is made."""
        return Channel(self._loop, self.link, self.place, self._random)

    def start(self) -> None:
        """Of nothing where something lives."""
        if self.house is not None:
            return
        self.process = Process(f"{self.name}/{self.num_starts}")
        self.num_starts += 1
        self.process.context.copy().run(self._build)

    def _build(self) -> None:
        self.house = house = ReplicaHouse(self.spec, self._loop, self._random, self._fault, lambda: self.memory)
        house.on_failure = self._failed
        self.place.listen(self.process, house.port)
        for started in self.on_start:
            started(self)
        self._loop.create_task(house.start(), name=f"starting {self.name}")

    def _fault(self, step: Step) -> Fault | None:
        fault = self._faults(step)
        if fault is None and self.slowness != 1.0:
            return Fault("slow", factor=self.slowness)
        return fault

    def kill(self) -> None:
        """At once, as with kill -9: its connections are reset."""
        if self.house is None:
            return
        self.process.kill()
        self._graveyard.append(self.process)
        self.house = None
        self.link.lose()

    def stop(self) -> None:
        """As with SIGSTOP: connections stay open and nobody is at home."""
        self.process.stop()

    def go_on(self) -> None:
        if self.process.state == "stopped":
            self._loop.go_on(self.process)

    def _failed(self) -> None:
        """Its engine is dead: the process says so and ends."""
        process = self.process
        outside = Process("supervisor").context
        self._loop.call_later(_RESTART_SECONDS, self._replace, process, context=outside)

    def _replace(self, process: Process) -> None:
        if self.process is process and self.house is not None:
            self.kill()
            self.start()
