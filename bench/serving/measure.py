"""Open-loop load on one endpoint, or on several in turn."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from random import Random

import uvloop

from bench.peers.environment import PeerUnavailable
from bench.processes import PeerFailed
from bench.serving import systems
from bench.serving.callers import BenchEndpoint, named_apart
from bench.serving.systems import CROWD, CROWDS, LoadRound, OwnEnsemble, System, play
from bench.serving.workload import Ask, CallerClass, ServeMistake, Source, draw_asks
from bench.timing import Findings, Say
from specialist.models.fields import ModelRefused

_WARM_UP = 4
_CROWD_RATE = 4.0  # arbitrary, because a crowd arrives at once


@dataclass(frozen=True, slots=True)
class ServeOptions:
    source: Callable[[float | None], Source]  # the load at a given rate, or at its own rate if None
    rate: float | None
    shares: tuple[float, ...]  # shares of the first system's capacity, each a load; empty for one load at `rate`
    classes: tuple[CallerClass, ...]
    own: OwnEnsemble | None
    endpoints: tuple[BenchEndpoint, ...]
    seconds: float
    runs: int
    seed: int
    context: int
    key: str | None = None
    give_up: float = 120.0  # seconds, unless the deadline is sooner
    peers: tuple[str, ...] = ()  # names of SERVER_PEERS
    quick: bool = False


@dataclass(slots=True)
class ServeFindings(Findings):
    rounds: list[LoadRound] = field(default_factory=list)


@dataclass(slots=True)
class ServeRounds:
    systems: list[System]  # systems that run; rates are shares of the capacity of the first
    options: ServeOptions
    findings: ServeFindings

    async def run(self) -> None:
        for system in list(self.systems):
            await self._attempt(system, self._warm_up)
        loads = await self._loads()
        for number in range(self.options.runs):
            for index, (name, source) in enumerate(loads.items()):
                await self._round(number, number * len(loads) + index, name, source)

    async def _warm_up(self, system: System) -> None:
        endpoint = system.endpoint
        where = f"{system.name}: {endpoint.where}, {endpoint.model}"
        self.findings.notes.append(f"{where}: {await system.caller.check()}")
        asks = self._asks(self.options.source(self.options.rate), -1)[:_WARM_UP]
        self.findings.say(f"{len(asks)} requests to {system.name} that do not count")
        await play(system.name, system.caller, [replace(ask, at=0.0) for ask in asks], 1.0)

    async def _loads(self) -> dict[str, Source]:
        """Return the loads by name: one per share of the capacity or, if there are no shares, one with an empty
        name."""
        source, shares = self.options.source, self.options.shares
        if not shares:
            return {"": source(self.options.rate)}
        first = self.systems[0]
        self.findings.say(f"the capacity of {first.name}: {CROWDS} crowds of {CROWD}, after one that does not count")
        seconds = 2 * CROWD / _CROWD_RATE
        crowds = [self._asks(source(_CROWD_RATE), -2 - turn, seconds)[:CROWD] for turn in range(CROWDS + 1)]
        capacity = await systems.measure_capacity(first.name, first.caller, crowds)
        rates = ", ".join(f"{capacity * share:.3g}" for share in shares)
        self.findings.notes.append(
            f"{rates} requests/s, of a capacity of {capacity:.3g} measured with {first.name} first"
        )
        return {f"at {100 * share:.0f} % of capacity": source(capacity * share) for share in shares}

    async def _round(self, number: int, seed: int, load: str, source: Source) -> None:
        asks = self._asks(source, seed)
        found: dict[str, LoadRound] = {}

        async def measure(system: System) -> None:
            words = f"{len(asks)} requests to {system.name} {load}".rstrip()
            self.findings.say(f"round {number + 1} of {self.options.runs}: {words}")
            before = systems.cpu_waiting(self.systems, system)
            played = await play(system.name, system.caller, asks, self.options.seconds)
            after = systems.cpu_waiting(self.systems, system)
            waiting = None if before is None or after is None else after - before
            found[system.name] = replace(played, load=load, waiting=waiting)

        for system in Random(seed).sample(self.systems, len(self.systems)):
            if not await self._attempt(system, measure):
                found.pop(system.name, None)
        self.findings.rounds += [found[system.name] for system in self.systems if system.name in found]

    async def _attempt(self, system: System, work: Callable[[System], Awaitable[None]]) -> bool:
        try:
            async with system.awake():
                await work(system)
        except (PeerFailed, ServeMistake) as failure:
            if system.process is None:
                raise
            self.findings.fail(str(failure))
            self.systems.remove(system)
            system.process.close()
            return False
        return True

    def _asks(self, source: Source, seed: int, seconds: float | None = None) -> list[Ask]:
        """Return the requests of one load. Loads have different seeds, so that no drawn prompt is cached already."""
        options = self.options
        return draw_asks(source, options.classes, seconds or options.seconds, options.seed + seed, options.context)


def measure_serve(options: ServeOptions, say: Say) -> ServeFindings:
    findings = ServeFindings(say)
    with ExitStack() as stack:
        started: list[System] = []
        if options.own is not None:
            say(f"starting an ensemble of {options.own.file or options.own.engine}")
            started += stack.enter_context(systems.start_own(options.own))
        started += map(System, options.endpoints)
        started += _start_servers(options, findings, stack)
        for system, endpoint in zip(started, named_apart([each.endpoint for each in started]), strict=True):
            system.endpoint = endpoint
        uvloop.run(_measure(started, options, findings))
    return findings


def _start_servers(options: ServeOptions, findings: ServeFindings, stack: ExitStack) -> list[System]:
    if not options.peers:
        return []
    from bench.peers.model_files import demo_checkpoint  # needs the model packages
    from specialist.models.demo import cache_directory

    started = []
    for name in options.peers:
        peer = systems.SERVER_PEERS[name]
        try:
            place = systems.prepare_place(
                peer, cache_directory() / "peers", demo_checkpoint, options.context, findings.say
            )
            running = systems.start_server(peer, place, findings.say, try_all=not options.quick)
        except (PeerUnavailable, PeerFailed, ModelRefused, OSError, ValueError) as error:
            findings.fail(str(error))
            continue
        if running.process is not None:
            stack.callback(running.process.close)
        findings.notes.append(f"{name}: {running.settings}")
        started.append(running)
    return started


async def _measure(started: list[System], options: ServeOptions, findings: ServeFindings) -> None:
    async with AsyncExitStack() as stack:
        for system in started:
            await stack.enter_async_context(system.calling(options.key, options.give_up))
        await ServeRounds(started, options, findings).run()
