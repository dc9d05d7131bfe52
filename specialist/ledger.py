"""The books: every change in a sequence's life happens here, and each leaves the pool whole."""

from typing import Literal

from kvpool import AdmissionPlan, BlockPool, InvariantViolation
from specialist.conversations import Conversations, MissReason
from specialist.events import Admitted, Emitted, Event, Finished, Preempted, Submitted
from specialist.request import FinishReason
from specialist.running import Running
from specialist.sampling import TokenLogprobs
from specialist.sequence import Sequence
from specialist.speculation import accept
from specialist.states import PureAttention
from specialist.step import Outcome, Rollback, Row, RowFault, Step, StepFailure, StepOutcome
from specialist.waiting import WaitingQueue

_REMEMBERED = 4
"""Blocks of conversations for every one that the pool can hold: what is gone is to be told from what never was."""


class Ledger:
    """A live sequence is waiting or set aside, without blocks, or running, with them. Events tell of every move."""

    def __init__(self, pool: BlockPool, states: PureAttention, age_bound: int) -> None:
        self.pool = pool
        self.states = states
        self.live: dict[str, Sequence] = {}
        self.waiting = WaitingQueue(rank=lambda seq: seq.rank)
        self.deadlines = WaitingQueue(rank=lambda seq: (seq.deadline or 0.0, seq.index))
        self.running = Running(age_bound)
        self.aside: dict[Sequence, None] = {}
        """Those that run leave their seats before the next step is assembled."""
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
        """Raises SnapshotUnusable: the sequence still waits, its blocks are given back, the snapshot is forgotten."""
        self.states.enter(seq, plan)
        self.waiting.discard(seq)
        self.running.add(seq)
        why = self._why_missed(seq, plan)
        self.events.append(Admitted(seq.request.request_id, seq.num_tokens, seq.num_computed, seq.times_preempted, why))

    def _why_missed(self, seq: Sequence, plan: AdmissionPlan) -> MissReason:
        if seq.times_preempted:
            return ""
        request = seq.request
        return self.conversations.why_missed(request.tenant_salt, request.session_key, seq.chain, plan)

    def preempt(self, seq: Sequence, cause: Literal["admission", "growth"], beneficiary: Sequence) -> None:
        self._leave_seat(seq)
        self.waiting.push(seq)
        self.events.append(Preempted(seq.request.request_id, cause, beneficiary.request.request_id))

    def set_aside(self, seq: Sequence, beneficiary: str) -> None:
        seq.aside_for = beneficiary
        self.aside[seq] = None
        self.waiting.discard(seq)

    def call_back(self, seq: Sequence) -> None:
        """Into the line, where it has kept its place."""
        seq.aside_for = None
        del self.aside[seq]
        if seq not in self.running:
            self.waiting.push(seq)

    def clear_seats(self) -> None:
        """Of those that were set aside. Not while a step is in flight."""
        for seq in self.aside:
            if seq in self.running and seq.aside_for is not None:
                self._leave_seat(seq)
                self.events.append(Preempted(seq.request.request_id, "deadline", seq.aside_for))

    def _leave_seat(self, seq: Sequence) -> None:
        self.states.save(seq)
        self.running.discard(seq)
        self._give_back(seq)
        seq.times_preempted += 1

    def settle(self, step: Step, outcome: Outcome) -> list[Rollback]:
        """Book what came of a step. Returns the slots whose content does not count after all."""
        if isinstance(outcome, StepFailure):
            return self._roll_back_all(step, outcome)
        if not self._answers(outcome, step):
            return self._roll_back_all(step, StepFailure(f"the engine did not answer {len(step.rows)} rows"))
        rollbacks = []
        logprobs = outcome.logprobs or ((),) * len(step.rows)
        for row, sampled, likely in zip(step.rows, outcome.sampled, logprobs, strict=True):
            try:
                rollback = self._advance(row, sampled, likely)
            except InvariantViolation:
                raise
            except Exception as error:  # a state that cannot settle costs its own sequence, not the rows behind it
                rollback = self._roll_back(row, f"{type(error).__name__}: {error}")
            if rollback is not None:
                rollbacks.append(rollback)
        return rollbacks

    @staticmethod
    def _answers(outcome: object, step: Step) -> bool:
        """Whether this is an answer to every row; an engine is trusted with tokens, not with its shape."""
        if not isinstance(outcome, StepOutcome) or not isinstance(outcome.sampled, tuple):
            return False
        return len(outcome.sampled) == len(step.rows) and len(outcome.logprobs) in (0, len(step.rows))

    def _advance(
        self, row: Row, sampled: tuple[int, ...] | RowFault, logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> Rollback | None:
        """A row's step succeeded: keep what it computed, register full blocks, hand out the tokens."""
        seq, table, start, tokens, num_drafts, num_samples = row
        if isinstance(sampled, RowFault):
            return self._roll_back(row, sampled.error)
        if not isinstance(sampled, tuple) or len(sampled) != num_samples:
            return self._roll_back(row, f"the engine sampled {sampled!r:.40} where {num_samples} tokens were due")
        seq.num_scheduled = 0
        if seq.finish_reason is not None:
            self._keep_computed(row)
            self._release(seq)
            return None
        was_prefilling = seq.prefilling
        accepted = accept(row, sampled) if num_drafts else sampled
        emitted, reason = self._until_the_end(seq, accepted)
        is_first = not seq.num_generated
        seq.append(emitted)
        if is_first and emitted and seq.request.first_deadline is not None:
            self.deadlines.discard(seq)
            self._file_deadline(seq)
        stop = start + len(tokens)
        num_rejected = num_drafts + 1 - len(accepted) if num_drafts else 0
        seq.num_computed = min(stop - num_rejected, seq.num_tokens)
        self.pool.register(table, seq.chain, seq.num_computed)
        self.states.settle(seq)
        if seq.suspect or (was_prefilling and not seq.prefilling):
            seq.suspect = False
            self.running.refile(seq)
        if emitted:
            self.events.append(Emitted(seq.request.request_id, emitted, logprobs[: len(emitted)]))
        if reason is not None:
            self.finish(seq, reason)
            return None
        return Rollback(table, seq.num_computed, stop) if seq.num_computed < stop else None

    def _roll_back_all(self, step: Step, failure: StepFailure) -> list[Rollback]:
        """One request is lost at most: the culprit if it is known, or the only row there was."""
        rows = step.rows
        guilty = rows if len(rows) == 1 else [r for r in rows if r.sequence.request.request_id == failure.culprit]
        rollbacks = [self._roll_back(row, failure.error if row in guilty else None, suspect=not guilty) for row in rows]
        return [rollback for rollback in rollbacks if rollback is not None]

    def _roll_back(self, row: Row, error: str | None, *, suspect: bool = False) -> Rollback | None:
        """A row's step failed: as if it had never run, but for the sequence that `error` ends."""
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
        """The only way out, from wherever the sequence is. False if it had ended before."""
        if seq.finish_reason is not None:
            return False
        seq.finish_reason = reason
        del self.live[seq.request.request_id]
        self.waiting.discard(seq)
        self.aside.pop(seq, None)
        self.deadlines.discard(seq)
        self.running.discard(seq)
        self._release(seq)
        self.events.append(Finished(seq.request.request_id, reason, detail))
        return True

    def _release(self, seq: Sequence) -> None:
        """Free everything a finished sequence holds; while a step writes to its blocks, that step's commit does."""
        if seq.num_scheduled:
            return
        if seq.table is not None:
            request = seq.request
            self.conversations.learn(request.tenant_salt, request.session_key, seq.chain, seq.table.num_registered)
        self._give_back(seq)
        self.states.drop(seq)

    def _keep_computed(self, row: Row) -> None:
        """Nobody waits for it any more, but what was known before the step is computed, and may be asked for again."""
        num_known = row.stop - row.num_drafts
        self.pool.register(row.table, row.sequence.chain, num_known)

    def _give_back(self, seq: Sequence) -> None:
        if seq.table is not None:
            self.pool.release(seq.table)
        seq.table = None
        seq.num_computed = 0

    @staticmethod
    def _until_the_end(
        seq: Sequence, tokens: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
        """The tokens up to where the answer ends, and how it ends there."""
        room = seq.max_total_tokens - seq.num_tokens
        request = seq.request
        stop_ids = request.stop_ids
        for i, token in enumerate(tokens):
            if token in stop_ids:
                return tokens[:i], "stop"
            if request.guide is not None and request.guide.ended(seq.generated, tokens[: i + 1]):
                return tokens[: i + 1], "stop"
            if i + 1 == room:
                return tokens[: i + 1], "length"
        return tokens, None
