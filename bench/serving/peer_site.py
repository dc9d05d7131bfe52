"""A peer's own server, in front of the model that Octet serves, with the settings that suit this computer best."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from bench.peers.environment import Say, prepare
from bench.peers.ports import HOST, free_ports
from bench.peers.process import PeerFailed
from bench.peers.server import ServerProcess
from bench.serving.asks import Ask
from bench.serving.capacity import PATIENT, capacity_of
from bench.serving.endpoint import Endpoint, caller_of
from bench.serving.server_peer import MODEL, Place, ServerPeer, Variant
from bench.serving.usage import ServeMistake

if TYPE_CHECKING:
    from specialist.models.checkpoint import Checkpoint

START_SECONDS = 600.0
"""The first time it compiles what it runs."""
_HEARTBEAT = 30.0
_POLL = 0.25
_TRIAL_CROWD, _TRIAL = 16, (64, 24)
"""Requests, and the tokens of each: prompt and answer."""


@dataclass(frozen=True, slots=True)
class PeerSite:
    """Where peers live, and what they are given."""

    peers: Path
    """Their environments and logs."""
    model: "Callable[[], Checkpoint]"
    context: int
    """Tokens of prompt and answer."""
    seconds: float = START_SECONDS
    """Within which a server has started."""

    def place_for(self, peer: ServerPeer, say: Say) -> Place:
        """Raises PeerUnavailable, and what the model raises."""
        environment = prepare(peer.spec, self.peers, say)
        from bench.peers.hf_directory import write_hf_directory  # loads torch
        from bench.peers.hf_tokenizer import write_hf_tokenizer

        checkpoint, models = self.model(), self.peers / "models"
        weights, words = write_hf_directory(checkpoint, models), write_hf_tokenizer(checkpoint, models)
        return Place(environment.directory, weights, words, 0, self.context)


@dataclass(frozen=True, slots=True)
class RunningPeer:
    endpoint: Endpoint
    process: ServerProcess
    settings: str
    rate: float
    """Requests a second, of its trial."""


def start_peer(peer: ServerPeer, site: PeerSite, say: Say, *, try_all: bool) -> RunningPeer:
    """The fastest of its variants, ready, and stopped. Raises PeerUnavailable, PeerFailed and what the model raises.

    A variant that fails is told and left out; all failing is a failure.
    """
    place = site.place_for(peer, say)
    variants = peer.variants(place)
    with ExitStack() as running:
        best = _fastest(peer, site, place, variants if try_all else variants[:1], say, running)
        running.pop_all()
    return best


def _fastest(
    peer: ServerPeer, site: PeerSite, place: Place, variants: Sequence[Variant], say: Say, running: ExitStack
) -> RunningPeer:
    """Whoever is left running, the stack closes."""
    best: RunningPeer | None = None
    failures: list[PeerFailed] = []
    for number, variant in enumerate(variants, 1):
        log = site.peers / f"{peer.name}.serve.{number}.log"
        try:
            tried = _launch(peer, site, replace(place, port=free_ports(1)[0]), variant, log, say)
        except PeerFailed as failure:
            failures.append(failure)
            if len(variants) > 1:
                say(str(failure))
            continue
        running.callback(tried.process.close)
        say(f"{peer.name}: {tried.rate:.3g} requests/s of a crowd of {_TRIAL_CROWD}: {tried.settings}")
        best, loser = (tried, best) if best is None or tried.rate > best.rate else (best, tried)
        if loser is not None:
            loser.process.close()
    if best is None:
        raise failures[-1]
    return best


def _launch(peer: ServerPeer, site: PeerSite, place: Place, variant: Variant, log: Path, say: Say) -> RunningPeer:
    env = {**os.environ, **variant.variables}
    env.pop("PYTHONPATH", None)  # a peer must not find our packages
    endpoint = Endpoint("http", f"http://{HOST}:{place.port}/v1", MODEL, peer.name, peer.told)
    process = ServerProcess(peer.name, peer.command(place), env, log)
    try:
        _until_ready(process, place.port, site.seconds, say)
        rate = asyncio.run(_trial(endpoint))
    except ServeMistake as mistake:
        process.close()
        raise PeerFailed(peer.name, str(mistake)) from mistake
    except BaseException:
        process.close()
        raise
    process.pause()
    return RunningPeer(endpoint, process, variant.words, rate)


async def _trial(endpoint: Endpoint) -> float:
    """Requests a second, after a crowd that does not count. Raises ServeMistake."""
    caller = caller_of(endpoint, None, PATIENT.total)
    try:
        await caller.check()
        numbers = range(_TRIAL_CROWD)
        crowds = [[Ask(number, 0.0, *_TRIAL, PATIENT, seed) for number in numbers] for seed in range(-2, 0)]
        return await capacity_of(endpoint.name, caller, crowds)
    finally:
        await caller.close()


def _until_ready(process: ServerProcess, port: int, seconds: float, say: Say) -> None:
    say(f"{process.name}: starting its server")
    start = told = monotonic()
    while not _answers(port):
        process.check()
        now = monotonic()
        if now - start > seconds:
            raise PeerFailed(process.name, f"no answer within {seconds:g} s of its start")
        if now - told > _HEARTBEAT:
            told = now
            say(f"{process.name}: still starting, {now - start:.0f} s")
        sleep(_POLL)


def _answers(port: int) -> bool:
    with closing(HTTPConnection(HOST, port, timeout=_HEARTBEAT)) as connection:
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
