"""How fast Octet's engine is here, beside its peers and the limits."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.atomic_file import write_atomically
from bench.engine_adapters import FULL_MIX, QUICK_MIX, cannot_mix, measure_mixes
from bench.engine_board import Board, Key
from bench.engine_calibration import calibrate
from bench.engine_jobs import (
    COLD,
    DECODE,
    FULL,
    PREFILL,
    QUICK,
    WARM,
    Job,
    Workload,
    decode_case,
    decode_jobs,
    prefill_case,
    prefill_job,
    prefix_case,
)
from bench.engine_limits import AT_BANDWIDTH, BARE_LINEAR
from bench.engine_model import BenchModel
from bench.engine_open_loop import FULL_LOOP, QUICK_LOOP, measure_open_loop
from bench.engine_rounds import LIMIT, OCTET, SERVED, Failures, Rounds, Say
from bench.peers.environment import PeerUnavailable
from bench.peers.process import Peer, PeerFailed
from bench.peers.spec import PEERS
from bench.peers.start import Place, link_bench, start_peer
from bench.record import Record
from bench.table import Targets

SHARES = "shares"
DECODING, OPEN_LOOP, ADAPTERS = PARTS = ("decode", "open-loop", "adapters")


@dataclass(frozen=True, slots=True)
class Options:
    peers: tuple[str, ...]
    runs: int
    cache: Path
    timeout: float
    """Seconds within which a system has loaded, or answers."""
    quick: bool = False
    calibrate: Path | None = None
    served: bool = False
    """Octet is measured over gRPC as well."""
    octet: tuple[str, ...] = ()
    """More arguments for Octet's own runners."""
    parts: tuple[str, ...] = (DECODING,)

    @property
    def workload(self) -> Workload:
        return QUICK if self.quick else FULL


class Outcome(NamedTuple):
    records: list[Record]
    notes: list[str]
    """Whose settings were what, a line each."""
    failures: list[str]
    """What could not be measured and why, a line each. They have been said already."""


def measure_engine(model: BenchModel, options: Options, say: Say) -> Outcome:
    """Whoever cannot be started, dies or hangs is told and left out; the others are measured."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="octet-bench-")))
        systems = _Systems(model, options, say, link_bench(scratch))
        stack.callback(systems.close)
        systems.start()
        records = [record for part in options.parts for record in systems.measure(part)]
        if options.calibrate is not None:
            systems.calibrate(options.calibrate)
        return Outcome(records, systems.notes, systems.failures.told)


class _Systems:
    """Everyone who is measured: loaded before anything is, and paused."""

    def __init__(self, model: BenchModel, options: Options, say: Say, path: Path) -> None:
        peers = options.cache / "peers"
        peers.mkdir(parents=True, exist_ok=True)
        self._model, self._options, self._say = model, options, say
        self._place = Place(peers, path, model.path, model.hf_directory, options.timeout)
        self.live: dict[str, Peer] = {}
        self.notes: list[str] = []
        self.failures = Failures(say)

    def measure(self, part: str) -> list[Record]:
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
        rounds = Rounds(self.live, jobs, options.workload, vocab_size, self.failures)
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
        """Where Octet's time goes, where its engine tells."""
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


def ratios(board: Board, options: Options) -> Iterator[Record]:
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
