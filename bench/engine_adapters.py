"""Many adapters at once: turns that last against a turn after every step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from bench.engine_board import Board, Key
from bench.engine_jobs import Figure, Job, checked_times, spread
from bench.engine_rounds import OCTET, Failures, rotated
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


def measure_mixes(
    peers: dict[str, Peer], sizes: MixSizes, runs: int, vocab_size: int, failures: Failures
) -> Iterator[Record]:
    board = Board(list(RULES))
    for number in range(runs + 1):
        failures.say(f"adapters: round {number} of {runs}" if number else "adapters: a round that does not count")
        for num_adapters in NUMS:
            case = mix_case(num_adapters, sizes)
            job = Job(case, sizes.sequences, sizes.prompt_tokens, sizes.new_tokens)
            prompts = job.prompts(str(number), vocab_size)
            for system in rotated(list(RULES), number):
                asked = partial(_mix, job=job, prompts=prompts, num_adapters=num_adapters, age_bound=RULES[system])
                figures = failures.attempt(peers, OCTET, asked)
                if figures and number:
                    board.add(number, case, system, figures)
    yield from board.records()
    for num_adapters in NUMS:
        case = mix_case(num_adapters, sizes)
        mine, base = Key(case, GROUPED, THROUGHPUT), Key(case, INTERLEAVED, THROUGHPUT)
        yield from board.ratio(mine, base, f"{case} vs interleaved")


def _mix(peer: Peer, job: Job, prompts: list[list[int]], num_adapters: int, age_bound: int | None) -> list[Figure]:
    told: dict[str, Any] = peer.call(
        MIX, prompts=prompts, new_tokens=job.new_tokens, num_adapters=num_adapters, age_bound=age_bound
    )
    times = checked_times(job, told)
    return [
        Figure(THROUGHPUT, "tok/s", sum(map(len, times)) / max(mine[-1] for mine in times)),
        *spread("TTFT", [mine[0] for mine in times]),
        *spread("ITL", [b - a for mine in times for a, b in pairwise(mine)]),
        Figure("longest wait of an adapter", "steps", float(told["longest"])),
        Figure("steps a turn", "steps", told["steps"] / told["turns"]),
    ]
