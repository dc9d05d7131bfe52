"""Random trouble, from one seed: what is done to whom, when, and for how long."""

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
from tests.faults.network import Cable
from tests.faults.process import PATIENCE, Process
from tests.faults.proxy import Proxy
from tests.faults.site import Replica

Act = Callable[[], None]
ROUTER = "router"
ORDERLY = "is told to end"
"""Done to a router in the long form alone: some who ask it at that moment are cancelled (docs/reliability.md)."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that can be done, and undone, to one process."""

    what: str
    victim: str
    do: Act
    undo: Act

    @property
    def kind(self) -> str:
        """Replicas are alike; a router is not like them."""
        return f"{'the router' if self.victim == ROUTER else 'a replica'} {self.what}"


@dataclass(slots=True)
class Nemesis:
    """At most `most` processes are in trouble at once, and at least one replica of each specialist is in none."""

    troubles: Sequence[Trouble]
    random: Random
    spared: Callable[[set[str]], bool]
    """Whether these may all be in trouble together."""
    longest: float = 3.0
    """Seconds that anything lasts; a third of it passes, at most, before the next."""
    most: int = 2
    log: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _busy: set[str] = field(default_factory=set)

    async def rage(self, seconds: float) -> None:
        """Everything is undone by the end."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() - began < seconds:
                await asyncio.sleep(self.random.uniform(0.05, self.longest / 3))
                trouble, lasts = self.random.choice(self.troubles), self.random.uniform(0.0, self.longest)
                together = self._busy | {trouble.victim}
                if trouble.victim not in self._busy and len(together) <= self.most and self.spared(together):
                    tasks.create_task(self._inflict(trouble, lasts, began))

    async def _inflict(self, trouble: Trouble, seconds: float, began: float) -> None:
        self._busy.add(trouble.victim)
        self.log.append(f"{time.monotonic() - began:7.2f} s: {trouble.victim} {trouble.what} for {seconds:.2f} s")
        self.done[trouble.kind] += 1
        try:
            trouble.do()
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(trouble.undo)
            self._busy.discard(trouble.victim)


def _nothing() -> None:
    """Is undone by itself."""


def of_process(name: str, process: Process) -> list[Trouble]:
    def is_ended() -> None:
        process.popen.wait(PATIENCE)
        _begin_again()

    def _begin_again() -> None:
        process.begin_again()
        process.ready()

    return [
        Trouble("is killed", name, process.kill, _begin_again),
        Trouble("is stopped", name, process.stop, process.go_on),
        Trouble(ORDERLY, name, process.terminate, is_ended),
    ]


def of_router(process: Process, outages: list[Outage]) -> list[Trouble]:
    """All that may happen to a process; its ends are noted among the `outages`."""
    killed, stopped, told = of_process(ROUTER, process)
    return [_noted(killed, outages, sudden=True), stopped, _noted(told, outages, sudden=False)]


def _noted(trouble: Trouble, outages: list[Outage], *, sudden: bool) -> Trouble:
    def do() -> None:
        outages.append(Outage(time.monotonic(), sudden))
        trouble.do()

    def undo() -> None:
        trouble.undo()
        outages[-1].ended = time.monotonic()

    return replace(trouble, do=do, undo=undo)


def of_cable(replica: Replica, cable: Cable) -> list[Trouble]:
    return [
        Trouble("is cut off", replica.name, cable.cut, cable.mend),
        Trouble("is not heard", replica.name, cable.silence, cable.unsilence),
        Trouble("hears nothing", replica.name, cable.deafen, cable.undeafen),
        Trouble("has 64 kbit/s", replica.name, cable.slow, cable.quicken),
    ]


def of_proxy(replica: Replica, proxy: Proxy) -> list[Trouble]:
    def late() -> None:
        proxy.delay = 0.1

    def in_time() -> None:
        proxy.delay = 0.0

    def reset() -> None:
        proxy.reset()

    return [
        Trouble("is reached late", replica.name, late, in_time),
        Trouble("has its connections reset", replica.name, reset, _nothing),
    ]


def of_cpu(replica: Replica, cgroup: Cgroup) -> list[Trouble]:
    return [
        Trouble("has a tenth of a core", replica.name, lambda: cgroup.allow_cpu(0.1), lambda: cgroup.allow_cpu(None))
    ]


def of_memory(replica: Replica, cgroup: Cgroup, folder: Path) -> list[Trouble]:
    """A neighbour takes what is left of it."""
    hogs: list[Process] = []

    def take() -> None:
        words = [sys.executable, "-m", "tests.faults.hog", "0.96"]
        hogs.append(Process(words, folder / f"hog-{replica.name}.log", cgroups=[cgroup.folder]))

    def give_back() -> None:
        hogs.pop().kill()

    return [Trouble("is short of memory", replica.name, take, give_back)]


def one_is_spared(groups: Mapping[str, Sequence[str]]) -> Callable[[set[str]], bool]:
    """Of each group. Where there is but one, it is its callers' bad luck."""
    return lambda troubled: all(len(group) == 1 or not troubled.issuperset(group) for group in groups.values())
