"""Who runs next, and who gives way."""

from math import ceil
from typing import Literal, get_args

from kvpool import AdmissionPlan, BlockPool, InvariantViolation
from octet.clock import Clock
from specialist.budget import FixedBudget, PrefillBudget
from specialist.config import SchedulerConfig
from specialist.errors import InvalidRequest
from specialist.events import Event
from specialist.hurry import LONE_CHUNKS, Hurry
from specialist.intake import Intake
from specialist.ledger import Ledger
from specialist.request import FinishReason, Request
from specialist.rows import RowBuilder
from specialist.sequence import Sequence
from specialist.speculation import Proposer
from specialist.state import SnapshotUnusable
from specialist.states import PureAttention
from specialist.step import Outcome, Rollback, Row, Step, StepOutcome
from specialist.victims import victim_of_growth, victims_for


class Scheduler:
    """A deterministic state machine: `assemble_step()` decides, `commit()` makes it true, nothing else counts.

    In line: by priority, then by hurry, then arrival. A preempted request keeps its place.
    Enters: the first in line, when its whole prompt, one step and its draft window fit, with a watermark to spare
    once something runs. If not, runners of strictly lower priority make way; if that is not enough, all wait.
    Runs: after a chunk of prompt, one decode step for every adapter stack; then the next chunk, best rank first. What
    a chunk leaves of its budget, since a step computes with one stack, goes to prompts of other stacks before that.
    Rounds without chunks between them where a deadline of somebody before the prompt needs it.
    Without prompts the current stack goes on. Nobody is passed over more than `age_bound` times, but by those of
    their stack who are pressed for time.
    Set aside: out of its seat and of the line, its place kept, until it is called back; who, the caller says.
    Gives way: the lowest priority; among equals pure attention before hybrid, then the newest, then the cheapest to
    restore. Never the only runner, never one whose blocks would not come free, never a higher for a lower.
    """

    def __init__(
        self,
        pool: BlockPool,
        config: SchedulerConfig,
        clock: Clock,
        *,
        budget: PrefillBudget | None = None,
        states: PureAttention | None = None,
        proposer: Proposer | None = None,
        hurry: Hurry | None = None,
    ) -> None:
        """Without `hurry` no prompt waits for a round but for those that are owed."""
        self.pool = pool
        self.config = config
        self.clock = clock
        self.budget = budget or FixedBudget(256)
        self.hurry = hurry
        self.states = states or PureAttention(pool)
        self.intake = Intake(pool, config, speculates=proposer is not None)
        self.rows = RowBuilder(pool, proposer)
        self.ledger = Ledger(pool, self.states, config.age_bound)
        self.waiting = self.ledger.waiting
        self.running = self.ledger.running
        self.in_flight: Step | None = None
        self.num_stale_commits = 0
        self.num_unusable_snapshots = 0
        self.num_steps = 0
        self._num_preempted = 0
        self._num_chunked = 0
        """Prompt tokens since everybody who decodes was last owed a step."""
        self._computed = (0, 0.0)
        """Of these, the tokens that were computed, and the seconds that took."""

    def assemble_step(self) -> Step | None:
        """Decide who runs next. The step is in flight until its commit; None when there is nothing to run."""
        if self.in_flight is not None:
            raise RuntimeError(f"step {self.in_flight.number} is in flight: commit it first")
        self.expire()
        self.ledger.clear_seats()
        self._admit_waiting()
        rows = self._next_rows()
        return self._launch(rows) if rows else None

    def _admit_waiting(self) -> None:
        """The first in line enters when all it needs fits; else strictly lower runners make way; else all wait."""
        while (head := self.waiting.peek()) is not None:
            no_seat = len(self.running) >= self.config.max_running
            lower = [seq for seq in self.running if seq.request.priority < head.request.priority]
            if no_seat and not lower:
                return
            plan = self.states.plan(head, self._headroom())
            if no_seat or plan.shortage:
                victims = victims_for(plan, lower, most=len(self.running) - 1, pool=self.pool)
                if not victims:
                    return
                for victim in victims:
                    self._preempt(victim, "admission", head)
                continue
            self._start(head, plan)

    def _next_rows(self) -> list[Row]:
        """After a chunk of prompt, everyone who decodes first; then a suspect, alone; then the next chunk."""
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
        if self.hurry is None:
            return False
        num_chunks = ceil(prompt.remaining / self.budget.tokens())
        return self.hurry.holds(prompt, self.running, self.clock.now(), num_chunks)

    def _prefill_rows(self, seqs: list[Sequence]) -> list[Row]:
        """Prompts of one adapter stack share a chunk that costs those who decode no more than the budget."""
        decoding = len(self.running.to_decode) > 0
        budget = self.budget.tokens() - self._num_chunked if decoding else self._most_alone()
        rows: list[Row] = []
        for seq in seqs:
            if budget == 0:
                break
            rows.append(self.rows.row(seq, self.states.clip(seq, min(seq.remaining, budget))))
            budget -= len(rows[-1].tokens)
        return rows

    def _end_chunk(self) -> None:
        """Everybody who decodes is owed a step, unless other prompts can use what is left of the budget."""
        waiting = len(self.running.to_prefill) and not self.running.suspects
        if not (waiting and self._num_chunked < self.budget.tokens()):
            self._owe_steps()

    def _owe_steps(self) -> None:
        """For the prompt tokens since the last time; nothing where there were none."""
        if self._num_chunked:
            self.running.to_decode.owe_all()
            if self._computed[0]:
                self.budget.observe(*self._computed)
            self._num_chunked, self._computed = 0, (0, 0.0)

    def _most_alone(self) -> int:
        """Prompt tokens in a step while nobody decodes."""
        most = self.config.max_step_tokens
        return most if self.hurry is None else min(most, LONE_CHUNKS * self.budget.tokens())

    def _decode_rows(self, seqs: list[Sequence]) -> list[Row]:
        """Everyone of one adapter stack takes a step. When the pool is dry drafts go, then the worst runner."""
        if not seqs:
            return []
        drafts = self.rows.drafts(seqs)
        growing = self.rows.growing(seqs, drafts)
        if drafts and sum(growing.values()) > self.pool.num_free:
            drafts = {}
            growing = self.rows.growing(seqs, drafts)
        while sum(growing.values()) > self.pool.num_free:
            victim = victim_of_growth(growing, self.running, self.pool)
            growing.pop(victim, None)
            stays = min(growing or (seq for seq in self.running if seq is not victim), key=lambda seq: seq.rank)
            self._preempt(victim, "growth", stays)
            seqs = [seq for seq in seqs if seq is not victim]
        if not seqs:
            return self._next_rows()
        return [self.rows.row(seq, 1, drafts.get(seq, ())) for seq in seqs]

    def _start(self, head: Sequence, plan: AdmissionPlan) -> None:
        """A head whose snapshot is of no use stays in line, to be planned again without it."""
        try:
            self.ledger.start(head, plan)
        except InvariantViolation:
            raise
        except SnapshotUnusable:
            self.num_unusable_snapshots += 1
        except Exception as error:  # an engine that cannot hold its state costs this one request
            self.ledger.finish(head, "error", f"{type(error).__name__}: {error}")

    def _headroom(self) -> int:
        return ceil(self.config.watermark * self.pool.capacity) if len(self.running) else 0

    def _preempt(self, victim: Sequence, cause: Literal["admission", "growth"], beneficiary: Sequence) -> None:
        self._num_preempted += 1
        self.ledger.preempt(victim, cause, beneficiary)

    def _count_turn(self, rows: list[Row]) -> None:
        first = rows[0].sequence
        if first.suspect:
            return  # nobody's turn: the others are owed what they were owed before
        if first.prefilling:
            self.running.to_prefill.served([row.sequence for row in rows])
        else:
            self.running.to_decode.served(first.request.lane.adapters)

    def _launch(self, rows: list[Row]) -> Step:
        self._count_turn(rows)
        self.num_steps += 1
        adapters = rows[0].sequence.request.lane.adapters
        self.pool.count_traffic([(row.start, row.start + len(row.tokens)) for row in rows])
        step = Step(self.num_steps, adapters, tuple(rows), self._num_preempted, self.clock.now())
        self.in_flight, self._num_preempted = step, 0
        return step

    def commit(self, step: Step, outcome: Outcome) -> list[Rollback]:
        """Make a step's outcome true. One that is not in flight, because it comes late or twice, changes nothing.

        Returns the slots whose content does not count after all.
        """
        if step is not self.in_flight:
            self.num_stale_commits += 1
            return []
        self.in_flight = None
        was_chunk = step.rows[0].sequence.prefilling
        if was_chunk and isinstance(outcome, StepOutcome):
            num_tokens, seconds = self._computed
            self._computed = (num_tokens + step.num_tokens, seconds + self.clock.now() - step.started_at)
        elif self.hurry is not None and isinstance(outcome, StepOutcome):
            self.hurry.observe(self.clock.now() - step.started_at)
        rollbacks = self.ledger.settle(step, outcome)
        if was_chunk:
            self._num_chunked += step.num_tokens
            self._end_chunk()
        return rollbacks

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Refused when it could never run here."""
        self.check(request)
        self.ledger.enqueue(self.intake.receive(request))

    def check(self, request: Request) -> None:
        """Raises Refused for what `submit` would not take."""
        if request.request_id in self.ledger.live:
            raise InvalidRequest("request_id", f"{request.request_id!r} is already live")
        self.intake.check(request)

    def end(self, request_id: str, reason: FinishReason, detail: str = "") -> bool:
        """End a request now, wherever it is. False if there is no such request any more."""
        if reason not in get_args(FinishReason):
            raise ValueError(f"reason must be one of {get_args(FinishReason)}, got {reason!r}")
        seq = self.ledger.live.get(request_id)
        return seq is not None and self.ledger.finish(seq, reason, detail)

    def set_aside(self, request_id: str, beneficiary: str) -> bool:
        """Let it wait beside the line, from the next step on. False if it is not there, or is aside already."""
        seq = self.ledger.live.get(request_id)
        if seq is None or seq.aside_for is not None:
            return False
        self.ledger.set_aside(seq, beneficiary)
        return True

    def call_back(self, request_id: str) -> bool:
        """False if it is not aside."""
        seq = self.ledger.live.get(request_id)
        if seq is None or seq.aside_for is None:
            return False
        self.ledger.call_back(seq)
        return True

    def expire(self) -> None:
        """End whatever is past its deadline, without spending another token on it."""
        now = self.clock.now()
        while (seq := self.ledger.deadlines.peek()) is not None:
            if seq.deadline is None or seq.deadline > now:
                return
            self.ledger.finish(seq, "deadline", f"{now - seq.deadline:.3f} s past its deadline")

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self.ledger.events = self.ledger.events, []
        return events
