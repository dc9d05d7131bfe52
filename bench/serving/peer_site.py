"""Peers' own servers, each in an environment of its own, in front of the model that Octet serves."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

from bench.peers.environment import Say, prepare
from bench.peers.hf_directory import write_hf_directory
from bench.peers.hf_tokenizer import write_hf_tokenizer
from bench.peers.ports import HOST, free_ports
from bench.peers.process import PeerFailed
from bench.peers.server import ServerProcess
from bench.serving.endpoint import Endpoint
from bench.serving.server_peer import MODEL, Place, ServerPeer
from specialist.models.checkpoint import Checkpoint

START_SECONDS = 600.0
"""The first time it compiles what it runs."""
_HEARTBEAT = 30.0
_POLL = 0.5


@dataclass(frozen=True, slots=True)
class RunningPeer:
    endpoint: Endpoint
    process: ServerProcess


def start_peer(
    peer: ServerPeer,
    model: Callable[[], Checkpoint],
    context: int,
    peers: Path,
    say: Say,
    seconds: float = START_SECONDS,
) -> RunningPeer:
    """Ready, and stopped. Raises PeerUnavailable, PeerFailed and what the model raises."""
    environment = prepare(peer.spec, peers, say)
    checkpoint, models = model(), peers / "models"
    (port,) = free_ports(1)
    weights, words = write_hf_directory(checkpoint, models), write_hf_tokenizer(checkpoint, models)
    command = peer.command(Place(environment.python, weights, words, port, context))
    env = {**os.environ, **peer.environment()}
    env.pop("PYTHONPATH", None)  # a peer must not find our packages
    process = ServerProcess(peer.name, command, env, peers / f"{peer.name}.serve.log")
    try:
        _until_ready(process, f"http://{HOST}:{port}/v1", seconds, say)
    except BaseException:
        process.close()
        raise
    process.pause()
    return RunningPeer(Endpoint("http", f"http://{HOST}:{port}/v1", MODEL, peer.name, peer.told), process)


def _until_ready(process: ServerProcess, url: str, seconds: float, say: Say) -> None:
    say(f"{process.name}: starting its server")
    start = told = monotonic()
    while not _answers(url):
        process.check()
        now = monotonic()
        if now - start > seconds:
            raise PeerFailed(process.name, f"no answer within {seconds:g} s of its start")
        if now - told > _HEARTBEAT:
            told = now
            say(f"{process.name}: still starting, {now - start:.0f} s")
        sleep(_POLL)


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/models", timeout=_HEARTBEAT) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False
