"""What must hold of a scheduler and its pool after every event, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Literal

from bench.simulation.place import place_of
from kvpool import AdmissionPlan, BlockPool
from octet.identity import Lane
from octet.mishap import words_of
from specialist.engines.sim import SimEngine, SimModel
from specialist.events import Admitted, Emitted, Event, Finished
from specialist.request import Request
from specialist.scheduler import Scheduler
from specialist.sequence import Sequence
from specialist.states import Hybrid
from specialist.step import Step

ERRORS_ON_PURPOSE = (
    "injected",
    "asked for",
    "the engine did not complete the step",
    f"PoolExhausted: {words_of('pool.apply')}",
)


class LawBroken(AssertionError):
    pass


def require(holds: bool, law: str, *about: object) -> None:
    if not holds:
        raise LawBroken(f"{law}: {about}")


def owner_of(seq: Sequence) -> tuple[Lane, bytes]:
    return seq.request.lane, seq.request.tenant_salt


class Laws:
    """Watches a scheduler from outside: its events, its steps, and the two moves that must not go wrong."""

    def __init__(self, scheduler: Scheduler, engine: SimEngine, model: SimModel) -> None:
        self.scheduler = scheduler
        self.pool: BlockPool = scheduler.pool
        self.memory = engine.memory
        self.model = model
        self.answers: dict[str, tuple[int, ...]] = {}
        self.emitted: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self._places: dict[str, tuple[float, ...]] = {}
        self._writers: dict[int, tuple[Lane, bytes]] = {}
        self._passed_over: dict[Sequence, int] = {}
        self._owed: set[Sequence] = set()
        self._could_decode: set[Sequence] = set()
        self._chunk_taken = False
        self._num_chunked = 0
        """Prompt tokens while somebody who can decode waits for a step."""
        self._to_leave: set[Sequence] = set()
        """Set aside since the last step was assembled."""
        self._watch_moves()

    def submitted(self, request: Request) -> None:
        capacity = self.pool.capacity * self.pool.block_size
        self.answers[request.request_id] = self.model.answer(request, capacity - len(request.prompt))
        self.emitted[request.request_id] = []
        self._places[request.request_id] = place_of(request, len(self._places))

    def after_event(self, events: list[Event]) -> None:
        for event in events:
            self._check_event(event)
        self.pool.check()
        self._check_queue()
        self._check_sequences()
        self._check_in_flight()
        self._check_snapshots()
        self._note_who_could_decode()
        self._check_cached_content()

    def set_aside(self, seq: Sequence) -> None:
        self._to_leave.add(seq)

    def assembled(self, step: Step) -> None:
        self._to_leave.clear()
        require(not any(row.sequence.aside_for for row in step.rows), "nobody runs who is set aside")
        require(all(row.sequence.request.lane.adapters == step.adapters for row in step.rows), "one adapter a batch")
        require(len({row.sequence for row in step.rows}) == len(step.rows), "one row a sequence")
        for row in step.rows:
            self._check_time(row.sequence, step.started_at)
            require(row.stop <= row.table.num_slots, "a row has its slots", row)
            for block_id in row.table.block_ids[row.start // self.pool.block_size :]:
                self._writers[block_id] = owner_of(row.sequence)
        self._check_turns(step)

    def _check_time(self, seq: Sequence, now: float) -> None:
        deadline, first = seq.request.deadline, seq.request.first_deadline
        require(deadline is None or deadline > now, "no work past the deadline", seq)
        is_early = first is None or first > now or len(seq.chain) > len(seq.request.prompt)
        require(is_early, "no work past the deadline of the first token", seq)

    def at_rest(self) -> None:
        """Nothing is live any more."""
        require(self.finished.keys() == self.answers.keys(), "exactly one terminal state a request")
        require(self.pool.num_free == self.pool.capacity and not self.pool.tables, "all blocks come back")
        require(not len(self.scheduler.waiting) and not len(self.scheduler.running), "nobody is left behind")
        require(not self.scheduler.ledger.aside, "nobody is left aside")

    def _check_event(self, event: Event) -> None:
        if isinstance(event, Emitted):
            require(event.request_id not in self.finished, "no token after the end", event)
            self.emitted[event.request_id].extend(event.tokens)
            said = tuple(self.emitted[event.request_id])
            require(said == self.answers[event.request_id][: len(said)], "the right answer", event, said)
        elif isinstance(event, Finished):
            require(event.request_id not in self.finished, "exactly one terminal state a request", event)
            self.finished[event.request_id] = event.reason
            if event.reason in ("stop", "length"):
                said = tuple(self.emitted[event.request_id])
                require(said == self.answers[event.request_id], "the whole answer", event, said)
            if event.reason == "error":
                require(event.detail in ERRORS_ON_PURPOSE, "errors only on purpose", event)
        elif isinstance(event, Admitted):
            require(event.num_hit_tokens < event.num_tokens, "a hit never covers the last token", event)

    def _check_queue(self) -> None:
        require(self.scheduler.waiting.peek() is self._first_in_line(), "the first in line is seen first")

    def _first_in_line(self) -> Sequence | None:
        return min(self.scheduler.waiting, key=self._place, default=None)

    def _check_sequences(self) -> None:
        for request_id, seq in self.scheduler.ledger.live.items():
            require(seq.request.request_id == request_id, "filed under its own id")
            require(seq.num_tokens == len(seq.chain), "three integers tell the truth", seq)
            require(0 <= seq.num_computed <= seq.num_tokens, "three integers are ordered", seq)
            self._check_place(seq)
            require(seq.num_scheduled == 0 or self.scheduler.in_flight is not None, "scheduled means in flight", seq)
            if seq.state is not None and self.scheduler.in_flight is None:
                require(seq.state.num_tokens == seq.num_computed, "the state stands where the blocks do", seq)

    def _check_place(self, seq: Sequence) -> None:
        running, waiting, aside = (
            seq in place for place in (self.scheduler.running, self.scheduler.waiting, self.scheduler.ledger.aside)
        )
        require(running + waiting + aside == 1 or (running and aside), "waiting, running or aside", seq)
        require(not (running and aside) or seq in self._to_leave, "whoever is set aside leaves with the next step", seq)
        require(aside == (seq.aside_for is not None), "aside for somebody", seq)
        require((seq.table is None) == (not running), "blocks if and only if running", seq)

    def _check_in_flight(self) -> None:
        for row in self.scheduler.in_flight.rows if self.scheduler.in_flight else ():
            require(not row.table.released, "no block comes free while a step writes to it", row)

    def _check_snapshots(self) -> None:
        states = self.scheduler.states
        if isinstance(states, Hybrid):
            saved = [seq.saved for seq in self.scheduler.ledger.live.values() if seq.saved is not None]
            held = sum(snapshot.nbytes for snapshot in (*states.snapshots.values(), *saved))
            require(held == states.num_snapshot_bytes <= states.max_snapshot_bytes, "snapshots stay in their bounds")

    def _check_cached_content(self) -> None:
        """What can be found has been written; what nobody can find is poisoned, so that reading it shows."""
        for block in self.pool.blocks:
            if block.key is not None:
                require(None not in self.memory.read_block(block.block_id), "only computed blocks are cached", block)
            elif block.ref_count == 0:
                self.memory.poison(block.block_id)

    def _check_turns(self, step: Step) -> None:
        served = {row.sequence for row in step.rows}
        chunk = any(row.sequence.num_tokens - row.start > 1 for row in step.rows)
        self._check_owed(chunk, served, step.num_tokens)
        if any(seq.suspect for seq in served):
            require(len(served) == 1, "a suspect runs alone")
            return
        if chunk and any(not seq.prefilling and not seq.suspect for seq in self.scheduler.running):
            require(step.num_tokens <= self.scheduler.budget.tokens(), "a chunk stays in its budget")
        self._check_starvation(chunk, served)

    def _check_owed(self, chunk: bool, served: set[Sequence], num_tokens: int) -> None:
        """Whoever can decode after a chunk of prompt waits for no more than a budget of them, that chunk included."""
        owed = self._could_decode if self._chunk_taken else self._owed
        self._owed = {seq for seq in owed if seq in self.scheduler.running and not (seq.suspect or seq.prefilling)}
        self._owed -= served
        if chunk:
            self._num_chunked = num_tokens + (self._num_chunked if self._owed else 0)
            enough = self._num_chunked <= self.scheduler.budget.tokens()
            require(enough or not self._owed, "decode is not starved by prefill", self._owed)
        self._chunk_taken = chunk

    def _note_who_could_decode(self) -> None:
        if self.scheduler.in_flight is None:
            self._could_decode = {s for s in self.scheduler.running if not s.prefilling and not s.suspect}

    def _check_starvation(self, chunk: bool, served: set[Sequence]) -> None:
        """Where the first of a stack's prompts has a deadline they go by place alone, and none of them is passed."""
        config = self.scheduler.config
        bound = config.age_bound + config.max_running
        hurried = self._hurried(served) if chunk else None
        for seq in self.scheduler.running:
            if seq in served or (seq.prefilling and seq.request.lane.adapters == hurried):
                self._passed_over[seq] = 0
            elif seq.prefilling == chunk:
                self._passed_over[seq] = self._passed_over.get(seq, 0) + 1
                require(self._passed_over[seq] <= bound, "nobody is passed over for long", seq)
        self._passed_over = {seq: self._passed_over.get(seq, 0) for seq in self.scheduler.running}

    def _watch_moves(self) -> None:
        ledger = self.scheduler.ledger
        ledger.start = self._watched_start(ledger.start)  # type: ignore[method-assign, assignment]
        ledger.preempt = self._watched_preempt(ledger.preempt)  # type: ignore[method-assign, assignment]
        ledger.clear_seats = self._watched_clearing(ledger.clear_seats)  # type: ignore[method-assign]

    def _watched_start(
        self, start: Callable[[Sequence, AdmissionPlan], None]
    ) -> Callable[[Sequence, AdmissionPlan], None]:
        def watched(seq: Sequence, plan: AdmissionPlan) -> None:
            others = len(self.scheduler.running)
            require(seq is self._first_in_line(), "only the first in line enters", seq)
            for block in plan.hit:
                require(self._writers[block.block_id] == owner_of(seq), "no block crosses lanes or tenants", seq)
            start(seq, plan)
            require(seq.num_computed < seq.num_tokens, "a hit never covers the last token", seq)
            require(others < self.scheduler.config.max_running, "nobody enters without a seat")
            slots = min(seq.num_tokens + 1 + seq.draft_window, self.pool.capacity * self.pool.block_size)
            require(seq.table is not None and seq.table.num_slots >= slots, "all it needs is reserved", seq)
            if others:
                reserve = ceil(self.scheduler.config.watermark * self.pool.capacity)
                require(self.pool.num_free >= reserve, "the watermark stays free", seq)

        return watched

    def _watched_preempt(
        self, preempt: Callable[[Sequence, Literal["admission", "growth"], Sequence], None]
    ) -> Callable[[Sequence, Literal["admission", "growth"], Sequence], None]:
        def watched(victim: Sequence, cause: Literal["admission", "growth"], beneficiary: Sequence) -> None:
            require(len(self.scheduler.running) > 1, "never the only runner", victim)
            if cause == "admission":
                above, below = beneficiary.request.priority, victim.request.priority
                require(below < above, "only for a strictly higher priority", victim, beneficiary)
            else:
                above, below = beneficiary.request.priority, victim.request.priority
                require(below <= above, "nobody grows at the cost of a higher priority", victim, beneficiary)
            for seq in self.scheduler.running:
                if seq.request.priority < victim.request.priority:
                    require(not self._would_help(seq, beneficiary), "the lowest priority first", victim, seq)
            before = self.pool.num_free
            gives_up = cause == "growth" and victim.num_tokens > victim.running_table().num_slots
            preempt(victim, cause, beneficiary)
            self._could_decode.discard(victim)
            self._owed.discard(victim)
            self._passed_over.pop(victim, None)  # where it has a seat again before the next step, it begins anew
            require(gives_up or self.pool.num_free > before, "a victim's blocks come free", victim)

        return watched

    def _watched_clearing(self, clear_seats: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            require(self.scheduler.in_flight is None, "nobody leaves a seat that a step writes to")
            leaving = [seq for seq in self.scheduler.running if seq.aside_for is not None]
            clear_seats()
            require(not any(seq in self.scheduler.running for seq in leaving), "seats are cleared")
            self._could_decode.difference_update(leaving)
            self._owed.difference_update(leaving)

        return watched

    def _would_help(self, seq: Sequence, beneficiary: Sequence) -> bool:
        """Whether preempting `seq` would free a block that the beneficiary does not want to share anyway."""
        if seq.table is None:
            return False
        wanted = set(beneficiary.chain.keys(beneficiary.num_tokens // self.pool.block_size))
        blocks = [self.pool.blocks[block_id] for block_id in seq.table.block_ids]
        return any(block.ref_count == 1 and block.key not in wanted for block in blocks)

    def _hurried(self, served: set[Sequence]) -> tuple[str, ...] | None:
        """The stack of this chunk, where it goes by place."""
        stack = next(iter(served)).request.lane.adapters
        prompts = [s for s in self.scheduler.running if s.prefilling and not s.suspect]
        line = sorted((s for s in prompts if s.request.lane.adapters == stack), key=self._place)
        first = line[0].request
        if first.deadline is None and first.first_deadline is None:
            return None
        require(set(line[: len(served)]) == served, "whoever is in a greater hurry is not overtaken", line[0])
        return stack

    def _place(self, seq: Sequence) -> tuple[float, ...]:
        return self._places[seq.request.request_id]
