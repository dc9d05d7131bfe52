"""The same policy as the scheduler, but with plain lists that are sorted and searched each time: short enough to
trust."""

from collections.abc import Collection, Iterable
from math import ceil
from typing import Literal, NamedTuple

from kvpool import Block, BlockPool, BlockTable, TokenChain, chain_root
from specialist.scheduling.scheduler import SchedulerConfig
from specialist.scheduling.sequence import FinishReason, Request
from specialist.scheduling.step import (
    Admitted,
    Emitted,
    Event,
    Finished,
    Outcome,
    Preempted,
    RowFault,
    StepFailure,
    Submitted,
)
from tests.specialist.naive_conversations import NaiveConversations
from tests.specialist.naive_sequence import NaiveSequence, deadline, rank, victim_order
from tests.specialist.naive_turns import NaiveTurns


class NaiveRow(NamedTuple):
    request_id: str
    start: int
    num_tokens: int
    num_drafts: int
    num_samples: int


class NaiveScheduler:
    """A simple model of the scheduler, without recurrent state and speculation, and with a fixed token budget for
    prompt chunks."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig, budget: int) -> None:
        self.pool, self.config, self.budget = pool, config, budget
        self.num_submitted = 0
        self.talks = NaiveConversations()
        self.live: list[NaiveSequence] = []
        self.turns = NaiveTurns(config.age_bound)
        self.tables: dict[NaiveSequence, BlockTable] = {}
        self.in_flight: list[tuple[NaiveSequence, int]] = []
        self.num_chunked = 0
        self.events: list[Event] = []

    @property
    def running(self) -> list[NaiveSequence]:
        return self.turns.running

    @property
    def waiting(self) -> list[NaiveSequence]:
        return sorted((seq for seq in self.live if seq not in self.running), key=rank)

    def submit(self, request: Request) -> None:
        self.num_submitted += 1
        size = self.pool.block_size
        root = chain_root(request.lane, request.tenant_salt, self.config.kv_dtype, size)
        longest = min(len(request.prompt) + request.max_tokens, self.pool.capacity * size)
        self.live.append(NaiveSequence(request, self.num_submitted, TokenChain(root, size, request.prompt), longest))
        self.events.append(Submitted(request.request_id, request.priority))

    def end(self, request_id: str, reason: FinishReason) -> bool:
        ending = [seq for seq in self.live if seq.name == request_id]
        for seq in ending:
            self._end(seq, reason)
        return bool(ending)

    def expire(self, now: float) -> None:
        for seq in sorted(self.live, key=deadline):
            if deadline(seq)[0] <= now:
                self._end(seq, "deadline")

    def assemble(self, now: float) -> list[NaiveRow]:
        self.expire(now)
        while self.waiting and self._admit(self.waiting[0]):
            pass
        self.in_flight = self._shares() if self.running else []
        if self.in_flight:
            self.turns.count([seq for seq, _ in self.in_flight])
        return [NaiveRow(seq.name, seq.num_computed, n, 0, int(n == seq.remaining)) for seq, n in self.in_flight]

    def commit(self, outcome: Outcome) -> None:
        shares, self.in_flight = self.in_flight, []
        was_chunk = bool(shares) and shares[0][0].remaining > 1
        num_tokens = sum(n for _, n in shares)
        culprit = outcome.culprit if isinstance(outcome, StepFailure) else None
        guilty = [seq for seq, _ in shares if seq.name == culprit or len(shares) == 1]
        for i, (seq, num_mine) in enumerate(shares):
            if seq not in self.live:
                self._release_ended(seq, num_mine, outcome if isinstance(outcome, StepFailure) else outcome.sampled[i])
            elif isinstance(outcome, StepFailure):
                self._blame(seq, guilty)
            else:
                self._advance(seq, num_mine, outcome.sampled[i])
        if was_chunk:
            self.num_chunked += num_tokens
            self._end_chunk()

    def _admit(self, head: NaiveSequence) -> bool:
        leaving = self._victims_for(head)
        if leaving is None:
            return False
        for victim in leaving:
            self._preempt(victim, "admission", head)
        plan = self.pool.admit(head.chain, len(head.chain) + 1)
        self.tables[head] = self.pool.apply(plan)
        head.num_computed = plan.num_hit_tokens
        self.turns.file(head)
        why = self.talks.why(head, head.num_computed, self.pool.block_size)
        self.events.append(Admitted(head.name, len(head.chain), head.num_computed, head.times_preempted, why))
        return True

    def _victims_for(self, head: NaiveSequence) -> list[NaiveSequence] | None:
        """Return the sequences to preempt: an empty list if the request fits, None if it has to wait."""
        hit = self.pool.admit(head.chain, 0).hit
        watermark = ceil(self.config.watermark * self.pool.capacity) if self.running else 0
        needed = self.pool.blocks_for(len(head.chain) + 1) - len(hit) + watermark
        leaving: list[NaiveSequence] = []

        def fits() -> bool:
            has_slot = len(self.running) - len(leaving) < self.config.max_running
            return has_slot and self._room(leaving, hit) >= needed

        lower = [seq for seq in self.running if seq.request.priority < head.request.priority]
        for seq in sorted(lower, key=victim_order):
            frees_more = self._room([*leaving, seq], hit) > self._room(leaving, hit)
            if frees_more and not fits() and len(leaving) + 1 < len(self.running):
                leaving.append(seq)
        return leaving if fits() else None

    def _room(self, leaving: Collection[NaiveSequence], hit: Iterable[Block] = ()) -> int:
        """Return how many blocks are free if the sequences in `leaving` leave and the blocks in `hit` are in use."""
        held: set[int] = {block.block_id for block in hit}
        held.update(*(table.block_ids for seq, table in self.tables.items() if seq not in leaving))
        return self.pool.capacity - len(held)

    def _shares(self) -> list[tuple[NaiveSequence, int]]:
        """Return the sequences of the next step and the number of tokens of each."""
        self._end_chunk()
        seqs = self.turns.pick()
        return self._prefill(seqs) if seqs[0].remaining > 1 else self._decode(seqs)

    def _prefill(self, seqs: list[NaiveSequence]) -> list[tuple[NaiveSequence, int]]:
        budget = self.budget - self.num_chunked if self.turns.last_decode else self.config.max_step_tokens
        before = [sum(other.remaining for other in seqs[:i]) for i in range(len(seqs))]
        return [
            (seq, min(budget - used, seq.remaining)) for seq, used in zip(seqs, before, strict=True) if used < budget
        ]

    def _end_chunk(self) -> None:
        """End the prompt chunk once its budget is used up or no prompt is left. Until then, prompts of several adapter
        stacks share the budget, one stack after another."""
        prompts = [seq for seq in self.running if seq.remaining > 1 and not seq.suspect]
        goes_on = prompts and all(not seq.suspect for seq in self.running) and self.num_chunked < self.budget
        if self.num_chunked and not goes_on:
            self.num_chunked = 0
            self.turns.owe()

    def _decode(self, seqs: list[NaiveSequence]) -> list[tuple[NaiveSequence, int]]:
        while growing := [seq for seq in seqs if self._growth(seq)]:
            if sum(self._growth(seq) for seq in growing) <= self.pool.num_free:
                break
            weakest = min(growing, key=victim_order)
            freeing = [seq for seq in self.running if self._room([seq]) > self._room([]) or seq is weakest]
            worst = min(freeing, key=victim_order)
            winners = [seq for seq in growing if seq is not worst] or [seq for seq in self.running if seq is not worst]
            self._preempt(worst, "growth", min(winners, key=rank))
            seqs = [seq for seq in seqs if seq is not worst]
        if not seqs:
            return self._shares()
        for seq in seqs:
            self.pool.grow(self.tables[seq], len(seq.chain))
        return [(seq, 1) for seq in seqs]

    def _growth(self, seq: NaiveSequence) -> int:
        return self.pool.blocks_short(self.tables[seq], len(seq.chain))

    def _advance(self, seq: NaiveSequence, num_tokens: int, sampled: tuple[int, ...] | RowFault) -> None:
        if isinstance(sampled, RowFault):
            return self._end(seq, "error")
        was_decoding = seq.remaining == 1
        emitted = tuple(token for token in sampled if token not in seq.request.stop_ids)
        for token in emitted:
            seq.chain.extend([token])
            self.events.append(Emitted(seq.name, emitted))
        seq.num_computed += num_tokens
        self.pool.register(self.tables[seq], seq.chain, seq.num_computed)
        if emitted != sampled or len(seq.chain) == seq.longest:
            return self._end(seq, "length" if emitted == sampled else "stop")
        if seq.suspect or (seq.remaining == 1 and not was_decoding):
            seq.suspect = False
            self.turns.file(seq)
        return None

    def _blame(self, seq: NaiveSequence, guilty: list[NaiveSequence]) -> None:
        if seq in guilty:
            self._end(seq, "error")
        elif not guilty:
            seq.suspect = True
            self.turns.file(seq)

    def _preempt(self, seq: NaiveSequence, cause: Literal["admission", "growth"], winner: NaiveSequence) -> None:
        self.turns.leave(seq)
        self._release(seq)
        seq.times_preempted += 1
        self.events.append(Preempted(seq.name, cause, winner.name))

    def _end(self, seq: NaiveSequence, reason: FinishReason) -> None:
        self.live.remove(seq)
        self.turns.leave(seq)
        if all(seq is not flying for flying, _ in self.in_flight):
            self._release_for_good(seq)
        self.events.append(Finished(seq.name, reason, ""))

    def _release_ended(
        self, seq: NaiveSequence, num_tokens: int, came: StepFailure | RowFault | tuple[int, ...]
    ) -> None:
        """Release a request that ended during the step. Its computed blocks may still be reused."""
        if isinstance(came, tuple):
            self.pool.register(self.tables[seq], seq.chain, seq.num_computed + num_tokens)
        self._release_for_good(seq)

    def _release_for_good(self, seq: NaiveSequence) -> None:
        if seq in self.tables:
            self.talks.ended(seq, self.tables[seq])
        self._release(seq)

    def _release(self, seq: NaiveSequence) -> None:
        if seq in self.tables:
            self.pool.release(self.tables.pop(seq))
        seq.num_computed = 0
