"""Rounds in which every system gets the same asks, one system at a time."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random

from bench.peers.process import PeerFailed
from bench.serving.asks import Ask, Source, asks_of
from bench.serving.capacity import CROWD, CROWDS, capacity_of
from bench.serving.load import Round, play
from bench.serving.options import Options
from bench.serving.system import System, cpu_waiting
from bench.serving.usage import ServeMistake

Say = Callable[[str], None]
_WARM_UP = 4
_CROWD_RATE = 4.0
"""Whatever it is: a crowd comes all at once."""


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    """Empty where there is only one."""
    source: Source


@dataclass(slots=True)
class Findings:
    rounds: list[Round] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Which peers could not be measured and why, a line each. They have been said already."""

    def fail(self, why: str, say: Say) -> None:
        say(why)
        self.failures.append(why)
        self.notes.append(f"left out: {why}")


@dataclass(slots=True)
class Rounds:
    systems: list[System]
    """Those who still live; the first one's capacity is what rates are shares of."""
    options: Options
    findings: Findings
    say: Say

    async def run(self) -> None:
        """Raises ServeMistake where an endpoint is of no use; a peer is left out instead."""
        for system in list(self.systems):
            await self._attempt(system, self._warm_up)
        loads = await self._loads()
        for number in range(self.options.runs):
            for index, load in enumerate(loads):
                await self._round(number, number * len(loads) + index, load)

    async def _warm_up(self, system: System) -> None:
        self.findings.notes.append(f"{system.where}: {await system.caller.check()}")
        asks = self._asks(self.options.source(self.options.rate), -1)[:_WARM_UP]
        self.say(f"{len(asks)} requests to {system.name} that do not count")
        await play(system.name, system.caller, [replace(ask, at=0.0) for ask in asks], 1.0)

    async def _loads(self) -> list[Load]:
        source, shares = self.options.source, self.options.shares
        if not shares:
            return [Load("", source(self.options.rate))]
        first = self.systems[0]
        self.say(f"the capacity of {first.name}: {CROWDS} crowds of {CROWD}, after one that does not count")
        seconds = 2 * CROWD / _CROWD_RATE
        crowds = [self._asks(source(_CROWD_RATE), -2 - turn, seconds)[:CROWD] for turn in range(CROWDS + 1)]
        capacity = await capacity_of(first.name, first.caller, crowds)
        rates = ", ".join(f"{capacity * share:.3g}" for share in shares)
        self.findings.notes.append(
            f"{rates} requests/s, of a capacity of {capacity:.3g} measured with {first.name} first"
        )
        return [Load(f"at {100 * share:.0f} % of capacity", source(capacity * share)) for share in shares]

    async def _round(self, number: int, seed: int, load: Load) -> None:
        """In an order that changes; each system after the answers of the one before."""
        asks = self._asks(load.source, seed)
        found: dict[str, Round] = {}

        async def put_on(system: System) -> None:
            words = f"{len(asks)} requests to {system.name} {load.name}".rstrip()
            self.say(f"round {number + 1} of {self.options.runs}: {words}")
            before = cpu_waiting(self.systems, system)
            played = await play(system.name, system.caller, asks, self.options.seconds)
            after = cpu_waiting(self.systems, system)
            waiting = None if before is None or after is None else after - before
            found[system.name] = replace(played, load=load.name, waiting=waiting)

        for system in Random(seed).sample(self.systems, len(self.systems)):
            if not await self._attempt(system, put_on):
                found.pop(system.name, None)
        self.findings.rounds += [found[system.name] for system in self.systems if system.name in found]

    async def _attempt(self, system: System, work: Callable[[System], Awaitable[None]]) -> bool:
        """A peer that fails is out; what it did in earlier rounds counts."""
        try:
            async with system.awake():
                await work(system)
        except (PeerFailed, ServeMistake) as failure:
            if system.peer is None:
                raise
            self.findings.fail(str(failure), self.say)
            self.systems.remove(system)
            system.close()
            return False
        return True

    def _asks(self, source: Source, seed: int, seconds: float | None = None) -> list[Ask]:
        """Seeds differ from load to load: what one has asked, the next would find cached."""
        options = self.options
        return asks_of(source, options.classes, seconds or options.seconds, options.seed + seed, options.context)
