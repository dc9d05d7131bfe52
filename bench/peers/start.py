"""Getting a peer to run, with the settings that suit this computer best."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import bench
from bench.peers.environment import Environment, PeerUnavailable, Say, prepare
from bench.peers.process import Peer, PeerFailed
from bench.peers.spec import PeerSpec

_TRIAL_PROMPTS, _TRIAL_LENGTH, _TRIAL_ANSWER = 16, 32, 16
_TRIAL_VOCABULARY = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where peers live, and what they are given."""

    peers: Path
    """Their environments and logs."""
    path: Path
    """A directory in which nothing but `bench` can be imported: a peer must not find our packages."""
    model: Path
    hf_directory: Callable[[], Path]
    """Writes the model out for those who do not read it as it is."""
    timeout: float
    """Seconds within which a peer has loaded, or answers."""

    def model_for(self, spec: PeerSpec) -> Path:
        if spec.reads == "hf directory":
            return self.hf_directory()
        if self.model.suffix != ".gguf":
            raise PeerUnavailable(f"{spec.name}: reads GGUF files only, and the model is {self.model}")
        return self.model


class _Tried(NamedTuple):
    seconds: float
    peer: Peer


def link_bench(directory: Path) -> Path:
    (directory / "bench").symlink_to(Path(bench.__path__[0]).resolve(), target_is_directory=True)
    return directory


def start_peer(spec: PeerSpec, place: Place, say: Say, *, try_all: bool) -> tuple[Peer, str]:
    """The peer, paused, and its settings in words. Raises PeerUnavailable or PeerFailed.

    A native build that is killed by the system is replaced by one that leaves out what it most likely died of.
    """
    model = place.model_for(spec)
    environment = prepare(spec, place.peers, say)
    variants = spec.variants if try_all else spec.variants[:1]
    try:
        peer = _fastest(spec, environment, model, variants, place, say)
    except PeerFailed as failure:
        if not (failure.signalled and spec.compiled and environment.build == "native"):
            raise
        say(f"{failure}; building it again without AMX")
        environment = prepare(spec, place.peers, say, careful=True)
        peer = _fastest(spec, environment, model, variants, place, say)
    built = "" if environment.build == "native" else f", built {environment.build}: the native build does not run here"
    return peer, peer.settings + built


def _fastest(
    spec: PeerSpec,
    environment: Environment,
    model: Path,
    variants: tuple[tuple[str, ...], ...],
    place: Place,
    say: Say,
) -> Peer:
    """Tries each once on the same prompts. One that fails is told and left out; all failing is a failure."""
    best: _Tried | None = None
    failures: list[PeerFailed] = []
    for variant in variants:
        try:
            peer = _launch(spec, environment, model, variant, place)
            tried = _Tried(_trial(peer, warm_up=len(variants) > 1), peer)
        except PeerFailed as failure:
            failures.append(failure)
            if len(variants) > 1:
                say(str(failure))
            continue
        say(f"{peer.name}: {tried.seconds:.2f} s for a trial of {_TRIAL_PROMPTS} sequences: {peer.settings}")
        best, loser = (tried, best) if best is None or tried.seconds < best.seconds else (best, tried)
        if loser is not None:
            loser.peer.close()
    if best is None:
        raise failures[-1]
    return best.peer


def _launch(spec: PeerSpec, environment: Environment, model: Path, variant: tuple[str, ...], place: Place) -> Peer:
    command = [str(environment.python), "-m", spec.module, str(model), *variant]
    log = place.peers / f"{spec.name}.run.log"
    return Peer(spec.name, command, cwd=place.path, env=os.environ, log=log, timeout=place.timeout)


def _trial(peer: Peer, *, warm_up: bool) -> float:
    """Seconds until the last token."""
    random = Random(0)
    prompts = [[random.randrange(_TRIAL_VOCABULARY) for _ in range(_TRIAL_LENGTH)] for _ in range(_TRIAL_PROMPTS)]
    if warm_up:
        peer.call("generate", prompts=prompts, new_tokens=2)
    generated = peer.call("generate", prompts=prompts, new_tokens=_TRIAL_ANSWER)
    return max(float(times[-1]) for times in generated["times"])
