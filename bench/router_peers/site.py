"""Backends, Octet's router and its peers: everybody started, every router paused."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers.environment import PeerUnavailable, Say, prepare
from bench.peers.ports import HOST, free_ports
from bench.peers.process import PeerFailed
from bench.router_peers.backends import ROOT, backends
from bench.router_peers.bare_caller import BareCaller
from bench.router_peers.grpc_caller import REPLICA, ROUTER, GrpcCaller, replica_request, router_request
from bench.router_peers.http_backend import MODEL
from bench.router_peers.http_caller import HttpCaller
from bench.router_peers.octet_router import NAMED, octet_command, octet_doors
from bench.router_peers.process import RouterProcess, pinned
from bench.router_peers.spec import Place, RouterPeer
from bench.router_peers.way import (
    CLASSIFIED,
    GRPC,
    GRPC_LIMIT,
    LIMIT,
    OCTET,
    REPLICA_LIMIT,
    Way,
    until_it_answers,
    warm_up,
)
from bench.router_site import SPECIALISTS, SiteFailed

BACKENDS = 2
_OCTET_SECONDS, _PEER_SECONDS = 60.0, 180.0
_POLL = 0.25


@dataclass(slots=True)
class Site:
    ways: dict[str, Way] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def routers(self) -> Mapping[str, RouterProcess]:
        """By name, each once."""
        return {way.router.name: way.router for way in self.ways.values() if way.router is not None}

    def drop(self, router: str) -> None:
        """Whoever has failed is not asked again."""
        for system, way in list(self.ways.items()):
            if way.router is not None and way.router.name == router:
                way.router.close()
                del self.ways[system]


@asynccontextmanager
async def site(peers: Sequence[RouterPeer], cache: Path, say: Say) -> AsyncIterator[Site]:
    """Pins this process, too, to the cores that are not the routers', for as long as it lasts.

    A peer that cannot be installed or started is told in a line and left out. Raises SiteFailed when Octet's own
    processes do not start.
    """
    core, *other = sorted(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="octet-bench-")))
        stack.enter_context(pinned(set(other) or {core}))
        http = stack.enter_context(backends("http_backend", BACKENDS))
        grpc = stack.enter_context(backends("grpc_backend", BACKENDS * len(SPECIALISTS)))
        found = Site()
        routers = stack.enter_context(ExitStack())
        found.ways |= _straight(http[0], grpc[0])
        found.ways |= await _octet(folder, grpc, core, routers)
        for peer in peers:
            try:
                found.ways[peer.name] = await _peer(peer, folder, cache / "peers", http, core, routers, say)
                found.notes.append(f"{peer.name}: {peer.settings}")
            except (PeerUnavailable, PeerFailed, OSError) as error:
                found.failures.append(str(error))
                found.notes.append(f"left out: {error}")
                say(str(error))
        yield found


def _straight(http_port: int, grpc_port: int) -> dict[str, Way]:
    return {
        LIMIT: Way(LIMIT, None, lambda acks: HttpCaller(HOST, http_port, MODEL, acks_at_once=acks)),
        GRPC_LIMIT: Way(GRPC_LIMIT, None, lambda _: GrpcCaller(f"{HOST}:{grpc_port}", REPLICA, replica_request)),
        REPLICA_LIMIT: Way(REPLICA_LIMIT, None, lambda _: BareCaller(HOST, grpc_port, REPLICA, replica_request)),
    }


async def _octet(folder: Path, ports: Sequence[int], core: int, routers: ExitStack) -> dict[str, Way]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    router = RouterProcess(OCTET, octet_command(folder, ports), env, folder / "octet.log", {core})
    routers.callback(router.close)
    try:
        async with asyncio.timeout(_OCTET_SECONDS):
            while (doors := octet_doors(router.said())) is None:
                router.check()
                await asyncio.sleep(_POLL)
        ways = _octet_ways(router, *doors)
        for way in ways.values():
            await until_it_answers(way, _OCTET_SECONDS)
            await warm_up(way)
    except (TimeoutError, PeerFailed) as error:
        raise SiteFailed(f"the router did not start: {error or router.said()[-500:]}") from error
    router.pause()
    return ways


def _octet_ways(router: RouterProcess, address: str, port: int) -> dict[str, Way]:
    return {
        OCTET: Way(OCTET, router, lambda acks: HttpCaller(HOST, port, f"octet/{NAMED}", acks_at_once=acks)),
        CLASSIFIED: Way(CLASSIFIED, router, lambda acks: HttpCaller(HOST, port, "octet", acks_at_once=acks)),
        GRPC: Way(GRPC, router, lambda _: GrpcCaller(address, ROUTER, router_request(NAMED))),
    }


async def _peer(
    peer: RouterPeer, folder: Path, peers: Path, backends: Sequence[int], core: int, routers: ExitStack, say: Say
) -> Way:
    installed = await asyncio.to_thread(prepare, peer, peers, say)
    own = folder / peer.name
    own.mkdir()
    port, other_port = free_ports(2)
    command = peer.command(Place(installed.directory, own, backends, port, other_port))
    env = {**os.environ, **dict(peer.environment)}
    env.pop("PYTHONPATH", None)  # a peer must not find our packages
    router = RouterProcess(peer.name, command, env, peers / f"{peer.name}.run.log", {core})
    routers.callback(router.close)
    way = Way(peer.name, router, lambda acks: HttpCaller(HOST, port, MODEL, acks_at_once=acks))
    try:
        await until_it_answers(way, _PEER_SECONDS)
        await warm_up(way)
    except BaseException:
        router.close()
        raise
    router.pause()
    return way
