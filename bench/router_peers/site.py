"""Backends, Octet's router and its peers as processes."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.peers.environment import Installable, PeerUnavailable, peer_variables, prepare
from bench.processes import HOST, ROOT, PeerFailed, SiteFailed, free_ports, pinned, scratch_folder, started
from bench.router_peers import callers
from bench.router_peers.callers import GrpcCaller, HttpCaller, RoutePath, RouterProcess
from bench.router_peers.cases import CLASSIFIED, GRPC, GRPC_LIMIT, LIMIT, OCTET, REPLICA_LIMIT
from bench.router_peers.http_backend import MODEL
from bench.router_site import READY, REPLICA, ROUTER, SPECIALISTS, infer_request, replica_request, router_arguments
from bench.timing import Findings, Say


@contextmanager
def backends(module: str, number: int) -> Iterator[list[int]]:
    """Yield the ports of `number` backends in one process."""
    with scratch_folder() as folder:
        log = folder / "backends.log"
        with started(f"bench.router_peers.{module}", [str(number)], log, ready="^ready on (.+)") as process:
            yield [int(port) for port in process.ready[1].split()]


@dataclass(frozen=True, slots=True)
class RouterPlace:
    environment: Path  # virtual environment
    folder: Path  # the folder for its files
    backends: Sequence[int]  # ports
    port: int  # to listen on
    other_port: int  # for metrics


@dataclass(frozen=True, slots=True)
class RouterPeer(Installable):
    command: Callable[[RouterPlace], Sequence[str]]
    settings: str  # description
    environment: tuple[tuple[str, str], ...] = ()


def _litellm(place: RouterPlace) -> Sequence[str]:
    config = place.folder / "litellm.yaml"
    urls = (f"http://{HOST}:{port}/v1" for port in place.backends)
    backends = [{"model": f"openai/{MODEL}", "api_base": url, "api_key": "none"} for url in urls]
    models = [{"model_name": MODEL, "litellm_params": backend} for backend in backends]
    config.write_text(json.dumps({"model_list": models, "router_settings": {"disable_cooldowns": True}}))
    options = ("--host", HOST, "--port", str(place.port), "--num_workers", "1", "--telemetry", "False")
    return (str(place.environment / "bin" / "litellm"), "--config", str(config), *options)


def _sglang(place: RouterPlace) -> Sequence[str]:
    workers = (f"http://{HOST}:{port}" for port in place.backends)
    options = ("--host", HOST, "--port", str(place.port), "--prometheus-port", str(place.other_port))
    module = (str(place.environment / "bin" / "python"), "-m", "sglang_router.launch_router")
    return (*module, "--worker-urls", *workers, *options, "--policy", "round_robin", "--log-level", "warn")


ROUTER_PEERS: Mapping[str, RouterPeer] = {
    peer.name: peer
    for peer in (
        RouterPeer(
            "litellm",
            ("litellm[proxy]==1.106.2",),
            _litellm,
            "LiteLLM's proxy 1.106.2, one worker, no keys, no database, no callbacks, no cooldowns of backends",
            environment=(
                ("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true"),
                ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
                ("LITELLM_LOG", "ERROR"),
                ("LITELLM_MODE", "PRODUCTION"),
            ),
        ),
        RouterPeer("sglang", ("sglang-router==0.3.2",), _sglang, "sglang-router 0.3.2, round robin"),
    )
}


NAMED = SPECIALISTS[-1]  # the specialist that callers name
_HANG_SECONDS = 15  # instead of 1.2, because replicas share a busy core with all callers


BACKENDS = 2
_OCTET_SECONDS, _PEER_SECONDS = 60.0, 180.0
_POLL = 0.25


@dataclass(slots=True)
class RouterPeersSite:
    findings: Findings
    paths: dict[str, RoutePath] = field(default_factory=dict)

    def routers(self) -> Mapping[str, RouterProcess]:
        return {path.router.name: path.router for path in self.paths.values() if path.router is not None}

    def drop(self, router: str) -> None:
        for system, path in list(self.paths.items()):
            if path.router is not None and path.router.name == router:
                path.router.close()
                del self.paths[system]


@asynccontextmanager
async def site(peers: Sequence[RouterPeer], cache: Path, findings: Findings) -> AsyncIterator[RouterPeersSite]:
    """Start backends and routers. All routers share one core of their own. A peer that does not start is left out."""
    core, *other = sorted(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        stack.enter_context(pinned(set(other) or {core}))
        http = stack.enter_context(backends("http_backend", BACKENDS))
        grpc = stack.enter_context(backends("grpc_backend", BACKENDS * len(SPECIALISTS)))
        found = RouterPeersSite(findings)
        routers = stack.enter_context(ExitStack())
        found.paths |= _straight(http[0], grpc[0])
        found.paths |= await _octet(folder, grpc, core, routers)
        for peer in peers:
            try:
                found.paths[peer.name] = await _peer(peer, folder, cache / "peers", http, core, routers, findings.say)
                findings.notes.append(f"{peer.name}: {peer.settings}")
            except (PeerUnavailable, PeerFailed, OSError) as error:
                findings.fail(str(error))
        yield found


def _straight(http_port: int, grpc_port: int) -> dict[str, RoutePath]:
    replica = f"{HOST}:{grpc_port}"
    return {
        LIMIT: RoutePath(LIMIT, None, lambda acks: HttpCaller(HOST, http_port, MODEL, acks_at_once=acks)),
        GRPC_LIMIT: RoutePath(GRPC_LIMIT, None, lambda _: GrpcCaller(replica, REPLICA, replica_request)),
        REPLICA_LIMIT: RoutePath(
            REPLICA_LIMIT, None, lambda _: GrpcCaller(replica, REPLICA, replica_request, own_client=True)
        ),
    }


async def _octet(folder: Path, ports: Sequence[int], core: int, routers: ExitStack) -> dict[str, RoutePath]:
    addresses, number = [f"{HOST}:{port}" for port in ports], len(SPECIALISTS)
    replicas = {name: addresses[first::number] for first, name in enumerate(SPECIALISTS)}
    arguments = router_arguments(folder, replicas, f"dispatch: {{hang_seconds: {_HANG_SECONDS}}}\n")
    command, env = [sys.executable, "-m", "octet.cli", *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    router = RouterProcess(OCTET, command, env, folder / "octet.log", {core})
    routers.callback(router.close)
    try:
        async with asyncio.timeout(_OCTET_SECONDS):
            while (ready := re.search(READY, router.output())) is None:
                router.check()
                await asyncio.sleep(_POLL)
        address, port, named = ready[1], int(ready[2]), partial(infer_request, specialist=NAMED)
        found = {
            OCTET: RoutePath(OCTET, router, lambda acks: HttpCaller(HOST, port, f"octet/{NAMED}", acks_at_once=acks)),
            CLASSIFIED: RoutePath(CLASSIFIED, router, lambda acks: HttpCaller(HOST, port, "octet", acks_at_once=acks)),
            GRPC: RoutePath(GRPC, router, lambda _: GrpcCaller(address, ROUTER, named)),
        }
        for path in found.values():
            await callers.until_it_answers(path, _OCTET_SECONDS)
            await callers.warm_up(path)
    except (TimeoutError, PeerFailed) as error:
        raise SiteFailed(f"the router did not start: {error or router.output()[-500:]}") from error
    router.pause()
    return found


async def _peer(
    peer: RouterPeer, folder: Path, peers: Path, backends: Sequence[int], core: int, routers: ExitStack, say: Say
) -> RoutePath:
    installed = await asyncio.to_thread(prepare, peer, peers, say)
    own = folder / peer.name
    own.mkdir()
    port, other_port = free_ports(2)
    command = peer.command(RouterPlace(installed.directory, own, backends, port, other_port))
    env = peer_variables(dict(peer.environment))
    router = RouterProcess(peer.name, command, env, peers / f"{peer.name}.run.log", {core})
    routers.callback(router.close)
    path = RoutePath(peer.name, router, lambda acks: HttpCaller(HOST, port, MODEL, acks_at_once=acks))
    try:
        await callers.until_it_answers(path, _PEER_SECONDS)
        await callers.warm_up(path)
    except BaseException:
        router.close()
        raise
    router.pause()
    return path
