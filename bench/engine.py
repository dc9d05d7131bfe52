"""How fast Octet's engine is, beside its peers and the limits of the machine."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.engine_calibration import calibrate
from bench.engine_jobs import (
    AT_BANDWIDTH,
    BARE_LINEAR,
    COLD,
    DECODE,
    FULL,
    LIMIT,
    OCTET,
    PREFILL,
    QUICK,
    SERVED,
    WARM,
    BenchModel,
    Board,
    EngineRounds,
    Failures,
    Job,
    Key,
    Say,
    Workload,
    decode_case,
    decode_jobs,
    prefill_case,
    prefill_job,
    prefix_case,
)
from bench.engine_parts import FULL_LOOP, FULL_MIX, QUICK_LOOP, QUICK_MIX, cannot_mix, measure_mixes, measure_open_loop
from bench.peers.environment import PEERS, PeerUnavailable, PeerWorkspace, link_bench, start_peer
from bench.peers.process import Peer, PeerFailed
from bench.timing import Targets
from simulation.results import BenchRecord, write_atomically

SHARES = "shares"
DECODING, OPEN_LOOP, ADAPTERS = PARTS = ("decode", "open-loop", "adapters")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    peers: tuple[str, ...]
    runs: int
    cache: Path
    timeout: float  # seconds to load, or to answer
    quick: bool = False
    calibrate: Path | None = None
    served: bool = False  # also over gRPC
    octet: tuple[str, ...] = ()  # more arguments of Octet's runners
    parts: tuple[str, ...] = (DECODING,)

    @property
    def workload(self) -> Workload:
        return QUICK if self.quick else FULL


class BenchOutcome(NamedTuple):
    records: list[BenchRecord]
    notes: list[str]  # settings of each system
    failures: list[str]  # already printed


def measure_engine(model: BenchModel, options: EngineOptions, say: Say) -> BenchOutcome:
    """A system that cannot be started, dies or hangs is reported and left out."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="octet-bench-")))
        systems = _Systems(model, options, say, link_bench(scratch))
        stack.callback(systems.close)
        systems.start()
        records = [record for part in options.parts for record in systems.measure(part)]
        if options.calibrate is not None:
            systems.calibrate(options.calibrate)
        return BenchOutcome(records, systems.notes, systems.failures.reply)


class _Systems:
    def __init__(self, model: BenchModel, options: EngineOptions, say: Say, path: Path) -> None:
        peers = options.cache / "peers"
        peers.mkdir(parents=True, exist_ok=True)
        self._model, self._options, self._say = model, options, say
        self._place = PeerWorkspace(peers, path, model.path, model.hf_directory, options.timeout)
        self.live: dict[str, Peer] = {}
        self.notes: list[str] = []
        self.failures = Failures(say)

    def measure(self, part: str) -> list[BenchRecord]:
        options, vocab_size = self._options, self._model.vocab_size
        if part == ADAPTERS:
            sizes = QUICK_MIX if options.quick else FULL_MIX
            self.notes += cannot_mix(self.live)
            return list(measure_mixes(self.live, sizes, options.runs, vocab_size, self.failures))
        if part == OPEN_LOOP:
            loop = QUICK_LOOP if options.quick else FULL_LOOP
            records, notes = measure_open_loop(self.live, loop, options.runs, vocab_size, self.failures)
            self.notes += notes
            return records
        jobs = [*decode_jobs(options.workload), prefill_job(options.workload)]
        rounds = EngineRounds(self.live, jobs, options.workload, vocab_size, self.failures)
        rounds.run(options.runs)
        self.tell_shares(decode_jobs(options.workload))
        return [*rounds.board.records(), *ratios(rounds.board, options)]

    def start(self) -> None:
        served = self._options.served or OPEN_LOOP in self._options.parts
        ours = (OCTET, SERVED) if served else (OCTET,)
        for name in (*ours, *self._options.peers):
            try:
                peer, settings = self._start_octet(name) if name in ours else self._start_peer(name)
            except (PeerFailed, PeerUnavailable, OSError, ValueError) as error:
                self._fail(str(error))
                continue
            self.live[name] = peer
            self.notes.append(f"{name}: {settings}")

    def calibrate(self, path: Path) -> None:
        if OCTET not in self.live:
            self._fail("octet: not calibrated, since it does not run")
            return
        try:
            content, summary = calibrate(
                self.live[OCTET], self._model.vocab_size, self._model.revision, quick=self._options.quick
            )
        except (PeerFailed, ValueError) as error:
            self._fail(str(error))
            return
        write_atomically(path, content.encode())
        self.notes.append(f"{path}: {summary}")

    def tell_shares(self, jobs: Sequence[Job]) -> None:
        octet = self.live.get(OCTET)
        if octet is None or SHARES not in octet.calls:
            return
        for job in jobs:
            try:
                prompts = job.prompts("shares", self._model.vocab_size)
                spent = octet.call(SHARES, prompts=prompts, new_tokens=job.new_tokens)
            except PeerFailed as error:
                self._fail(str(error))
                return
            self.notes.append(f"octet: of {job.case}, {shares(spent)}")

    def close(self) -> None:
        for peer in self.live.values():
            peer.close()

    def _start_octet(self, name: str) -> tuple[Peer, str]:
        module = {OCTET: "bench.peers.octet_runner", SERVED: "bench.peers.octet_served_runner"}[name]
        command = [sys.executable, "-m", module, str(self._model.path), *self._options.octet]
        log = self._place.peers / f"{name}.run.log"
        octet = Peer(name, command, cwd=Path.cwd(), env=os.environ, log=log, timeout=self._options.timeout)
        return octet, octet.settings

    def _start_peer(self, name: str) -> tuple[Peer, str]:
        if name not in PEERS:
            raise PeerUnavailable(f"{name}: no such peer, there are {', '.join(PEERS)}")
        spec = PEERS[name]
        if self._options.parts == (ADAPTERS,):
            if not spec.mixing:
                raise PeerUnavailable(f"{name}: does not share a batch among adapters")
            spec = replace(spec, variants=tuple((*variant, *spec.mixing) for variant in spec.variants))
        return start_peer(spec, self._place, self._say, try_all=not self._options.quick)

    def _fail(self, why: str) -> None:
        self.failures.add(why)


def shares(spent: Mapping[str, float]) -> str:
    whole = sum(spent.values())
    return ", ".join(f"{kind} {100 * seconds / whole:.0f} %" for kind, seconds in spent.items())


def ratios(board: Board, options: EngineOptions) -> Iterator[BenchRecord]:
    """Octet over each peer and each limit, in rates, and a warm prefix over a cold one, in time."""
    workload = options.workload
    for case, metric in _rates(workload):
        yield from board.ratio(Key(case, SERVED, metric), Key(case, OCTET, metric), f"{case} vs in process")
    for peer in options.peers:
        for case, metric in _rates(workload):
            yield from board.ratio(Key(case, OCTET, metric), Key(case, peer, metric), f"{case} vs {peer}")
    for case, metric in _rates(workload):
        for limit in (BARE_LINEAR, AT_BANDWIDTH):
            yield from board.ratio(Key(case, OCTET, metric), Key(case, LIMIT, limit), f"{case} vs {limit}")
    case = prefix_case(workload)
    yield from board.ratio(Key(case, OCTET, WARM), Key(case, OCTET, COLD), f"{case} vs cold")


def engine_targets() -> Targets:
    return {
        (f"{decode_case(1)} vs llamacpp", DECODE): "at least 1.5 x",
        (f"{decode_case(16)} vs llamacpp", DECODE): "at least 2 x",
        (f"{prefill_case(FULL)} vs llamacpp", PREFILL): "at least 2 x",
        (f"{decode_case(16)} vs vllm", DECODE): "at least 5 x",
        (f"{prefix_case(FULL)} vs cold", WARM): "at most 0.15 x",
    }


def _rates(workload: Workload) -> Sequence[tuple[str, str]]:
    return [*((decode_case(n), DECODE) for n in workload.answers), (prefill_case(workload), PREFILL)]
