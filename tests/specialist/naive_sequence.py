"""A request in the naive scheduler."""

from dataclasses import dataclass
from math import inf

from kvpool import TokenChain
from specialist.scheduling.sequence import Request
from tests.simulation.laws.scheduler import place_of


@dataclass(eq=False)
class NaiveSequence:
    request: Request
    index: int
    chain: TokenChain
    longest: int
    """Number of tokens, including the prompt, at which the sequence ends."""
    num_computed: int = 0
    times_preempted: int = 0
    suspect: bool = False
    last_prefill: int = 0
    """Number of the last prefill step that served the sequence. Until one has, the number of the last prefill step
    before the sequence needed one."""

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def adapters(self) -> tuple[str, ...]:
        return self.request.lane.adapters

    @property
    def remaining(self) -> int:
        return len(self.chain) - self.num_computed


def rank(seq: NaiveSequence) -> tuple[float, ...]:
    return place_of(seq.request, seq.index)


def victim_order(seq: NaiveSequence) -> tuple[float, ...]:
    return (seq.request.priority, -seq.request.arrival, seq.num_computed, -seq.index)


def deadline(seq: NaiveSequence) -> tuple[float, ...]:
    request = seq.request
    first = request.first_deadline if len(seq.chain) == len(request.prompt) else None
    return (min(inf if each is None else each for each in (request.deadline, first)), seq.index)
