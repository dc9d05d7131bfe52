"""Many adapters at once: turns that last against a turn after every step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from bench.engine_board import Board, Key
from bench.engine_jobs import Figure, Job, checked_times, spread
from bench.engine_rounds import OCTET, SERVED, Failures, rotated
from bench.peers.process import Peer
from bench.record import Record

MIX = "mix"
GROUPED, INTERLEAVED = "octet", "octet interleaved"
RULES: Mapping[str, int | None] = {GROUPED: None, INTERLEAVED: 1}
"""By system, how many steps an adapter may be passed over; None for as many as a replica allows."""
NUMS = (1, 4, 16)
THROUGHPUT = "throughput"
"""From all prompts to the last token: the sequences of many adapters are hardly ever all at the same kind of work."""


@dataclass(frozen=True, slots=True)
class MixSizes:
    sequences: int
    prompt_tokens: int
    new_tokens: int


FULL_MIX = MixSizes(16, 32, 48)
QUICK_MIX = MixSizes(16, 8, 6)


def mix_case(number: int, sizes: MixSizes) -> str:
    return f"{sizes.sequences} sequences, {number} adapter{'s' if number > 1 else ''}"


def cannot_mix(peers: Mapping[str, Peer]) -> list[str]:
    """Notes: who has no adapters."""
    others = [name for name, peer in peers.items() if name not in (OCTET, SERVED) and MIX not in peer.calls]
    return [f"adapters: {name} was not started for them: left out" for name in others]


def measure_mixes(
    peers: dict[str, Peer], sizes: MixSizes, runs: int, vocab_size: int, failures: Failures
) -> Iterator[Record]:
    rules = {**RULES, **{name: None for name, peer in peers.items() if name not in RULES and MIX in peer.calls}}
    board = Board(list(rules))
    for number in range(runs + 1):
        failures.say(f"adapters: round {number} of {runs}" if number else "adapters: a round that does not count")
        for num_adapters in NUMS:
            case = mix_case(num_adapters, sizes)
            job = Job(case, sizes.sequences, sizes.prompt_tokens, sizes.new_tokens)
            prompts = job.prompts(str(number), vocab_size)
            for system in rotated(list(rules), number):
                asked = partial(_mix, job=job, prompts=prompts, num_adapters=num_adapters, age_bound=rules[system])
                figures = failures.attempt(peers, OCTET if system in RULES else system, asked)
                if figures and number:
                    board.add(number, case, system, figures)
    yield from board.records()
    for num_adapters in NUMS:
        case = mix_case(num_adapters, sizes)
        mine = Key(case, GROUPED, THROUGHPUT)
        yield from board.ratio(mine, Key(case, INTERLEAVED, THROUGHPUT), f"{case} vs interleaved")
        for peer in [name for name in rules if name not in RULES]:
            yield from board.ratio(mine, Key(case, peer, THROUGHPUT), f"{case} vs {peer}")


def _mix(peer: Peer, job: Job, prompts: list[list[int]], num_adapters: int, age_bound: int | None) -> list[Figure]:
    told: dict[str, Any] = peer.call(
        MIX, prompts=prompts, new_tokens=job.new_tokens, num_adapters=num_adapters, age_bound=age_bound
    )
    times = checked_times(job, told)
    figures = [
        Figure(THROUGHPUT, "tok/s", sum(map(len, times)) / max(mine[-1] for mine in times)),
        *spread("TTFT", [mine[0] for mine in times]),
        *spread("ITL", [b - a for mine in times for a, b in pairwise(mine)]),
    ]
    if "turns" in told:  # a peer has none: all adapters share its steps
        figures.append(Figure("longest wait of an adapter", "steps", float(told["longest"])))
        figures.append(Figure("steps a turn", "steps", told["steps"] / told["turns"]))
    return figures
