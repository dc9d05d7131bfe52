"""The same load on one endpoint or on several, in turns."""

from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace

import uvloop

from bench.peers.environment import PeerUnavailable
from bench.peers.process import PeerFailed
from bench.peers.server import ServerProcess
from bench.serving.endpoint import Endpoint, caller_of, named_apart
from bench.serving.options import Options, Own
from bench.serving.peer_site import PeerSite, start_peer
from bench.serving.rounds import Findings, Rounds
from bench.serving.server_peer import SERVER_PEERS
from bench.serving.site import MODEL, own_site
from bench.serving.system import System
from specialist.models.errors import ModelRefused

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Started:
    endpoint: Endpoint
    peer: ServerProcess | None = None
    pid: int | None = None


def measure_serve(options: Options, say: Say) -> Findings:
    """A peer that cannot be installed or started, or dies, is told and left out. Raises SiteFailed, ServeMistake."""
    findings = Findings()
    with ExitStack() as stack:
        started = [] if options.own is None else _start_own(options.own, stack, say)
        started += map(_Started, options.endpoints)
        started += _start_peers(options, findings, stack, say)
        names = named_apart([each.endpoint for each in started])
        systems = [replace(each, endpoint=endpoint) for each, endpoint in zip(started, names, strict=True)]
        uvloop.run(_measure(systems, options, findings, say))
    return findings


def _start_own(own: Own, stack: ExitStack, say: Say) -> list[_Started]:
    say(f"starting an ensemble of {own.file or own.engine}")
    site = stack.enter_context(own_site(own.engine, own.replicas, own.file))
    model = MODEL if own.file is None else "octet"
    ours = {"http": (f"{site.http}/v1", "octet"), "grpc": (site.grpc, "octet grpc")}
    return [_Started(Endpoint(door, ours[door][0], model, ours[door][1]), pid=site.pid) for door in own.doors]


def _start_peers(options: Options, findings: Findings, stack: ExitStack, say: Say) -> list[_Started]:
    if not options.peers:
        return []
    from bench.peers.demo import demo_checkpoint  # what reads models is for whoever has one
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


async def _measure(started: list[_Started], options: Options, findings: Findings, say: Say) -> None:
    async with AsyncExitStack() as stack:
        systems = []
        for each in started:
            caller = caller_of(each.endpoint, options.key, options.give_up)
            stack.push_async_callback(caller.close)
            systems.append(System(each.endpoint, caller, each.peer, each.pid))
        await Rounds(systems, options, findings, say).run()
