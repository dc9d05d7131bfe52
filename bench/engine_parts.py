"""The parts "open-loop" and "adapters" of `octet bench engine`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

from bench.engine_decode import (
    BENCH,
    OCTET,
    SERVED,
    THROUGHPUT,
    DecodeJob,
    attempt,
    prompt_tokens,
    rotated,
    spread,
    throughput,
)
from bench.processes import Peer
from bench.timing import Board, Figure, FigureKey, Findings
from simulation.results import BenchRecord

ARRIVE = "arrive"
SHARES = (0.3, 0.6, 0.9)
FIRST, EACH = 1.0, 0.1
"""The maximum seconds of a good answer: until the first token, and per further token on average."""
_CROWDS = 3  # crowds to measure: more than one, because the machine may be shared


@dataclass(frozen=True, slots=True)
class LoopSizes:
    prompt: tuple[int, int]
    answer: tuple[int, int]
    crowd: int  # requests at once, to measure capacity
    seconds: float  # seconds of arrivals at each rate
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


def measure_open_loop(
    peers: dict[str, Peer], sizes: LoopSizes, runs: int, vocab_size: int, findings: Findings
) -> list[BenchRecord]:
    others = [name for name in peers if not _can(peers[name])]
    findings.notes += [f"open loop: {name} cannot accept requests while it computes: left out" for name in others]
    found = None
    if OCTET in peers and _can(peers[OCTET]):
        found = attempt(findings, peers, OCTET, partial(_capacity, sizes=sizes, vocab_size=vocab_size))
    if not found:
        findings.notes.append("open loop: not measured, because octet's capacity is unknown")
        return []
    rates = {share: found * share for share in SHARES}
    offered = ", ".join(f"{rate:.3g}" for rate in rates.values())
    findings.notes.append(f"open loop: {offered} requests/s, of a capacity of {found:.3g} measured with octet first")
    board = Board(BENCH, list(peers))
    for number in range(1, runs + 1):
        findings.say(f"open loop: round {number} of {runs}")
        for share, rate in rates.items():
            case = f"open loop at {100 * share:.0f} % of capacity"
            arrivals = poisson(sizes, rate, f"{number}, {share}", vocab_size)
            for name in rotated([name for name in peers if _can(peers[name])], number):
                times = attempt(findings, peers, name, partial(_arrive, arrivals=arrivals))
                if times:
                    board.add(number, case, name, figures(times, sizes.window(rate)))
    return board.records()


def _capacity(peer: Peer, sizes: LoopSizes, vocab_size: int) -> float:
    _arrive(peer, crowd(sizes, "warm-up", vocab_size))
    return median(capacity(_arrive(peer, crowd(sizes, f"capacity {turn}", vocab_size))) for turn in range(_CROWDS))


def crowd(sizes: LoopSizes, seed: str, vocab_size: int) -> Arrivals:
    return _arrivals(sizes, [0.0] * sizes.crowd, Random(f"{seed}, crowd"), vocab_size)


def poisson(sizes: LoopSizes, rate: float, seed: str, vocab_size: int) -> Arrivals:
    random = Random(f"{seed}, arrivals")
    at = [random.expovariate(rate)]
    while (after := at[-1] + random.expovariate(rate)) < sizes.window(rate):
        at.append(after)
    return _arrivals(sizes, at, random, vocab_size)


def capacity(times: Sequence[Sequence[float]]) -> float:
    """Return the answered requests per second. All requests arrive at once; the time ends with the last answer."""
    ends = [mine[-1] for mine in times if mine]
    return len(ends) / max(ends) if ends else 0.0


def figures(times: Sequence[Sequence[float]], seconds: float) -> list[Figure]:
    good = [bool(mine) and (mine[0] <= FIRST and mine[-1] - mine[0] <= EACH * (len(mine) - 1)) for mine in times]
    answered = [mine for mine in times if mine]
    found = [
        Figure("offered", "requests/s", len(times) / seconds),
        Figure("refused", "%", 100 * (1 - len(answered) / len(times))),
        Figure("goodput", "requests/s", sum(good) / seconds),
        Figure("goodput share", "%", 100 * sum(good) / len(good)),
    ]
    gaps = [b - a for mine in answered for a, b in pairwise(mine)]
    for metric, samples in (("TTFT", [mine[0] for mine in answered]), ("ITL", gaps)):
        found += spread(metric, samples) if samples else ()
    return found


def _arrive(peer: Peer, arrivals: Arrivals) -> list[list[float]]:
    reply: Mapping[str, Any] = peer.call(ARRIVE, **asdict(arrivals))
    lengths = [len(mine) for mine in reply["times"]]
    if any(got not in (0, wanted) for got, wanted in zip(lengths, arrivals.new_tokens, strict=True)):
        raise ValueError("an answer does not have the requested length")
    return [[float(time) - due for time in mine] for mine, due in zip(reply["times"], arrivals.at, strict=True)]


def _arrivals(sizes: LoopSizes, at: list[float], random: Random, vocab_size: int) -> Arrivals:
    prompts = [prompt_tokens(random, random.randint(*sizes.prompt), vocab_size) for _ in at]
    return Arrivals(prompts, [random.randint(*sizes.answer) for _ in at], at)


def _can(peer: Peer) -> bool:
    return ARRIVE in peer.calls


MIX = "mix"
GROUPED, INTERLEAVED = "octet", "octet interleaved"
RULES: Mapping[str, int | None] = {GROUPED: None, INTERLEAVED: 1}
"""By system, how many steps an adapter may be passed over; None for the default of a replica."""
NUMS, GPU_NUMS = (1, 4, 16), (0, 1, 4, 16)


FULL_MIX = DecodeJob("16 sequences", 16, 32, 48)
QUICK_MIX = DecodeJob("16 sequences", 16, 8, 6)
GPU_MIX = DecodeJob("16 sequences", 16, 128, 256)


def measure_mixes(
    peers: dict[str, Peer], mix: DecodeJob, runs: int, vocab_size: int, findings: Findings, *, on_gpu: bool = False
) -> Iterator[BenchRecord]:
    """`on_gpu`: Octet's steps serve all adapters, so that they do not take turns."""
    nums, octets = (GPU_NUMS, {GROUPED: None}) if on_gpu else (NUMS, RULES)
    jobs = {number: replace(mix, case=f"{mix.case}, {number or 'no'} adapter{'s' * (number > 1)}") for number in nums}
    for name in peers:
        if name not in (OCTET, SERVED) and MIX not in peers[name].calls:
            findings.notes.append(f"adapters: {name} was not started with adapters: left out")
    rules = {**octets, **{name: None for name, peer in peers.items() if name not in octets and MIX in peer.calls}}
    board = Board(BENCH, list(rules))
    for number in range(runs + 1):
        findings.say(f"adapters: round {number} of {runs}" if number else "adapters: a round that does not count")
        for num_adapters, job in jobs.items():
            prompts = job.prompts(str(number), vocab_size)
            for system in rotated(list(rules), number):
                asked = partial(_mix, job=job, prompts=prompts, num_adapters=num_adapters, age_bound=rules[system])
                figures = attempt(findings, peers, OCTET if system in octets else system, asked)
                if figures and number:
                    board.add(number, job.case, system, figures)
    yield from board.records()
    for case in (job.case for job in jobs.values()):
        mine = FigureKey(case, GROUPED, THROUGHPUT)
        if 0 in jobs and case != jobs[0].case:
            yield from board.ratio(mine, FigureKey(jobs[0].case, GROUPED, THROUGHPUT), f"{case} vs none")
        yield from board.ratio(mine, FigureKey(case, INTERLEAVED, THROUGHPUT), f"{case} vs interleaved")
        for peer in [name for name in rules if name not in octets]:
            yield from board.ratio(mine, FigureKey(case, peer, THROUGHPUT), f"{case} vs {peer}")


def _mix(
    peer: Peer, job: DecodeJob, prompts: list[list[int]], num_adapters: int, age_bound: int | None
) -> list[Figure]:
    reply: dict[str, Any] = peer.call(
        MIX, prompts=prompts, new_tokens=job.new_tokens, num_adapters=num_adapters, age_bound=age_bound
    )
    times = job.checked_times(reply)
    figures = [
        Figure(THROUGHPUT, "tok/s", throughput(times)),
        *spread("TTFT", [mine[0] for mine in times]),
        *spread("ITL", [b - a for mine in times for a, b in pairwise(mine)]),
    ]
    if "turns" in reply:  # a peer has no turns: all adapters share its steps
        figures.append(Figure("longest wait of an adapter", "steps", float(reply["longest"])))
        figures.append(Figure("steps a turn", "steps", reply["steps"] / reply["turns"]))
    return figures
