"""The speed of Octet's engine, compared with its peers and the limits of the machine."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import engine_decode as decode
from bench.engine_calibration import FULL_SHAPES, GPU_SHAPES, QUICK_SHAPES, calibrate
from bench.engine_decode import OCTET, SERVED, DecodeJob, attempt
from bench.engine_parts import FULL_LOOP, FULL_MIX, GPU_MIX, QUICK_LOOP, QUICK_MIX, measure_mixes, measure_open_loop
from bench.peers.environment import PEERS, PeerUnavailable, PeerWorkspace, link_bench, start_peer, start_peer_on_gpu
from bench.processes import Peer, PeerFailed
from bench.timing import Findings, Say
from simulation.results import BenchRecord, write_atomically

SHARES = "shares"
DECODING, OPEN_LOOP, ADAPTERS = PARTS = ("decode", "open-loop", "adapters")
_OCTET_RUNNERS = {OCTET: ["bench.peers.octet_runner"], SERVED: ["bench.peers.octet_runner", "--served"]}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    peers: tuple[str, ...]
    runs: int
    cache: Path
    timeout: float  # seconds for loading, or for an answer
    quick: bool = False
    calibrate: Path | None = None
    served: bool = False  # whether Octet is also measured over gRPC
    octet: tuple[str, ...] = ()  # additional arguments of Octet's runners
    parts: tuple[str, ...] = (DECODING,)
    on_gpu: bool = False
    dtype: str = "float32"
    peer_path: Path | None = None  # on a GPU: a folder from which peers can be imported


def measure_engine(model: decode.BenchModel, options: EngineOptions, say: Say) -> Findings:
    """Measure all systems. A system that cannot be started, dies or hangs is reported and left out."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="octet-bench-")))
        systems = _Systems(model, options, say, link_bench(scratch))
        stack.callback(systems.close)
        systems.start()
        for part in options.parts:
            systems.findings.records += systems.measure(part)
        if options.calibrate is not None:
            systems.calibrate(options.calibrate)
        return systems.findings


class _Systems:
    def __init__(self, model: decode.BenchModel, options: EngineOptions, say: Say, path: Path) -> None:
        peers = options.cache / "peers"
        peers.mkdir(parents=True, exist_ok=True)
        self._model, self._options, self._say = model, options, say
        self._place = PeerWorkspace(peers, path, model.path, model.hf_directory, options.timeout)
        self.live: dict[str, Peer] = {}
        self.findings = Findings(say)

    def start(self) -> None:
        served = self._options.served or OPEN_LOOP in self._options.parts
        for name in (OCTET, *((SERVED,) if served else ()), *self._options.peers):
            try:
                peer, settings = self._start_octet(name) if name in _OCTET_RUNNERS else self._start_peer(name)
            except (PeerFailed, PeerUnavailable, OSError, ValueError) as error:
                self.findings.fail(str(error))
                continue
            self.live[name] = peer
            self.findings.notes.append(f"{name}: {settings}")

    def measure(self, part: str) -> list[BenchRecord]:
        options, vocab_size = self._options, self._model.vocab_size
        if part == ADAPTERS:
            sizes = QUICK_MIX if options.quick else GPU_MIX if options.on_gpu else FULL_MIX
            mixes = measure_mixes(self.live, sizes, options.runs, vocab_size, self.findings, on_gpu=options.on_gpu)
            return list(mixes)
        if part == OPEN_LOOP:
            loop = QUICK_LOOP if options.quick else FULL_LOOP
            return measure_open_loop(self.live, loop, options.runs, vocab_size, self.findings)
        workload = decode.QUICK if options.quick else decode.GPU if options.on_gpu else decode.FULL
        rounds = decode.DecodeRounds(self.live, workload, vocab_size, self.findings)
        rounds.run(options.runs)
        self._note_shares(decode.decode_jobs(workload))
        return [*rounds.board.records(), *decode.ratios(rounds.board, workload, options.peers)]

    def calibrate(self, path: Path) -> None:
        if OCTET not in self.live:
            self.findings.fail("octet: not calibrated, because it is not running")
            return
        model, options = self._model, self._options
        shapes = QUICK_SHAPES if options.quick else GPU_SHAPES if options.on_gpu else FULL_SHAPES
        work = partial(calibrate, vocab_size=model.vocab_size, revision=model.revision(), shapes=shapes)
        if found := attempt(self.findings, self.live, OCTET, work):
            content, summary = found
            write_atomically(path, content.encode())
            self.findings.notes.append(f"{path}: {summary}")

    def close(self) -> None:
        for peer in self.live.values():
            peer.close()

    def _note_shares(self, jobs: Sequence[DecodeJob]) -> None:
        if OCTET in self.live and SHARES not in self.live[OCTET].calls:
            return
        for job in jobs:
            prompts = job.prompts("shares", self._model.vocab_size)
            work = partial(Peer.call, name=SHARES, prompts=prompts, new_tokens=job.new_tokens)
            if spent := attempt(self.findings, self.live, OCTET, work):
                self.findings.notes.append(f"octet: of {job.case}, {shares(spent)}")

    def _start_octet(self, name: str) -> tuple[Peer, str]:
        command = [sys.executable, "-m", *_OCTET_RUNNERS[name], str(self._model.path), *self._options.octet]
        log = self._place.peers / f"{name}.run.log"
        octet = Peer(name, command, cwd=Path.cwd(), env=os.environ, log=log, timeout=self._options.timeout)
        return octet, octet.settings

    def _start_peer(self, name: str) -> tuple[Peer, str]:
        if name not in PEERS:
            raise PeerUnavailable(f"{name}: unknown peer (known: {', '.join(PEERS)})")
        spec = PEERS[name]
        is_mixing = self._options.parts == (ADAPTERS,)
        if is_mixing and not spec.mixing:
            raise PeerUnavailable(f"{name}: cannot mix adapters in one batch")
        if self._options.peer_path is not None:
            mixing = spec.mixing if is_mixing else ()
            return start_peer_on_gpu(spec, self._options.peer_path, self._options.dtype, mixing, self._place)
        if is_mixing:
            spec = replace(spec, variants=tuple((*variant, *spec.mixing) for variant in spec.variants))
        return start_peer(spec, self._place, self._say, try_all=not self._options.quick)


def shares(spent: Mapping[str, float]) -> str:
    whole = sum(spent.values())
    return ", ".join(f"{kind} {100 * seconds / whole:.0f} %" for kind, seconds in spent.items())
