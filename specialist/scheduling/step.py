"""A step: its rows, drafts, outcome and events. Also cached conversations and prefill budgets."""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import inf
from typing import Literal, NamedTuple, Protocol, overload

from kvpool import AdmissionPlan, BlockKey, BlockPool, BlockTable, TokenChain, as_tokens
from specialist.scheduling.sequence import DraftSource, FinishReason, SampledLogprobs, Sequence

ConversationMissReason = Literal[
    "", "first_time", "evicted", "other_adapter", "diverged", "cache_off", "no_session", "no_boundary"
]
"""Why cacheable blocks must be computed; empty if all were reused, or if the rest is new in the conversation."""
MAX_CONVERSATIONS = 4096
ConversationKey = tuple[bytes, bytes]


class CachedConversation(NamedTuple):
    root: bytes  # root of the chain: it identifies the lane and the tenant salt
    keys: tuple[BlockKey, ...]  # keys of the blocks that its last request left in the cache


class Conversations:
    """Remembers the cached block keys of recent conversations, by tenant salt and session key: at most `most`
    conversations with `most_blocks` keys in all. The least recently updated conversation is dropped first."""

    def __init__(self, most_blocks: int, most: int = MAX_CONVERSATIONS) -> None:
        self._most = most
        self._most_blocks = most_blocks
        self.num_blocks = 0
        self._seen: OrderedDict[ConversationKey, CachedConversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def learn(self, salt: bytes, session_key: bytes, chain: TokenChain, num_blocks: int) -> None:
        """Record that a request of the conversation ended and left its first `num_blocks` blocks in the cache."""
        if not session_key or not num_blocks:
            return
        name = (salt, session_key)
        seen = CachedConversation(chain.root, tuple(chain.keys(num_blocks)[:num_blocks]))
        old = self._seen.get(name)
        if old is not None and old.root == seen.root and old.keys[:num_blocks] == seen.keys:
            seen = old  # this request has only the beginning of the previous one: keep the longer record
        self.num_blocks += len(seen.keys) - (len(old.keys) if old is not None else 0)
        self._seen[name] = seen
        self._seen.move_to_end(name)
        while len(self._seen) > self._most or self.num_blocks > self._most_blocks:
            self.num_blocks -= len(self._seen.popitem(last=False)[1].keys)

    def why_missed(
        self, salt: bytes, session_key: bytes, chain: TokenChain, plan: AdmissionPlan
    ) -> ConversationMissReason:
        """Return why a request with this plan must compute blocks that could have been cached."""
        num_hit, num_possible = plan.num_hit, plan.num_cached + plan.num_uncached
        if num_hit == num_possible:
            return ""
        if plan.uncached_reason == "disabled":
            return "cache_off"
        if not session_key:
            return "no_session"
        seen = self._seen.get((salt, session_key))
        if seen is None:
            return "first_time"
        if seen.root != chain.root:
            return "other_adapter"
        num_same = _common_prefix(seen.keys, chain.keys(num_possible)[:num_possible])
        if num_hit < num_same:
            return "no_boundary" if plan.num_cached >= num_same else "evicted"
        return "diverged" if num_same < min(len(seen.keys), num_possible) else ""


def _common_prefix(one: Tokens[BlockKey], other: Tokens[BlockKey]) -> int:
    """Return the number of equal leading keys. Bisection works because a key identifies everything before it."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda index: one[index] != other[index])


PreemptionCause = Literal["admission", "growth", "deadline"]


class Submitted(NamedTuple):
    request_id: str
    priority: int


class Admitted(NamedTuple):
    request_id: str
    num_tokens: int
    num_hit_tokens: int
    times_preempted: int
    miss_reason: ConversationMissReason = ""  # of the first admission; empty after a preemption


class Preempted(NamedTuple):
    request_id: str
    cause: PreemptionCause
    beneficiary: str
    """The request that gets the blocks or, with cause "deadline", the time. With "growth" it may have the same priority
    as the preempted request."""


class Emitted(NamedTuple):
    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[SampledLogprobs, ...] = ()  # one for each token, if the request asked for them


class DraftCount(NamedTuple):
    source: DraftSource
    num_drafted: int  # tokens that were guessed
    num_accepted: int  # those that were right, so that they took no step of their own


class Finished(NamedTuple):
    request_id: str
    reason: FinishReason
    detail: str
    drafts: tuple[DraftCount, ...] = ()  # by their source

    @property
    def num_drafted(self) -> int:
        return sum(count.num_drafted for count in self.drafts)

    @property
    def num_accepted(self) -> int:
        return sum(count.num_accepted for count in self.drafts)


Event = Submitted | Admitted | Preempted | Emitted | Finished


Mode = Literal["prefill", "decode", "spec_verify"]


class Row(NamedTuple):
    """One sequence's part of a step: compute `tokens` at positions [start, start + len(tokens))."""

    sequence: Sequence
    table: BlockTable
    start: int
    tokens: "tuple[int, ...] | array[int]"  # an array if it is a chunk of a prompt
    num_drafts: int  # trailing tokens that are guesses, to be compared with the tokens sampled at their positions
    num_samples: int
    """The number of tokens to sample, one after each of the last positions: 0 for a chunk that ends inside the prompt,
    otherwise one more than there are drafts."""

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


class PlainRows(Tokens[Row]):
    """Rows without drafts in columns: each has the newest token of its sequence, and draws the next one. A Row is built
    only where one is asked for."""

    __slots__ = ("sequences", "starts", "tables", "tokens")

    def __init__(
        self,
        sequences: tuple[Sequence, ...],
        tables: tuple[BlockTable, ...],
        starts: tuple[int, ...],
        tokens: tuple[tuple[int, ...], ...],
    ) -> None:
        self.sequences = sequences
        self.tables = tables
        self.starts = starts
        self.tokens = tokens  # one of each

    @classmethod
    def of(cls, rows: Tokens[Row]) -> "PlainRows":
        return rows if isinstance(rows, cls) else cls(*tuple(zip(*rows, strict=True))[:4])

    def __len__(self) -> int:
        return len(self.sequences)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        return Row(self.sequences[place], self.tables[place], self.starts[place], self.tokens[place], 0, 1)

    def __iter__(self) -> Iterator[Row]:
        return map(Row, self.sequences, self.tables, self.starts, self.tokens, repeat(0), repeat(1))

    def at(self, places: list[int]) -> "PlainRows":
        """Return the rows at these places."""
        return PlainRows(
            tuple([self.sequences[place] for place in places]),
            tuple([self.tables[place] for place in places]),
            tuple([self.starts[place] for place in places]),
            tuple([self.tokens[place] for place in places]),
        )


@dataclass(frozen=True, eq=False)
class Step:
    number: int
    adapters: tuple[str, ...]  # the adapter stack that all rows share; empty if the engine mixes stacks
    rows: tuple[Row, ...] | PlainRows
    num_preempted: int  # sequences preempted to make this step possible
    started_at: float  # before its drafts were guessed
    may_repeat: bool = True  # whether a decode step of the same rows probably follows, so that it may be begun

    @cached_property
    def mode(self) -> Mode:
        if isinstance(self.rows, PlainRows) or all(len(row.tokens) == 1 for row in self.rows):
            return "decode"
        if all(len(row.tokens) == 1 + row.num_drafts for row in self.rows):
            return "spec_verify"
        return "prefill"

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return self.rows.sequences if isinstance(self.rows, PlainRows) else tuple([row.sequence for row in self.rows])

    @cached_property
    def num_tokens(self) -> int:
        return len(self.rows) if self.mode == "decode" else sum(len(row.tokens) for row in self.rows)

    @cached_property
    def num_pairs(self) -> int:
        """Pairs of a token and one that it attends to, if every token counts as the last of its row."""
        if isinstance(self.rows, PlainRows):
            return sum(self.rows.starts) + len(self.rows)
        return sum(len(tokens) * (start + len(tokens)) for _, _, start, tokens, _, _ in self.rows)


@dataclass(frozen=True, slots=True)
class RowFault:
    """The engine could not compute this row; other rows are unaffected."""

    error: str


@dataclass(frozen=True, slots=True)
class StepOutcome:
    sampled: tuple[tuple[int, ...] | RowFault, ...]  # for each row, `num_samples` tokens
    logprobs: tuple[tuple[SampledLogprobs, ...], ...] = ()
    """For each row, one entry for each token or an empty tuple; empty if no row asked for log probabilities."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The whole step failed. If the culprit is unknown, the sequences of the step then run alone, one by one."""

    error: str
    culprit: str | None = None  # the request that caused the failure, if the engine knows it


Outcome = StepOutcome | StepFailure


class Rollback(NamedTuple):
    """Positions that a step wrote and that were rolled back; the engine zeroes their slots."""

    table: BlockTable
    start: int
    stop: int


class Proposer(Protocol):
    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> Mapping[Sequence, Tokens[int]]:
        """Guess which tokens may follow those of each sequence: at most its limit, and at most `most` in all. The step
        has `num_rows` rows. The sequences must not be changed, except for their `own_text` and `draft_source`."""

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        """Return whether `propose` would now guess, or do anything that a step which has begun would delay."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn how long a step of decode rows took, of `num_tokens` with their drafts. `seconds` include `propose`."""

    def ended(self, seq: Sequence) -> None:
        """Learn that the sequence has ended, and forget it."""


def accept(row: Row, sampled: tuple[int, ...]) -> tuple[int, ...]:
    """Return the accepted tokens: the leading drafts that equal the tokens sampled at their positions, and the sample
    after them. The same seed and tokens always give the same next sample, so drafts never change an answer."""
    drafts = row.tokens[len(row.tokens) - row.num_drafts :]
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == sampled[accepted]:
        accepted += 1
    return sampled[: accepted + 1]


Drafts = dict[Sequence, tuple[int, ...]]


class RowBuilder:
    def __init__(
        self, pool: BlockPool, proposer: Proposer | None, max_step_tokens: int, *, runs_ahead: bool = False
    ) -> None:
        """`runs_ahead`: whether the engine begins the next decode step before this one is committed. Drafts then wait
        until the step that was begun is complete: it would be computed in vain."""
        self._pool = pool
        self._proposer = proposer
        self._max_step_tokens = max_step_tokens
        self._runs_ahead = runs_ahead
        self._is_begun = False  # whether the engine has probably begun the next decode step
        self.may_repeat = True  # whether that after the one whose rows were asked for last probably has no drafts
        self.num_failed_proposals = 0

    def launched(self, step: Step) -> None:
        self._is_begun = self._runs_ahead and step.mode == "decode" and step.may_repeat

    def drafts(self, seqs: list[Sequence]) -> Drafts:
        """Return drafts for the sequences that speculate, never beyond the maximum length of an answer, nor more than
        fit into a step."""
        self.may_repeat = True
        if self._proposer is None:
            return {}
        room = self._max_step_tokens - len(seqs)
        limits = {seq: limit for seq in seqs if (limit := self._most_drafts(seq, room)) > 0}
        if not limits:
            return {}
        try:
            drafts = {} if self._is_begun else self._proposed(self._proposer, limits, len(seqs), room)
            if self._runs_ahead and not drafts:
                self.may_repeat = not self._proposer.wants(limits, len(seqs), room)
            return drafts
        except Exception:  # a failed guess must not end a request
            self.num_failed_proposals += 1
            return {}

    @staticmethod
    def _proposed(proposer: Proposer, limits: dict[Sequence, int], num_rows: int, room: int) -> Drafts:
        drafts = {}
        for seq, tokens in proposer.propose(limits, num_rows, room).items():
            drafts[seq] = as_tokens(tokens[: min(limits[seq], room)])
            room -= len(drafts[seq])
        return drafts

    @staticmethod
    def _most_drafts(seq: Sequence, room: int) -> int:
        return 0 if seq.suspect else min(seq.draft_window, seq.max_total_tokens - seq.num_tokens - 1, room)

    def observe(self, step: Step, seconds: float) -> None:
        if self._proposer is None:
            return
        try:
            self._proposer.observe(step.num_tokens, seconds)
        except Exception:
            self.num_failed_proposals += 1

    def ended(self, seq: Sequence) -> None:
        if self._proposer is None:
            return
        try:
            self._proposer.ended(seq)
        except Exception:
            self.num_failed_proposals += 1

    def growing(self, seqs: list[Sequence], drafts: Drafts) -> dict[Sequence, int]:
        """Return how many new blocks each sequence needs for its next row; sequences that need none are left out."""
        size = self._pool.block_size
        growing = {}
        for seq in seqs:
            num_tokens = seq.num_tokens + len(drafts.get(seq, ())) if drafts else seq.num_tokens
            table = seq.running_table() if seq.table is None else seq.table
            missing = num_tokens - len(table.block_ids) * size
            if missing > 0:
                growing[seq] = -(-missing // size)
        return growing

    def row(self, seq: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> Row:
        """Build a row of the next `num_tokens` known tokens and the drafts after them. Grow the table if necessary."""
        table, start = seq.running_table(), seq.num_computed
        num_samples = 1 + len(drafts) if start + num_tokens == seq.num_tokens else 0
        known = start + num_tokens
        is_short = drafts or num_tokens == 1
        tokens = (*seq.chain.tokens(start, known), *drafts) if is_short else seq.chain.part(start, known)
        stop = start + len(tokens)
        if stop > len(table.block_ids) * table.block_size:
            self._pool.grow(table, stop)
        seq.num_scheduled = len(tokens)
        return Row(seq, table, start, tokens, len(drafts), num_samples)

    def plain_rows(self, seqs: list[Sequence], growing: Collection[Sequence]) -> PlainRows:
        """Build a row of the newest token of each sequence. `growing` are those that need a new block, in order."""
        for seq in growing:
            self._pool.grow(seq.running_table(), seq.num_tokens)
        for seq in seqs:
            seq.num_scheduled = 1
        return PlainRows(
            tuple(seqs),
            tuple([seq.running_table() if seq.table is None else seq.table for seq in seqs]),
            tuple([seq.num_computed for seq in seqs]),
            tuple([(seq.chain.last,) for seq in seqs]),
        )


class PrefillBudget(Protocol):
    def tokens(self) -> int:
        """Return the maximum number of prompt tokens in the next chunk, at least 1."""

    def observe(self, num_tokens: int, seconds: float) -> None: ...


class FixedBudget:
    def __init__(self, num_tokens: int) -> None:
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
        self._num_tokens = num_tokens

    def tokens(self) -> int:
        return self._num_tokens

    def observe(self, num_tokens: int, seconds: float) -> None:
        pass


class TimedBudget:
    """Finds by trial how many prompt tokens fit into `seconds`. Each measurement changes the number by at most a factor
    of 2, so that one stalled step changes little. No rate is learnt: because of a step's fixed cost, a rate measured on
    small steps would be too low and keep them small."""

    MAX_CHANGE = 2.0

    def __init__(self, seconds: float, first_guess: int, most: int) -> None:
        """`first_guess` is the number of tokens until a step has been measured; `most` is the highest number."""
        if not 0 < seconds < inf:
            raise ValueError(f"seconds must be positive and finite, got {seconds}")
        if not 1 <= first_guess <= most:
            raise ValueError(f"first_guess must be in [1, {most}], got {first_guess}")
        self._seconds = seconds
        self._most = most
        self._tokens = float(first_guess)

    def tokens(self) -> int:
        return int(self._tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        if num_tokens < self.tokens() and seconds <= self._seconds:
            return  # a small step that was on time shows nothing about larger ones
        expected = seconds * min(1.0, self._tokens / num_tokens)
        ratio = self._seconds / expected if expected > 0 else inf
        most = self.MAX_CHANGE
        if num_tokens > self._tokens:
            # A larger step spreads its fixed cost over more tokens: that more fit, it shows only if it was on time.
            most = min(most, num_tokens / self._tokens) if seconds <= self._seconds else 1.0
        change = min(max(ratio, 1 / self.MAX_CHANGE), most)
        self._tokens = min(max(self._tokens * change, 1.0), self._most)
