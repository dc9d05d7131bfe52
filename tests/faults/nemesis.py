"""Random faults from a seed: which process, which fault, when and for how long."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.faults.cgroups import Cgroup
from tests.faults.history import Outage
from tests.faults.network import VirtualLink
from tests.faults.process import Process
from tests.faults.proxy import Proxy
from tests.faults.site import Replica
from tests.patience import PATIENCE

Act = Callable[[], None]
ROUTER = "router"
ORDERLY = "is stopped in order"
"""The process is stopped gracefully. Routers get this fault in the long form only, because requests that arrive during
a shutdown may be cancelled (see docs/reliability.md)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be injected into a process and undone."""

    what: str
    victim: str
    do: Act
    undo: Act

    @property
    def kind(self) -> str:
        """The fault and whether it hits a replica or the router, such as "a replica is killed"."""
        return f"{'the router' if self.victim == ROUTER else 'a replica'} {self.what}"


@dataclass(slots=True)
class Nemesis:
    """Injects random faults. At most `most` processes are faulty at a time."""

    faults: Sequence[Fault]
    random: Random
    spared: Callable[[set[str]], bool]
    """Returns whether these processes may be faulty at the same time."""
    longest: float = 3.0
    """The longest duration of a fault, in seconds. The next fault follows after at most a third of it."""
    most: int = 2
    log: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _busy: set[str] = field(default_factory=set)

    async def inject_faults(self, seconds: float) -> None:
        """Inject random faults for this many seconds. Return once all of them are undone."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() - began < seconds:
                await asyncio.sleep(self.random.uniform(0.05, self.longest / 3))
                fault, lasts = self.random.choice(self.faults), self.random.uniform(0.0, self.longest)
                together = self._busy | {fault.victim}
                if fault.victim not in self._busy and len(together) <= self.most and self.spared(together):
                    tasks.create_task(self._inflict(fault, lasts, began))

    async def _inflict(self, fault: Fault, seconds: float, began: float) -> None:
        self._busy.add(fault.victim)
        self.log.append(f"{time.monotonic() - began:7.2f} s: {fault.victim} {fault.what} for {seconds:.2f} s")
        self.done[fault.kind] += 1
        try:
            fault.do()
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(fault.undo)
            self._busy.discard(fault.victim)


def _nothing() -> None:
    """Do nothing. This is the undo of a fault that ends by itself."""


def of_process(name: str, process: Process) -> list[Fault]:
    def is_ended() -> None:
        process.popen.wait(PATIENCE)
        _restart()

    def _restart() -> None:
        process.restart()
        process.ready()

    return [
        Fault("is killed", name, process.kill, _restart),
        Fault("is stopped", name, process.stop, process.resume),
        Fault(ORDERLY, name, process.terminate, is_ended),
    ]


def of_router(process: Process, outages: list[Outage]) -> list[Fault]:
    """Return all faults of a router. Each period without a router is recorded in `outages`."""
    killed, stopped, ended = of_process(ROUTER, process)
    return [_noted(killed, outages, sudden=True), stopped, _noted(ended, outages, sudden=False)]


def _noted(fault: Fault, outages: list[Outage], *, sudden: bool) -> Fault:
    def do() -> None:
        outages.append(Outage(time.monotonic(), sudden))
        fault.do()

    def undo() -> None:
        fault.undo()
        outages[-1].ended = time.monotonic()

    return replace(fault, do=do, undo=undo)


def of_link(replica: Replica, link: VirtualLink) -> list[Fault]:
    return [
        Fault("is cut off", replica.name, link.cut, link.mend),
        Fault("cannot send", replica.name, link.silence, link.unsilence),
        Fault("receives nothing", replica.name, link.deafen, link.undeafen),
        Fault("has 64 kbit/s", replica.name, link.slow, link.quicken),
    ]


def of_proxy(replica: Replica, proxy: Proxy) -> list[Fault]:
    def late() -> None:
        proxy.delay = 0.1

    def in_time() -> None:
        proxy.delay = 0.0

    def reset() -> None:
        proxy.reset()

    return [
        Fault("is reached late", replica.name, late, in_time),
        Fault("has its connections reset", replica.name, reset, _nothing),
    ]


def of_cpu(replica: Replica, cgroup: Cgroup) -> list[Fault]:
    return [Fault("has a tenth of a core", replica.name, lambda: cgroup.allow_cpu(0.1), lambda: cgroup.allow_cpu(None))]


def of_memory(replica: Replica, cgroup: Cgroup, folder: Path) -> list[Fault]:
    """Return the fault in which another process uses up the memory of the replica's cgroup."""
    hogs: list[Process] = []

    def take() -> None:
        words = [sys.executable, "-m", "tests.faults.hog", "0.96"]
        hogs.append(Process(words, folder / f"hog-{replica.name}.log", cgroups=[cgroup.folder]))

    def give_back() -> None:
        hogs.pop().kill()

    return [Fault("is short of memory", replica.name, take, give_back)]


def leaves_one_replica(groups: Mapping[str, Sequence[str]]) -> Callable[[set[str]], bool]:
    """Return a function that tells whether every group has a process that is not among the faulty ones. Groups of one
    process are exempt."""
    return lambda troubled: all(len(group) == 1 or not troubled.issuperset(group) for group in groups.values())
