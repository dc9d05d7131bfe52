"""Open-loop load on one endpoint or several in turns."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from random import Random

import uvloop

from bench.peers.environment import PeerUnavailable
from bench.peers.process import PeerFailed, ServerProcess
from bench.serving.callers import Endpoint, caller_of, named_apart
from bench.serving.systems import (
    CROWD,
    CROWDS,
    OWN_MODEL,
    SERVER_PEERS,
    LoadRound,
    OwnEnsemble,
    PeerSite,
    ServeOptions,
    System,
    capacity_of,
    cpu_waiting,
    own_site,
    play,
    start_peer,
)
from bench.serving.workload import Ask, ServeMistake, Source, asks_of
from specialist.models.fields import ModelRefused

Say = Callable[[str], None]
_WARM_UP = 4
_CROWD_RATE = 4.0  # arbitrary: a crowd comes at once


@dataclass(frozen=True, slots=True)
class NamedLoad:
    name: str  # empty if there is only one
    source: Source


@dataclass(slots=True)
class ServeFindings:
    rounds: list[LoadRound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    # already printed

    def fail(self, why: str, say: Say) -> None:
        say(why)
        self.failures.append(why)
        self.notes.append(f"left out: {why}")


@dataclass(slots=True)
class ServeRounds:
    systems: list[System]  # alive; rates are shares of the capacity of the first
    options: ServeOptions
    findings: ServeFindings
    say: Say

    async def run(self) -> None:
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

    async def _loads(self) -> list[NamedLoad]:
        source, shares = self.options.source, self.options.shares
        if not shares:
            return [NamedLoad("", source(self.options.rate))]
        first = self.systems[0]
        self.say(f"the capacity of {first.name}: {CROWDS} crowds of {CROWD}, after one that does not count")
        seconds = 2 * CROWD / _CROWD_RATE
        crowds = [self._asks(source(_CROWD_RATE), -2 - turn, seconds)[:CROWD] for turn in range(CROWDS + 1)]
        capacity = await capacity_of(first.name, first.caller, crowds)
        rates = ", ".join(f"{capacity * share:.3g}" for share in shares)
        self.findings.notes.append(
            f"{rates} requests/s, of a capacity of {capacity:.3g} measured with {first.name} first"
        )
        return [NamedLoad(f"at {100 * share:.0f} % of capacity", source(capacity * share)) for share in shares]

    async def _round(self, number: int, seed: int, load: NamedLoad) -> None:
        asks = self._asks(load.source, seed)
        found: dict[str, LoadRound] = {}

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
        """Seeds differ from load to load, so that no prompt is cached."""
        options = self.options
        return asks_of(source, options.classes, seconds or options.seconds, options.seed + seed, options.context)


@dataclass(frozen=True, slots=True)
class _Started:
    endpoint: Endpoint
    peer: ServerProcess | None = None
    pid: int | None = None


def measure_serve(options: ServeOptions, say: Say) -> ServeFindings:
    findings = ServeFindings()
    with ExitStack() as stack:
        started = [] if options.own is None else _start_own(options.own, stack, say)
        started += map(_Started, options.endpoints)
        started += _start_peers(options, findings, stack, say)
        names = named_apart([each.endpoint for each in started])
        systems = [replace(each, endpoint=endpoint) for each, endpoint in zip(started, names, strict=True)]
        uvloop.run(_measure(systems, options, findings, say))
    return findings


def _start_own(own: OwnEnsemble, stack: ExitStack, say: Say) -> list[_Started]:
    say(f"starting an ensemble of {own.file or own.engine}")
    site = stack.enter_context(own_site(own.engine, own.replicas, own.file))
    model = OWN_MODEL if own.file is None else "octet"
    ours = {"http": (f"{site.http}/v1", "octet"), "grpc": (site.grpc, "octet grpc")}
    return [_Started(Endpoint(door, ours[door][0], model, ours[door][1]), pid=site.pid) for door in own.doors]


def _start_peers(options: ServeOptions, findings: ServeFindings, stack: ExitStack, say: Say) -> list[_Started]:
    if not options.peers:
        return []
    from bench.peers.model_files import demo_checkpoint  # needs the model packages
    from specialist.models.demo import cache_directory

    site = PeerSite(cache_directory() / "peers", demo_checkpoint, options.context)
    started = []
    for name in options.peers:
        try:
            running = start_peer(SERVER_PEERS[name], site, say, try_all=not options.quick)
        except (PeerUnavailable, PeerFailed, ModelRefused, OSError, ValueError) as error:
            findings.fail(str(error), say)
            continue
        stack.callback(running.process.close)
        findings.notes.append(f"{name}: {running.settings}")
        started.append(_Started(running.endpoint, peer=running.process))
    return started


async def _measure(started: list[_Started], options: ServeOptions, findings: ServeFindings, say: Say) -> None:
    async with AsyncExitStack() as stack:
        systems = []
        for each in started:
            caller = caller_of(each.endpoint, options.key, options.give_up)
            stack.push_async_callback(caller.close)
            systems.append(System(each.endpoint, caller, each.peer, each.pid))
        await ServeRounds(systems, options, findings, say).run()
