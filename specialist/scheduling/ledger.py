"""The ledger makes every state change of a sequence, and each change leaves the pool consistent."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from kvpool import AdmissionPlan, BlockKey, BlockPool, InvariantViolation
from specialist.scheduling.sequence import (
    FinishReason,
    Request,
    RunningSet,
    SampledLogprobs,
    Sequence,
    SequenceState,
    Snapshot,
    SnapshotUnusable,
    WaitingQueue,
)
from specialist.scheduling.step import (
    Admitted,
    ConversationMissReason,
    Conversations,
    DraftCount,
    Emitted,
    Event,
    Finished,
    Outcome,
    PlainRows,
    Preempted,
    Rollback,
    Row,
    RowFault,
    Step,
    StepFailure,
    StepOutcome,
    Submitted,
    accept,
)


def _never(_: BlockKey) -> bool:
    return False


class PureAttention:
    """Manages the states of sequences whose model has no recurrent layers: all that was computed is in the blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def plan(self, seq: Sequence, headroom: int) -> AdmissionPlan:
        resumable = self.resumable(seq.request)
        return self.pool.admit(seq.chain, self._slots(seq), headroom=headroom, resumable=resumable)

    def resumable(self, request: Request) -> Callable[[BlockKey], bool] | None:
        """Return what says whether the request may resume after a cached block; None if after any."""
        return None if request.hidden_sum is None else _never  # cached blocks have no hidden states

    def enter(self, seq: Sequence, plan: AdmissionPlan) -> None:
        """Take the planned blocks. Raises SnapshotUnusable, without taking any, if a snapshot cannot be restored."""
        seq.table = self.pool.apply(plan)
        seq.num_computed = plan.num_hit_tokens

    def clip(self, seq: Sequence, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` a chunk may cover."""
        return num_tokens

    def settle(self, seq: Sequence) -> None:
        """Make the state match `seq.num_computed`. A successful step has advanced it, a failed step has not."""

    def save(self, seq: Sequence) -> None:
        """Save what the sequence needs to resume after a preemption."""

    def drop(self, seq: Sequence) -> None:
        """Drop all state of a sequence that has ended."""

    def _slots(self, seq: Sequence) -> int:
        return min(seq.reserve, self.pool.num_slots)


class Hybrid(PureAttention):
    """Manages the states of sequences whose model has attention and recurrent layers. A prefix hit must end exactly at
    a snapshot of the recurrent state, and every KV block before it must be cached. A preempted sequence keeps its state
    and its partial block on the host; both become useless if one of its full blocks is evicted."""

    def __init__(self, pool: BlockPool, new_state: Callable[[], SequenceState], max_snapshot_bytes: int) -> None:
        super().__init__(pool)
        self.new_state = new_state
        self.max_snapshot_bytes = max_snapshot_bytes
        self.snapshots: OrderedDict[BlockKey, Snapshot] = OrderedDict()
        """Snapshots by the key of the last block that they cover, least recently used first."""
        self.num_snapshot_bytes = 0
        """Bytes of snapshots, for later prompts and for preempted sequences; never more than `max_snapshot_bytes`."""
        self.num_failed_snapshots = 0

    def plan(self, seq: Sequence, headroom: int) -> AdmissionPlan:
        if seq.saved is not None:
            plan = self._plan_resume(seq, seq.saved, headroom)
            if plan is not None:
                return plan
            self._forget_saved(seq)
        return super().plan(seq, headroom)

    def resumable(self, request: Request) -> Callable[[BlockKey], bool] | None:
        return self.snapshots.__contains__ if request.hidden_sum is None else _never

    def _plan_resume(self, seq: Sequence, saved: Snapshot, headroom: int) -> AdmissionPlan | None:
        """Return a plan that shares every full block below the saved boundary, or None if one was evicted."""
        full = saved.num_tokens // self.pool.block_size
        boundary = seq.chain.keys(full)[full - 1] if full else None
        plan = self.pool.admit(seq.chain, self._slots(seq), headroom=headroom, resumable=lambda key: key == boundary)
        return plan if len(plan.hit) == full else None

    def enter(self, seq: Sequence, plan: AdmissionPlan) -> None:
        size = self.pool.block_size
        state = self.new_state()
        table = self.pool.apply(plan)
        try:
            if seq.saved is not None:
                partial = seq.saved.num_tokens % size != 0
                state.restore(seq.saved, table.block_ids[len(plan.hit)] if partial else None)
            elif plan.hit:
                key = seq.chain.keys(len(plan.hit))[len(plan.hit) - 1]
                self.snapshots.move_to_end(key)
                state.restore(self.snapshots[key], None)
        except Exception as error:
            self._forget(seq, plan)
            self.pool.release(table)
            raise SnapshotUnusable(f"{seq.request.request_id}: {error}") from error
        self._forget_saved(seq)
        seq.state, seq.table, seq.num_computed = state, table, state.num_tokens
        # A later prompt may resume after the last block that a lookup can cover, or at the end of the blocks that were
        # already cached.
        seq.snapshot_at = (plan.num_cached * size, (seq.num_tokens - 1) // size * size)

    def _forget(self, seq: Sequence, plan: AdmissionPlan) -> None:
        if seq.saved is not None:
            self._forget_saved(seq)
        else:
            self._discard(seq.chain.keys(len(plan.hit))[len(plan.hit) - 1])

    def clip(self, seq: Sequence, num_tokens: int) -> int:
        """Return the number of tokens up to the next boundary where a snapshot is wanted, at most `num_tokens`."""
        start = seq.num_computed
        ends = [at - start for at in seq.snapshot_at if start < at < start + num_tokens]
        return min(ends, default=num_tokens)

    def settle(self, seq: Sequence) -> None:
        if seq.state is None:
            return
        seq.state.trim(seq.num_computed)
        if seq.num_computed in seq.snapshot_at and seq.num_computed > 0:
            full = seq.num_computed // self.pool.block_size
            self._keep(seq.chain.keys(full)[full - 1], seq.state)

    def save(self, seq: Sequence) -> None:
        """Save the state. To make room, discard snapshots for later prompts. If that is not enough, save nothing."""
        state, seq.state = seq.state, None
        if state is None or seq.num_computed == 0:
            return
        full, rest = divmod(seq.num_computed, self.pool.block_size)
        try:
            snapshot = state.snapshot(seq.running_table().block_ids[full] if rest else None)
        except Exception:  # the tokens can always be computed again
            self.num_failed_snapshots += 1
            return
        if snapshot is None:
            return
        seq.saved = snapshot
        self.num_snapshot_bytes += snapshot.nbytes
        self._make_room()
        if self.num_snapshot_bytes > self.max_snapshot_bytes:
            self._forget_saved(seq)

    def drop(self, seq: Sequence) -> None:
        seq.state = None
        self._forget_saved(seq)

    def _forget_saved(self, seq: Sequence) -> None:
        if seq.saved is not None:
            self.num_snapshot_bytes -= seq.saved.nbytes
            seq.saved = None

    def _keep(self, key: BlockKey, state: SequenceState) -> None:
        if key in self.snapshots:
            self.snapshots.move_to_end(key)
            return
        try:
            snapshot = state.snapshot(None)
        except Exception:  # a later prompt computes the tokens again
            self.num_failed_snapshots += 1
            return
        if snapshot is not None:
            self.snapshots[key] = snapshot
            self.num_snapshot_bytes += snapshot.nbytes
            self._make_room()

    def _make_room(self) -> None:
        while self.snapshots and self.num_snapshot_bytes > self.max_snapshot_bytes:
            self._discard(next(iter(self.snapshots)))

    def _discard(self, key: BlockKey) -> None:
        self.num_snapshot_bytes -= self.snapshots.pop(key).nbytes


_REMEMBERED = 4  # conversation blocks to remember per block of the pool, to distinguish evicted blocks from new ones


class Ledger:
    """Tracks live sequences. Only running sequences hold blocks."""

    def __init__(
        self, pool: BlockPool, states: PureAttention, age_bound: int, ended: Callable[[Sequence], None] = lambda _: None
    ) -> None:
        """`ended` is called for each sequence that ends. It must not raise."""
        self.pool = pool
        self._ended = ended
        self.states = states
        self.live: dict[str, Sequence] = {}
        self.waiting = WaitingQueue(order=lambda seq: seq.rank)
        self.deadlines = WaitingQueue(order=lambda seq: (seq.deadline or 0.0, seq.index))
        self.running = RunningSet(age_bound)
        self.suspended: dict[Sequence, None] = {}
        """Suspended sequences that still run are preempted before the next step is assembled."""
        self.events: list[Event] = []
        self.conversations = Conversations(most_blocks=_REMEMBERED * pool.capacity)

    def enqueue(self, seq: Sequence) -> None:
        self.live[seq.request.request_id] = seq
        self.waiting.push(seq)
        self._file_deadline(seq)
        self.events.append(Submitted(seq.request.request_id, seq.request.priority))

    def _file_deadline(self, seq: Sequence) -> None:
        if seq.deadline is not None:
            self.deadlines.push(seq)

    def start(self, seq: Sequence, plan: AdmissionPlan) -> None:
        """Start the sequence. If this raises SnapshotUnusable, the sequence still waits, but has lost its snapshot."""
        self.states.enter(seq, plan)
        self.waiting.discard(seq)
        self.running.add(seq)
        request = seq.request
        why: ConversationMissReason = ""
        if not seq.times_preempted:
            why = self.conversations.why_missed(request.tenant_salt, request.session_key, seq.chain, plan)
        self.events.append(Admitted(request.request_id, seq.num_tokens, seq.num_computed, seq.times_preempted, why))

    def preempt(self, seq: Sequence, cause: Literal["admission", "growth"], beneficiary: Sequence) -> None:
        self._free_slot(seq)
        self.waiting.push(seq)
        self.events.append(Preempted(seq.request.request_id, cause, beneficiary.request.request_id))

    def suspend(self, seq: Sequence, beneficiary: str) -> None:
        seq.suspended_for = beneficiary
        self.suspended[seq] = None
        self.waiting.discard(seq)

    def resume(self, seq: Sequence) -> None:
        """End the suspension. If the sequence no longer runs, it returns to the queue with its old rank."""
        seq.suspended_for = None
        del self.suspended[seq]
        if seq not in self.running:
            self.waiting.push(seq)

    def preempt_suspended(self) -> None:
        """Preempt suspended sequences that still run. Call this only while no step is in flight."""
        for seq in self.suspended:
            if seq in self.running and seq.suspended_for is not None:
                self._free_slot(seq)
                self.events.append(Preempted(seq.request.request_id, "deadline", seq.suspended_for))

    def _free_slot(self, seq: Sequence) -> None:
        self.states.save(seq)
        self.running.discard(seq)
        self._release_blocks(seq)
        seq.times_preempted += 1

    def settle(self, step: Step, outcome: Outcome) -> list[Rollback]:
        """Apply the outcome of a step. Return the slots whose content was rolled back."""
        if isinstance(outcome, StepFailure):
            return self._roll_back_all(step, outcome)
        if not self._is_complete(outcome, step):
            return self._roll_back_all(step, StepFailure(f"some of the {len(step.rows)} rows have no result"))
        rows, results = step.rows, (outcome.sampled, outcome.logprobs or ((),) * len(step.rows))
        if isinstance(rows, PlainRows):
            return self._settle_plain(rows, *results)
        settled = [self._settle_row(*each) for each in zip(rows, *results, strict=True)]
        return [rollback for rollback in settled if rollback is not None]

    @staticmethod
    def _is_complete(outcome: object, step: Step) -> bool:
        """Whether the outcome has a result for every row."""
        if not isinstance(outcome, StepOutcome) or not isinstance(outcome.sampled, tuple):
            return False
        return len(outcome.sampled) == len(step.rows) and len(outcome.logprobs) in (0, len(step.rows))

    def _settle_plain(
        self,
        rows: PlainRows,
        samples: tuple[tuple[int, ...] | RowFault, ...],
        logprobs: tuple[tuple[SampledLogprobs, ...], ...],
    ) -> list[Rollback]:
        """Do what `_settle_row` does for each, in less time for those whose answers go on within a block."""
        rollbacks, events, size = [], self.events, self.pool.block_size
        for place, (seq, sampled, likely) in enumerate(zip(rows.sequences, samples, logprobs, strict=True)):
            request, num_tokens = seq.request, seq.num_tokens
            if (
                isinstance(sampled, tuple)
                and len(sampled) == 1
                and isinstance(sampled[0], int)
                and sampled[0] not in request.stop_ids
                and num_tokens + 1 < seq.max_total_tokens
                and num_tokens % size
                and num_tokens != len(request.prompt)  # otherwise its first deadline may end
                and request.guide is None
                and seq.state is None
                and seq.finish_reason is None
                and not seq.suspect
                and seq.chain.append(sampled[0])
            ):
                seq.num_scheduled = 0
                seq.num_tokens, seq.num_computed = num_tokens + 1, num_tokens
                events.append(tuple.__new__(Emitted, (request.request_id, sampled, likely and likely[:1])))
            elif (rollback := self._settle_row(rows[place], sampled, likely)) is not None:
                rollbacks.append(rollback)
        return rollbacks

    def _settle_row(
        self, row: Row, sampled: tuple[int, ...] | RowFault, logprobs: tuple[SampledLogprobs, ...]
    ) -> Rollback | None:
        try:
            return self._advance(row, sampled, logprobs)
        except InvariantViolation:
            raise
        except Exception as error:  # a state that cannot settle ends only its own sequence
            return self._roll_back(row, f"{type(error).__name__}: {error}")

    def _advance(
        self, row: Row, sampled: tuple[int, ...] | RowFault, logprobs: tuple[SampledLogprobs, ...] = ()
    ) -> Rollback | None:
        """Keep a row's computed tokens, cache full blocks, emit sampled tokens. Return the rollback, if any."""
        seq, table, start, tokens, num_drafts, num_samples = row
        if isinstance(sampled, RowFault):
            return self._roll_back(row, sampled.error)
        if not isinstance(sampled, tuple) or len(sampled) != num_samples:
            return self._roll_back(row, f"the engine sampled {sampled!r:.40} where {num_samples} tokens were due")
        seq.num_scheduled = 0
        if seq.finish_reason is not None:
            # Tokens known before the step stay in the cache, so that other requests can hit them.
            self.pool.register(table, seq.chain, row.stop - num_drafts)
            self._release(seq)
            return None
        was_prefilling = seq.num_tokens - start > 1
        accepted = accept(row, sampled) if num_drafts else sampled
        emitted, reason = self._cut_at_end(seq, accepted)
        if num_drafts:
            seq.count_drafts(num_drafts, min(len(accepted) - 1, len(emitted)))
        request = seq.request
        is_first = request.first_deadline is not None and not seq.num_generated
        seq.append(emitted)
        if is_first and emitted:
            self.deadlines.discard(seq)
            self._file_deadline(seq)
        stop = start + len(tokens)
        num_rejected = num_drafts + 1 - len(accepted) if num_drafts else 0
        num_kept = stop - num_rejected
        seq.num_computed = num_computed = num_kept if num_kept < seq.num_tokens else seq.num_tokens
        self.pool.register(table, seq.chain, num_computed)
        self.states.settle(seq)
        if seq.suspect or (was_prefilling and not seq.prefilling):
            seq.suspect = False
            self.running.refile(seq)
        if emitted:
            self.events.append(Emitted(request.request_id, emitted, logprobs and logprobs[: len(emitted)]))
        if reason is not None:
            self.finish(seq, reason)
            return None
        return Rollback(table, num_computed, stop) if num_computed < stop else None

    def _roll_back_all(self, step: Step, failure: StepFailure) -> list[Rollback]:
        """Roll the step back. If the culprit is known, end it; otherwise every sequence becomes a suspect."""
        rows = step.rows
        culprits = rows if len(rows) == 1 else [r for r in rows if r.sequence.request.request_id == failure.culprit]
        rollbacks = [
            self._roll_back(row, failure.error if row in culprits else None, suspect=not culprits) for row in rows
        ]
        return [rollback for rollback in rollbacks if rollback is not None]

    def _roll_back(self, row: Row, error: str | None, *, suspect: bool = False) -> Rollback | None:
        """Undo a row and return its rollback. With `error`, end the row's sequence instead and return None."""
        seq = row.sequence
        seq.num_scheduled = 0
        if seq.finish_reason is not None:
            self._release(seq)
            return None
        if error is not None:
            self.finish(seq, "error", error)
            return None
        try:
            self.states.settle(seq)
        except Exception as unsettled:
            self.finish(seq, "error", f"{type(unsettled).__name__}: {unsettled}")
            return None
        if suspect:
            seq.suspect = True
            self.running.refile(seq)
        return Rollback(row.table, row.start, row.stop)

    def finish(self, seq: Sequence, reason: FinishReason, detail: str = "") -> bool:
        """End a sequence in any state; no other method ends one. Return False if it had already ended."""
        if seq.finish_reason is not None:
            return False
        seq.finish_reason = reason
        del self.live[seq.request.request_id]
        self.waiting.discard(seq)
        self.suspended.pop(seq, None)
        self.deadlines.discard(seq)
        self.running.discard(seq)
        self._release(seq)
        self._ended(seq)
        drafts = tuple(DraftCount(source, *count) for source, count in seq.drafts.items())
        self.events.append(Finished(seq.request.request_id, reason, detail, drafts))
        return True

    def _release(self, seq: Sequence) -> None:
        """Free what a finished sequence holds. If a step in flight uses its blocks, the commit of that step does so."""
        if seq.num_scheduled:
            return
        if seq.table is not None:
            request = seq.request
            self.conversations.learn(request.tenant_salt, request.session_key, seq.chain, seq.table.num_registered)
        self._release_blocks(seq)
        self.states.drop(seq)

    def _release_blocks(self, seq: Sequence) -> None:
        if seq.table is not None:
            self.pool.release(seq.table)
        seq.table = None
        seq.num_computed = 0

    @staticmethod
    def _cut_at_end(seq: Sequence, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
        """Return the tokens up to the answer's end, and the finish reason; all tokens and None if it goes on."""
        room = seq.max_total_tokens - seq.num_tokens
        request = seq.request
        stop_ids = request.stop_ids
        if len(tokens) < room and request.guide is None and stop_ids.isdisjoint(tokens):
            return tokens, None
        for i, token in enumerate(tokens):
            if token in stop_ids:
                return tokens[:i], "stop"
            if request.guide is not None and request.guide.ended(seq.generated, tokens[: i + 1]):
                return tokens[: i + 1], "stop"
            if i + 1 == room:
                return tokens[: i + 1], "length"
        return tokens, None
