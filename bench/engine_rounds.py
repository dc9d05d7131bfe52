"""Rounds in which every system does the same, one after the other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bench.engine_board import Board
from bench.engine_jobs import COLD, WARM, Figure, Job, Workload, checked_times, prefix_case, prefix_prompts
from bench.engine_limits import LIMITS, limit_figures
from bench.peers.process import Peer, PeerFailed

OCTET, SERVED, LIMIT = "octet", "octet served", "limit"
AGREEMENT_CASE, AGREEMENT = "all prompts", "first token as octet's"
Say = Callable[[str], None]
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Failures:
    """What went wrong, told once each."""

    say: Say
    told: list[str] = field(default_factory=list)

    def add(self, why: str) -> None:
        self.told.append(why)
        self.say(why)

    def attempt(self, peers: dict[str, Peer], name: str, work: Callable[[Peer], _Result]) -> _Result | None:
        """One that fails is out; what it did in earlier rounds counts."""
        if name not in peers:
            return None
        try:
            return work(peers[name])
        except (PeerFailed, ValueError) as error:
            self.add(str(error) if isinstance(error, PeerFailed) else f"{name}: {error}")
            peers.pop(name).close()
            return None


@dataclass(slots=True)
class Rounds:
    peers: dict[str, Peer]
    """Those who still live, by name, in the order of the first round."""
    jobs: Sequence[Job]
    workload: Workload
    vocab_size: int
    failures: Failures
    board: Board = field(init=False)
    _firsts: dict[str, list[int]] = field(default_factory=dict)
    """By system, the first token of every answer of this round."""

    def __post_init__(self) -> None:
        self.board = Board([*self.peers, LIMIT])

    def run(self, runs: int) -> None:
        """`runs` rounds, after one that does not count."""
        for number in range(runs + 1):
            self.failures.say(f"round {number} of {runs}" if number else "a round that does not count")
            self._round(number)

    def _round(self, number: int) -> None:
        self._firsts = {name: [] for name in self.peers}
        for i, job in enumerate(self.jobs):
            for name in rotated(list(self.peers), number + i):
                self._attempt(name, partial(self._do, job=job, number=number))
        if OCTET in self.peers:
            self._attempt(OCTET, partial(self._prefix, number=number))
            for limit in LIMITS:
                self._attempt(OCTET, partial(self._limit, limit=limit, number=number))
        self._agreement(number)

    def _attempt(self, name: str, work: Callable[[Peer], None]) -> None:
        self.failures.attempt(self.peers, name, work)

    def _do(self, peer: Peer, job: Job, number: int) -> None:
        prompts = job.prompts(str(number), self.vocab_size)
        generated = peer.call("generate", prompts=prompts, new_tokens=job.new_tokens)
        times = checked_times(job, generated)
        self._firsts[peer.name].extend(mine[0] for mine in generated["tokens"])
        self._add(number, job.case, peer.name, job.figures(times))

    def _prefix(self, peer: Peer, number: int) -> None:
        cold, warm = prefix_prompts(self.workload, str(number), self.vocab_size)
        figures = [Figure(metric, "ms", 1e3 * _ttft(peer, prompt)) for metric, prompt in ((COLD, cold), (WARM, warm))]
        self._add(number, prefix_case(self.workload), OCTET, figures)

    def _limit(self, peer: Peer, limit: str, number: int) -> None:
        if limit in peer.calls:
            for case, figure in limit_figures(limit, self.workload, peer):
                self._add(number, case, LIMIT, [figure])

    def _agreement(self, number: int) -> None:
        ours = self._firsts.get(OCTET, [])
        for name, theirs in self._firsts.items():
            if name != OCTET and ours and len(theirs) == len(ours):
                share = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
                self._add(number, AGREEMENT_CASE, name, [Figure(AGREEMENT, "%", 100 * share)])

    def _add(self, number: int, case: str, system: str, figures: Iterable[Figure]) -> None:
        measured = list(figures)
        if number > 0:
            self.board.add(number, case, system, measured)


def _ttft(peer: Peer, prompt: list[int]) -> float:
    generated: dict[str, Any] = peer.call("generate", prompts=[prompt], new_tokens=1)
    return float(generated["times"][0][0])


def rotated(names: list[str], by: int) -> list[str]:
    start = by % len(names) if names else 0
    return names[start:] + names[:start]
