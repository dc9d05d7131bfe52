"""The scheduler: which sequences run in the next step, and which are preempted."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Literal, get_args

from admission.policy import (
    PrefillHold,
    choose_victims,
    may_preempt,
    owes_decode,
    preemption_order,
    prefill_tokens,
)
from kvpool import AdmissionPlan, BlockPool, InvariantViolation, PoolExhausted, Reclaim, TokenChain, chain_root
from octet.clock import Clock
from octet.fault_points import SLOW_FAULT_SECONDS, fault_injected, fault_message
from octet.identity import Lane
from specialist.engines.base import Completion, Engine, EngineFault
from specialist.scheduling.ledger import Ledger, PureAttention
from specialist.scheduling.sequence import (
    FinishReason,
    InvalidRequestField,
    LaneMismatch,
    PromptTooLarge,
    Request,
    Sequence,
    SnapshotUnusable,
)
from specialist.scheduling.step import (
    Event,
    FixedBudget,
    Outcome,
    PlainRows,
    PrefillBudget,
    Proposer,
    Rollback,
    Row,
    RowBuilder,
    Step,
    StepFailure,
    StepOutcome,
)

_MOST_ROOTS = 1024  # of chains, by lane and tenant, that are kept


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    lane: Lane  # the bare lane of the replica: specialist and model revision
    kv_dtype: str = "float32"
    max_running: int = 32
    max_step_tokens: int = 2048
    """The most prompt tokens in a step while no request decodes; drafts do not make a step larger either."""
    watermark: float = 0.05
    """Share of the pool that an admission leaves free while others run, so that running sequences can grow."""
    age_bound: int = 8  # how many turns a prompt or an adapter stack may be passed over
    mixes_adapters: bool = False  # whether the engine computes rows with different adapter stacks in one step
    runs_ahead: bool = False  # whether the engine begins the next decode step before this one is committed

    def __post_init__(self) -> None:
        if self.lane.adapters:
            raise ValueError("lane must have no adapters: requests name them")
        for name in ("max_running", "max_step_tokens", "age_bound"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in [0, 1), got {self.watermark}")


class Scheduler:
    """A deterministic state machine: `assemble_step()` plans a step and `commit()` applies its outcome.

    The rules for rank, victims, chunks, holding and turns are in `admission/policy.py`. This class applies them to
    sequences and blocks. The first sequence in the queue starts when its tokens, one more and its draft window fit into
    the pool; while others run, the share `watermark` of the pool must stay free, too. If it does not fit, running
    sequences of lower priority are preempted, but only if that makes enough room. At least one sequence keeps running,
    and none is preempted that would free no block. A suspended sequence keeps its rank, but neither runs nor waits in
    the queue."""

    def __init__(
        self,
        pool: BlockPool,
        config: SchedulerConfig,
        clock: Clock,
        *,
        budget: PrefillBudget | None = None,
        states: PureAttention | None = None,
        proposer: Proposer | None = None,
        hold: PrefillHold | None = None,
    ) -> None:
        """`hold` delays prompt chunks so that decoding requests can meet their deadlines. Without it, a chunk waits
        only for the decode step that every adapter stack takes after the previous chunk."""
        self.pool = pool
        self.config = config
        self.clock = clock
        self.budget = budget or FixedBudget(256)
        self.hold = hold
        self.states = states or PureAttention(pool)
        self.rows = RowBuilder(pool, proposer, config.max_step_tokens, runs_ahead=config.runs_ahead)
        self.ledger = Ledger(pool, self.states, config.age_bound, self.rows.ended)
        self.waiting = self.ledger.waiting
        self.running = self.ledger.running
        self.in_flight: Step | None = None
        self.num_stale_commits = 0
        self.num_unusable_snapshots = 0
        self.num_steps = 0
        self._speculates = proposer is not None
        self._root = lru_cache(_MOST_ROOTS)(lambda lane, salt: chain_root(lane, salt, config.kv_dtype, pool.block_size))
        self._num_received = 0
        self._num_preempted = 0
        self._num_chunked = 0  # prompt tokens since the decoding sequences were last owed a step
        self._computed = (0, 0.0)  # how many of them were computed, and in how many seconds

    # Steps

    def assemble_step(self) -> Step | None:
        """Plan a step, which is in flight until its commit. Return None if there is nothing to run."""
        if self.in_flight is not None:
            raise RuntimeError(f"step {self.in_flight.number} is in flight: commit it first")
        self.expire()
        began = self.clock.now()
        self.ledger.preempt_suspended()
        self._admit_waiting()
        rows = self._next_rows()
        return self._launch(rows, began) if rows else None

    def _admit_waiting(self) -> None:
        while (head := self.waiting.peek()) is not None:
            no_slot = len(self.running) >= self.config.max_running
            lower = [seq for seq in self.running if may_preempt(head.rank, seq.rank)]
            if no_slot and not lower:
                return
            plan = self._plan(head)
            if no_slot or plan.shortage:
                victims = choose_admission_victims(plan, lower, most=len(self.running) - 1, pool=self.pool)
                if not victims:
                    return
                for victim in victims:
                    self._preempt(victim, "admission", head)
                continue
            self._start(head, plan)

    def _plan(self, head: Sequence) -> AdmissionPlan:
        headroom = ceil(self.config.watermark * self.pool.capacity) if len(self.running) else 0
        plan = self.states.plan(head, headroom)
        return replace(plan, shortage=plan.shortage + 1) if fault_injected("pool.shortage") else plan

    def _start(self, head: Sequence, plan: AdmissionPlan) -> None:
        """Start the sequence. If its snapshot is unusable, it stays in the queue and loses the snapshot."""
        try:
            if fault_injected("pool.apply"):
                raise PoolExhausted(fault_message("pool.apply"))
            self.ledger.start(head, plan)
        except InvariantViolation:
            raise
        except SnapshotUnusable:
            self.num_unusable_snapshots += 1
        except Exception as error:  # an engine that cannot hold the state loses only this request
            self.ledger.finish(head, "error", f"{type(error).__name__}: {error}")

    def _next_rows(self) -> list[Row] | PlainRows:
        """Return the rows of the next step. In order of preference: decode rows that are due after a chunk, a suspect
        alone, a chunk if it is not held back, other decode rows."""
        running = self.running
        self._end_chunk()
        if running.to_decode.owed:
            return self._decode_rows(running.to_decode.pick())
        if running.suspects:
            alone = [next(iter(running.suspects))]
            return self._prefill_rows(alone) if alone[0].prefilling else self._decode_rows(alone)
        if len(running.to_prefill):
            prompts = running.to_prefill.pick()
            if not self._is_held(prompts[0]):
                return self._prefill_rows(prompts)
            self._owe_steps()
        return self._decode_rows(running.to_decode.pick())

    def _is_held(self, prompt: Sequence) -> bool:
        if self.hold is None:
            return False
        decoding = ((seq.rank, seq.request.deadline, seq.rounds_left) for seq in self.running.to_decode)
        num_chunks = ceil(prompt.remaining / self.budget.tokens())
        return self.hold.margin(prompt.rank, decoding, self.clock.now(), num_chunks) < 0

    def _prefill_rows(self, seqs: Iterable[Sequence]) -> list[Row]:
        """Build the rows of a chunk, from prompts with the same adapter stack."""
        budget = prefill_tokens(
            self.budget.tokens(),
            self._num_chunked,
            self.config.max_step_tokens,
            decodes=len(self.running.to_decode) > 0,
            holds=self.hold is not None,
        )
        rows: list[Row] = []
        for seq in seqs:
            if budget == 0:
                break
            rows.append(self.rows.row(seq, self.states.clip(seq, min(seq.remaining, budget))))
            budget -= len(rows[-1].tokens)
        return rows

    def _end_chunk(self) -> None:
        more_prompts = len(self.running.to_prefill) > 0 and not self.running.suspects
        if owes_decode(self.budget.tokens(), self._num_chunked, more_prompts=more_prompts):
            self._owe_steps()

    def _owe_steps(self) -> None:
        """If prompt tokens were computed since the last call, let every decoding sequence take a step next."""
        if self._num_chunked:
            self.running.to_decode.owe_all()
            if self._computed[0]:
                self.budget.observe(*self._computed)
            self._num_chunked, self._computed = 0, (0, 0.0)

    def _decode_rows(self, seqs: list[Sequence]) -> list[Row] | PlainRows:
        """Build a decode row for each of these sequences, which have the same adapter stack. If the pool is full,
        drafts are dropped first, then sequences are preempted."""
        if not seqs:
            return []
        drafts = self.rows.drafts(seqs)
        growing = self.rows.growing(seqs, drafts)
        if drafts and sum(growing.values()) > self.pool.num_free:
            drafts = {}
            growing = self.rows.growing(seqs, drafts)
        while sum(growing.values()) > self.pool.num_free:
            victim = choose_growth_victim(growing, self.running, self.pool)
            growing.pop(victim, None)
            stays = min(growing or (seq for seq in self.running if seq is not victim), key=lambda seq: seq.rank)
            self._preempt(victim, "growth", stays)
            seqs = [seq for seq in seqs if seq is not victim]
        if not seqs:
            return self._next_rows()
        if not drafts:
            return self.rows.plain_rows(seqs, growing)
        return [self.rows.row(seq, 1, drafts.get(seq, ())) for seq in seqs]

    def _preempt(self, victim: Sequence, cause: Literal["admission", "growth"], beneficiary: Sequence) -> None:
        self._num_preempted += 1
        self.ledger.preempt(victim, cause, beneficiary)

    def _launch(self, rows: list[Row] | PlainRows, began: float) -> Step:
        self._count_turn(rows)
        self.num_steps += 1
        if isinstance(rows, PlainRows):
            self.pool.count_tokens(rows.starts)
        else:
            self.pool.count_traffic([(row.start, row.stop) for row in rows])
        kept = rows if isinstance(rows, PlainRows) else tuple(rows)
        stack, may_repeat = rows[0].sequence.stack, self.rows.may_repeat
        step = Step(self.num_steps, stack, kept, self._num_preempted, began, may_repeat)
        self.rows.launched(step)
        self.in_flight, self._num_preempted = step, 0
        return step

    def _count_turn(self, rows: list[Row] | PlainRows) -> None:
        first = rows[0].sequence
        if first.suspect:
            return  # not a turn: the other sequences are still owed their steps
        if first.prefilling:
            self.running.to_prefill.served([row.sequence for row in rows])
        else:
            self.running.to_decode.served(first.stack)

    def commit(self, step: Step, outcome: Outcome) -> list[Rollback]:
        """Apply a step's outcome and return the slots whose content was rolled back. The outcome of a step that is no
        longer in flight is ignored."""
        if step is not self.in_flight:
            self.num_stale_commits += 1
            return []
        self.in_flight = None
        was_chunk = step.rows[0].sequence.prefilling
        if was_chunk and isinstance(outcome, StepOutcome):
            num_tokens, seconds = self._computed
            self._computed = (num_tokens + step.num_tokens, seconds + self.clock.now() - step.started_at)
        drafted = [] if step.mode == "decode" else [row.sequence for row in step.rows]
        num_known = sum(seq.num_tokens for seq in drafted)
        rollbacks = self.ledger.settle(step, outcome)
        if not was_chunk and isinstance(outcome, StepOutcome):
            seconds = self.clock.now() - step.started_at
            self.rows.observe(step, seconds)
            if self.hold is not None:
                num_kept = sum(seq.num_tokens for seq in drafted) - num_known
                self.hold.observe(seconds * len(step.rows) / max(num_kept, len(step.rows)))
        if was_chunk:
            self._num_chunked += step.num_tokens
            self._end_chunk()
        return rollbacks

    # Requests

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused if it could never run here. An answer that would outgrow the whole
        pool is cut short, and a draft window that could never fit is ignored."""
        self.check(request)
        num_slots = self.pool.num_slots
        can_draft = self._speculates and len(request.prompt) + 1 + request.draft_window <= num_slots
        chain = self._chain(request)
        self._num_received += 1
        self.ledger.enqueue(
            Sequence(
                request,
                chain,
                index=self._num_received,
                max_total_tokens=min(len(request.prompt) + request.max_tokens, num_slots),
                draft_window=request.draft_window if can_draft else 0,
                stack=turn_stack(request, mixes_adapters=self.config.mixes_adapters),
            )
        )

    def check(self, request: Request) -> None:
        """Raises RequestRefused if the request could never run here. Only `submit` checks the token ids."""
        if request.request_id in self.ledger.live:
            raise InvalidRequestField("request_id", f"{request.request_id!r} is already live")
        own = self.config.lane
        if request.lane != own and (differences := replace(request.lane, adapters=()).differences(own)):
            raise LaneMismatch(differences)
        num_blocks = self.pool.blocks_for(len(request.prompt) + 1)
        if num_blocks > self.pool.capacity:
            raise PromptTooLarge(num_blocks, self.pool.capacity, self.pool.block_size)

    def _chain(self, request: Request) -> TokenChain:
        root = self._root(request.lane, request.tenant_salt)
        try:
            return TokenChain(root, self.pool.block_size, request.prompt)
        except ValueError as error:
            raise InvalidRequestField("prompt", str(error)) from error

    def end(self, request_id: str, reason: FinishReason, detail: str = "") -> bool:
        """End a request now, in any state. Return False if it is no longer live."""
        if reason not in get_args(FinishReason):
            raise ValueError(f"reason must be one of {get_args(FinishReason)}, got {reason!r}")
        seq = self.ledger.live.get(request_id)
        return seq is not None and self.ledger.finish(seq, reason, detail)

    def suspend(self, request_id: str, beneficiary: str) -> bool:
        """Suspend the request from the next step on. Return False if it is not live, or already suspended."""
        seq = self.ledger.live.get(request_id)
        if seq is None or seq.suspended_for is not None:
            return False
        self.ledger.suspend(seq, beneficiary)
        return True

    def resume(self, request_id: str) -> bool:
        """Resume the request. Return False if it is not suspended."""
        seq = self.ledger.live.get(request_id)
        if seq is None or seq.suspended_for is None:
            return False
        self.ledger.resume(seq)
        return True

    def expire(self) -> None:
        """End every request that is past its deadline, without computing another token for it."""
        now = self.clock.now()
        while (seq := self.ledger.deadlines.peek()) is not None:
            if seq.deadline is None or seq.deadline > now:
                return
            self.ledger.finish(seq, "deadline", f"{now - seq.deadline:.3f} s past its deadline")

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self.ledger.events = self.ledger.events, []
        return events


def turn_stack(request: Request, *, mixes_adapters: bool) -> tuple[str, ...]:
    """Return the adapter stack by which the request takes turns: its own, or the same for all if steps mix stacks."""
    return () if mixes_adapters else request.lane.adapters


def victim_order(seq: Sequence) -> tuple[float, ...]:
    return preemption_order(seq.rank, has_state=seq.state is not None, num_computed=seq.num_computed)


def choose_admission_victims(
    plan: AdmissionPlan, candidates: Collection[Sequence], most: int, pool: BlockPool
) -> list[Sequence]:
    """Choose sequences to preempt, so that their blocks make `plan` possible. Return an empty list if that takes more
    than `most` victims. A sequence frees no block if others share all its blocks."""
    if sum(len(seq.running_table()) for seq in candidates) < plan.shortage:
        return []
    reclaim = Reclaim(pool, keep=plan.hit)

    def free_blocks(seq: Sequence) -> int:
        before = reclaim.num_blocks
        if reclaim.gain(seq.running_table()):
            reclaim.add(seq.running_table())
        return reclaim.num_blocks - before

    return choose_victims(sorted(candidates, key=victim_order), free_blocks, plan.shortage, most)


def choose_growth_victim(growing: Collection[Sequence], running: Iterable[Sequence], pool: BlockPool) -> Sequence:
    """Return the first sequence in victim order that would free a block or that needs a block itself."""
    weakest = min(growing, key=victim_order)
    for seq in sorted(running, key=victim_order):
        if seq is weakest or pool.frees_a_block(seq.running_table()):
            return seq
    raise InvariantViolation("a growing sequence is not running")


class StepLoop:
    def __init__(self, scheduler: Scheduler, engine: Engine) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.num_failed_discards = 0

    def run_once(self) -> Step | None:
        step = self.scheduler.assemble_step()
        if step is not None:
            self.run(step)
        return step

    def run(self, step: Step) -> None:
        self.settle(step, self.complete(step))

    def settle(self, step: Step, completions: list[Completion]) -> None:
        for completion in completions:
            self._commit(completion)
            if fault_injected("commit.twice"):
                self._commit(completion)
        if self.scheduler.in_flight is step:
            self._commit(Completion(step, StepFailure("the engine did not complete the step")))

    def _commit(self, completion: Completion) -> None:
        rollbacks = self.scheduler.commit(completion.step, completion.outcome)
        host = self.scheduler.pool.host
        if host is not None and host.to_spill:  # the step did not run, and its blocks still have what must be spilled
            return
        try:
            self.engine.discard(rollbacks)
        except Exception:  # slots that were not zeroed are overwritten before they are read
            self.num_failed_discards += 1

    def complete(self, step: Step) -> list[Completion]:
        """Make the copies that precede the step, run it on the engine and return its completions, uncommitted. An error
        becomes a StepFailure."""
        host = self.scheduler.pool.host
        try:
            if host is not None:
                host.copy_pending()
            completions = list(self.engine.run(step))
            if fault_injected("commit.slow"):
                self.scheduler.clock.sleep(SLOW_FAULT_SECONDS)
            if all(isinstance(completion, Completion) for completion in completions):
                return completions
            return [Completion(step, StepFailure("the engine returned something other than a completion"))]
        except EngineFault as fault:
            return [Completion(step, StepFailure(str(fault), fault.culprit))]
        except Exception as error:  # an engine error ends one request, not the loop
            return [Completion(step, StepFailure(f"{type(error).__name__}: {error}"))]
