"""The scheduling policy, in the order in which a step is decided.

The scheduler decides real steps with these deterministic rules, and the admission forecast simulates steps with them.

1. Rank: the order in which requests wait, enter and are served.
2. Victims: which running request is preempted, and which booked request is shed for a more important one.
3. Chunks: how many prompt tokens a step takes, and when every decoding request must take a step.
4. Holding: when a chunk waits because a decoding request would otherwise miss its deadline.
5. Turns: which prompts share the next chunk, and which adapter stack decodes next.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

# 1. Rank

Rank = tuple[int, float, float, int]
"""(-priority, due time, arrival, order of submission). Smaller is served first. A rank never changes, so a preempted
request keeps its place."""
get_rank = attrgetter("rank")
AdapterStack = tuple[str, ...]


class Ranked(Protocol):
    rank: Rank
    stack: AdapterStack
    is_urgent: bool


ItemT = TypeVar("ItemT", bound=Ranked)

MAX_OVERTAKE_SECONDS = 30.0
"""A request is never overtaken by one of equal priority that arrives this much later, regardless of their deadlines."""


def rank_request(priority: int, arrival: float, deadline: float | None, index: int) -> Rank:
    """Return the rank. `deadline` is the request's nearest deadline; `index` is the order of submission. A request is
    due at its deadline, or `MAX_OVERTAKE_SECONDS` after its arrival if that comes first."""
    latest = arrival + MAX_OVERTAKE_SECONDS
    return -priority, latest if deadline is None else min(deadline, latest), arrival, index


def is_urgent(arrival: float, deadline: float | None) -> bool:
    """Whether the deadline is so near that prompts are computed by rank alone: taking turns would make all late."""
    return deadline is not None and deadline < arrival + MAX_OVERTAKE_SECONDS


# 2. Victims


def preemption_order(rank: Rank, *, has_state: bool = False, num_computed: float = 0) -> tuple[float, ...]:
    """Return the sort key of a victim. The lowest priority is preempted first. Within a priority, requests without
    recurrent state go first, then the newest, then the cheapest to restore."""
    negative_priority, _, arrival, index = rank
    return -negative_priority, has_state, -arrival, num_computed, -index


def may_preempt(rank: Rank, victim: Rank) -> bool:
    return rank[0] < victim[0]


def choose_victims(ordered: Iterable[ItemT], freed: Callable[[ItemT], int], shortage: int, most: int) -> list[ItemT]:
    """Choose running requests to preempt until they free `shortage` blocks; none if `most` of them free too few. A
    request that frees no block is skipped. `freed` counts the blocks that a request frees besides earlier victims."""
    victims: list[ItemT] = []
    for each in ordered:
        if len(victims) < most and (num_blocks := freed(each)) > 0:
            victims.append(each)
            shortage -= num_blocks
            if shortage <= 0:
                return victims
    return []


def shed_order(rank: Rank, *, is_shadow: bool, has_deadline: bool, has_output: bool) -> tuple[float, ...]:
    """Return the sort key for shedding or suspending. Shadows go first, then the lowest priority. Within a priority,
    requests without a deadline go first, then those without output, then the newest."""
    negative_priority, _, arrival, index = rank
    return not is_shadow, -negative_priority, has_deadline, has_output, -arrival, -index


# 3. Chunks

MAX_IDLE_CHUNKS = 2
"""The most chunks in a step while no request decodes: a request that arrives meanwhile waits until the step ends."""


def prefill_tokens(chunk: int, num_chunked: int, max_step_tokens: int, *, decodes: bool, holds: bool) -> int:
    """Return the maximum number of prompt tokens in the next step. While requests decode (`decodes`), this is the rest
    of the current chunk, of which `num_chunked` tokens have been computed. Otherwise a step may be longer, but only up
    to `MAX_IDLE_CHUNKS` chunks if the scheduler holds prompts back for deadlines (`holds`)."""
    if decodes:
        return chunk - num_chunked
    return min(max_step_tokens, MAX_IDLE_CHUNKS * chunk) if holds else max_step_tokens


def owes_decode(chunk: int, num_chunked: float, *, more_prompts: bool) -> bool:
    """Whether every decoding request must take a step: after a chunk, or after part of it if no prompts are left."""
    return num_chunked > 0 and (num_chunked >= chunk or not more_prompts)


# 4. Holding

_STALLED_CHUNKS = 3.0  # a chunk may take this many times its expected time
_NEW_ROUND_WEIGHT = 0.2
# Rank, deadline of the whole answer, and the number of the decode step that ends the longest answer allowed.
DecodingRequest = tuple[Rank, float | None, float]


@dataclass(slots=True)
class PrefillHold:
    """Holds a prompt's chunks back while a decoding request of better rank would otherwise miss its deadline."""

    chunk_seconds: float  # the expected time of a chunk
    round_seconds: float = 0.0  # the time of a decode step, as a moving average; 0 until measured

    def observe(self, seconds: float, count: float = 1.0) -> None:
        """Update the average with `count` decode steps of `seconds` each."""
        average = self.round_seconds
        weight = _NEW_ROUND_WEIGHT if count == 1.0 else 1 - (1 - _NEW_ROUND_WEIGHT) ** count
        self.round_seconds = average + weight * (seconds - average) if average else seconds

    def margin(
        self, prompt: Rank, decoding: Iterable[DecodingRequest], now: float, num_chunks: int, num_rounds: float = 0.0
    ) -> float:
        """Return how many seconds chunks may take until the prompt must be held back for a decoding request; negative
        if it must be now, infinite if it never must. A request that is late even without chunks is ignored.
        `num_chunks` chunks of the prompt are left, and `num_rounds` decode steps are done."""
        chunk_seconds, round_seconds = self.chunk_seconds, self.round_seconds
        if not round_seconds:
            return inf
        margin = enough = inf
        for rank, deadline, last_round in decoding:
            if deadline is None:
                continue
            rounds = last_round - num_rounds
            slack = deadline - now - rounds * round_seconds
            if 0 <= slack < enough and rank < prompt:
                num_between = rounds if rounds < num_chunks else num_chunks
                left = slack - (num_between + _STALLED_CHUNKS) * chunk_seconds
                if left < 0:
                    return left
                if left < margin:
                    margin, enough = left, left + (num_chunks + _STALLED_CHUNKS) * chunk_seconds
        return margin


# 5. Turns


class PrefillTurns(Generic[ItemT]):
    """Chooses the prompts of the next chunk, of one adapter stack: usually that of the best-ranked request, by rank. A
    request that was passed over `age_bound` times goes first, then the rest of its stack. A stack whose best-ranked
    request is urgent is always computed by rank, and a turn of one of its requests counts for all of them."""

    def __init__(self, age_bound: int) -> None:
        self._age_bound = age_bound
        self._ticks = 0
        self.by_rank: list[ItemT] = []
        self._last_served: dict[ItemT, int] = {}
        self._stack_sizes: dict[AdapterStack, int] = {}
        self._none_overdue_before = 0  # no prompt is overdue before this tick
        self._picked: Sequence[ItemT] | None = None  # the result of `pick`, until it changes

    def __len__(self) -> int:
        return len(self.by_rank)

    def __contains__(self, item: ItemT) -> bool:
        return item in self._last_served

    def add(self, item: ItemT, passed_over: int = 0) -> None:
        """`passed_over` is the number of turns that the request has already missed."""
        insort(self.by_rank, item, key=get_rank)
        self._picked = None
        self._last_served[item] = self._ticks - passed_over
        self._stack_sizes[item.stack] = self._stack_sizes.get(item.stack, 0) + 1
        self._none_overdue_before = min(self._none_overdue_before, self._ticks - passed_over + self._age_bound)

    def discard(self, item: ItemT) -> None:
        if self._last_served.pop(item, None) is None:
            return
        del self.by_rank[bisect_left(self.by_rank, item.rank, key=get_rank)]
        self._picked = None
        self._stack_sizes[item.stack] -= 1
        if not self._stack_sizes[item.stack]:
            del self._stack_sizes[item.stack]

    def passed_over(self, item: ItemT) -> int:
        """Turns of other requests since the last turn of this one; 0 if it has no prompt to compute."""
        return self._ticks - self._last_served.get(item, self._ticks)

    def pick(self) -> Sequence[ItemT]:
        """Return the prompts to compute next, in order, all with the same adapter stack. Empty if there are none. The
        result is valid until the prompts change."""
        if self._picked is None:
            self._picked = self._pick() if self.by_rank else []
        return self._picked

    def _pick(self) -> Sequence[ItemT]:
        bound = self._ticks - self._age_bound
        overdue = self._overdue(bound)
        if not overdue:
            return self._of_stack(self.by_rank[0].stack)
        stack = self._of_stack(overdue[0].stack)
        if stack[0].is_urgent:
            return stack
        first = [item for item in overdue if item.stack == overdue[0].stack]
        return first + [item for item in stack if self._last_served[item] > bound]

    def served(self, items: Sequence[ItemT]) -> None:
        """Record that these prompts, all with the same stack, had a turn."""
        self._ticks += 1
        self._picked = None
        same_stack = self._of_stack(items[0].stack)
        for item in same_stack if same_stack[0].is_urgent else items:
            self._last_served[item] = self._ticks

    def sharing(self) -> list[ItemT]:
        """The prompts that share chunks, by rank. If a stack's first prompt is urgent, its other prompts wait."""
        if len(self._stack_sizes) == 1:
            return self.by_rank[:1] if self.by_rank[0].is_urgent else self.by_rank
        heads = {item.stack: item for item in reversed(self.by_rank)}
        return [item for item in self.by_rank if not heads[item.stack].is_urgent or heads[item.stack] is item]

    def _of_stack(self, stack: AdapterStack) -> list[ItemT]:
        if len(self._stack_sizes) == 1:
            return self.by_rank
        return [item for item in self.by_rank if item.stack == stack]

    def _overdue(self, bound: int) -> list[ItemT]:
        """The prompts last served at tick `bound` or before, the longest waiting first, then by rank."""
        if self._ticks < self._none_overdue_before:
            return []
        last_served = self._last_served
        overdue = [item for item in self.by_rank if last_served[item] <= bound]
        if not overdue:
            self._none_overdue_before = self._age_bound + min(last_served.values())
        return sorted(overdue, key=last_served.__getitem__) if len(overdue) > 1 else overdue


class DecodeTurns(Generic[ItemT]):
    """Adapter stacks with requests to decode. The current stack continues until another has waited `age_bound` steps.
    After a chunk of prompt tokens, every stack takes a step before the next chunk."""

    def __init__(self, age_bound: int) -> None:
        self._age_bound = age_bound
        self._ticks = 0
        self._stacks: dict[AdapterStack, dict[ItemT, None]] = {}
        self._last_served: dict[AdapterStack, int] = {}
        self._current: AdapterStack | None = None
        self.owed: dict[AdapterStack, None] = {}

    def __len__(self) -> int:
        return len(self._stacks)

    def __iter__(self) -> Iterator[ItemT]:
        return (item for items in self._stacks.values() for item in items)

    def add(self, item: ItemT) -> None:
        if item.stack not in self._stacks:
            self._stacks[item.stack] = {}
            self._last_served[item.stack] = self._ticks
        self._stacks[item.stack][item] = None

    def discard(self, item: ItemT) -> None:
        items = self._stacks.get(item.stack, {})
        items.pop(item, None)
        if not items:
            self._stacks.pop(item.stack, None)
            self._last_served.pop(item.stack, None)
            self.owed.pop(item.stack, None)

    def pick(self) -> list[ItemT]:
        """Return every request of the stack whose turn it is. Empty if there are none."""
        if not self._stacks:
            return []
        eligible = self.owed or self._last_served
        longest = min(eligible, key=self._last_served.__getitem__)
        overdue = self._ticks - self._last_served[longest] >= self._age_bound
        if self._current is not None and self._current in eligible and not overdue:
            return list(self._stacks[self._current])
        return list(self._stacks[longest])

    def served(self, stack: AdapterStack) -> None:
        self._ticks += 1
        self._current = stack
        self._last_served[stack] = self._ticks
        self.owed.pop(stack, None)

    def owe_all(self) -> None:
        self.owed = dict.fromkeys(self._stacks)


def steps_between_switches(age_bound: int, *, after_chunk: bool) -> int:
    """The number of consecutive decode steps of one stack while several stacks decode."""
    return 1 if after_chunk else age_bound
