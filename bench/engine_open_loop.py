"""Requests that come when they come: the engine at fixed rates, as shares of what it can do at most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

from bench.engine_board import Board
from bench.engine_jobs import Figure, prompt_tokens, spread
from bench.engine_rounds import OCTET, Failures, rotated
from bench.peers.process import Peer
from bench.record import Record

ARRIVE = "arrive"
SHARES = (0.3, 0.6, 0.9)
FIRST, EACH = 1.0, 0.1
"""Seconds to the first token, and on average to each other one, within which an answer is a good one."""
_CROWDS = 3
"""The machine may be shared: one of them alone may meet a fast moment, or a slow one."""


@dataclass(frozen=True, slots=True)
class LoopSizes:
    prompt: tuple[int, int]
    answer: tuple[int, int]
    crowd: int
    """Requests that come at once, to see what the engine can do at most."""
    seconds: float
    """Of arrivals at each rate, unless `most` have come before."""
    most: int = 2_000

    def window(self, rate: float) -> float:
        return min(self.seconds, self.most / rate)


FULL_LOOP = LoopSizes((16, 128), (8, 48), 64, 12.0)
QUICK_LOOP = LoopSizes((4, 16), (2, 6), 12, 1.0, 40)


@dataclass(frozen=True, slots=True)
class Arrivals:
    prompts: list[list[int]]
    new_tokens: list[int]
    at: list[float]


def loop_case(share: float) -> str:
    return f"open loop at {100 * share:.0f} % of capacity"


def measure_open_loop(
    peers: dict[str, Peer], sizes: LoopSizes, runs: int, vocab_size: int, failures: Failures
) -> tuple[list[Record], list[str]]:
    """And notes: the rates, which stay as they are for the whole run, and who cannot take arrivals."""
    notes = [
        f"open loop: {name} takes nobody in while it computes: left out" for name in peers if not _can(peers[name])
    ]
    found = None
    if OCTET in peers and _can(peers[OCTET]):
        found = failures.attempt(peers, OCTET, partial(_capacity, sizes=sizes, vocab_size=vocab_size))
    if not found:
        return [], [*notes, "open loop: not measured, since octet's capacity is not known"]
    rates = {share: found * share for share in SHARES}
    told = ", ".join(f"{rate:.3g}" for rate in rates.values())
    notes.append(f"open loop: {told} requests/s, of a capacity of {found:.3g} measured with octet first")
    board = Board(list(peers))
    for number in range(1, runs + 1):
        failures.say(f"open loop: round {number} of {runs}")
        for share, rate in rates.items():
            arrivals = poisson(sizes, rate, f"{number}, {share}", vocab_size)
            for name in rotated([name for name in peers if _can(peers[name])], number):
                times = failures.attempt(peers, name, partial(_arrive, arrivals=arrivals))
                if times:
                    board.add(number, loop_case(share), name, figures(times, sizes.window(rate)))
    return list(board.records()), notes


def _capacity(peer: Peer, sizes: LoopSizes, vocab_size: int) -> float:
    _arrive(peer, crowd(sizes, "warm-up", vocab_size))
    return median(capacity(_arrive(peer, crowd(sizes, f"capacity {turn}", vocab_size))) for turn in range(_CROWDS))


def crowd(sizes: LoopSizes, seed: str, vocab_size: int) -> Arrivals:
    random = Random(f"{seed}, crowd")
    return _arrivals(sizes, [0.0] * sizes.crowd, random, vocab_size)


def poisson(sizes: LoopSizes, rate: float, seed: str, vocab_size: int) -> Arrivals:
    """At least one."""
    random = Random(f"{seed}, arrivals")
    at = [random.expovariate(rate)]
    while (after := at[-1] + random.expovariate(rate)) < sizes.window(rate):
        at.append(after)
    return _arrivals(sizes, at, random, vocab_size)


def capacity(times: Sequence[Sequence[float]]) -> float:
    """Requests a second, of a crowd from its arrival to its last answer: prompts are work as well as answers."""
    ends = [mine[-1] for mine in times if mine]
    return len(ends) / max(ends) if ends else 0.0


def figures(times: Sequence[Sequence[float]], seconds: float) -> list[Figure]:
    """Times of each answer since it was due; empty of one that was refused."""
    good = [bool(mine) and _is_good(mine) for mine in times]
    answered = [mine for mine in times if mine]
    found = [
        Figure("offered", "requests/s", len(times) / seconds),
        Figure("refused", "%", 100 * (1 - len(answered) / len(times))),
        Figure("goodput", "requests/s", sum(good) / seconds),
        Figure("goodput, of the offered", "%", 100 * sum(good) / len(good)),
    ]
    gaps = [b - a for mine in answered for a, b in pairwise(mine)]
    for metric, samples in (("TTFT", [mine[0] for mine in answered]), ("ITL", gaps)):
        found += spread(metric, samples) if samples else ()
    return found


def _is_good(times: Sequence[float]) -> bool:
    return times[0] <= FIRST and times[-1] - times[0] <= EACH * (len(times) - 1)


def _arrive(peer: Peer, arrivals: Arrivals) -> list[list[float]]:
    told: Mapping[str, Any] = peer.call(
        ARRIVE, prompts=arrivals.prompts, new_tokens=arrivals.new_tokens, at=arrivals.at
    )
    lengths = [len(mine) for mine in told["times"]]
    if any(got not in (0, wanted) for got, wanted in zip(lengths, arrivals.new_tokens, strict=True)):
        raise ValueError("an answer is not as long as was asked for")
    return [[float(time) - due for time in mine] for mine, due in zip(told["times"], arrivals.at, strict=True)]


def _arrivals(sizes: LoopSizes, at: list[float], random: Random, vocab_size: int) -> Arrivals:
    prompts = [prompt_tokens(random, random.randint(*sizes.prompt), vocab_size) for _ in at]
    return Arrivals(prompts, [random.randint(*sizes.answer) for _ in at], at)


def _can(peer: Peer) -> bool:
    return ARRIVE in peer.calls
