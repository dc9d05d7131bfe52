"""What must hold for a scheduler and its pool after every event."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Literal

from kvpool import AdmissionPlan, BlockKey, BlockPool
from octet.fault_points import fault_message
from octet.identity import Lane
from specialist.engines.sim.engine import SimEngine, SimHostMemory, SimModel
from specialist.scheduling.ledger import Hybrid
from specialist.scheduling.scheduler import Scheduler
from specialist.scheduling.sequence import Request, Sequence
from specialist.scheduling.step import Admitted, Emitted, Event, Finished, Step

LONGEST = 30.0
"""Seconds after which no later request of equal priority may overtake, whatever its deadline."""


def place_of(request: Request, index: int) -> tuple[float, ...]:
    """Return the sort key of a request: priority, due time, arrival, order of submission. The request with the smallest
    key is served first."""
    due = request.arrival + LONGEST
    for deadline in (request.deadline, request.first_deadline):
        if deadline is not None and deadline < due:
            due = deadline
    return (-request.priority, due, request.arrival, index)


ERRORS_ON_PURPOSE = (
    "injected",
    "asked for",
    "the engine did not complete the step",
    f"PoolExhausted: {fault_message('pool.apply')}",
)


class LawBroken(AssertionError):
    pass


def require(holds: bool, law: str, *about: object) -> None:
    if not holds:
        raise LawBroken(f"{law}: {about}")


def owner_of(seq: Sequence) -> tuple[Lane, bytes]:
    return seq.request.lane, seq.request.tenant_salt


class Laws:
    """Watches a scheduler from outside: its events, its steps, and every start and preemption of a sequence."""

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
        """Prompt tokens computed while a request that could decode waited for a step."""
        self._to_leave: set[Sequence] = set()
        """Sequences suspended since the last step was assembled."""
        self._contents: dict[BlockKey, tuple[int | None, ...]] = {}
        """The content of every block that was cached, if there is a host tier."""
        self._owners: dict[BlockKey, tuple[Lane, bytes]] = {}
        """The owner of each of them."""
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
        self._note_decodable()
        self._check_cached_content()

    def suspend(self, seq: Sequence) -> None:
        self._to_leave.add(seq)

    def assembled(self, step: Step) -> None:
        self._to_leave.clear()
        require(not any(row.sequence.suspended_for for row in step.rows), "no suspended request runs")
        require(
            all(row.sequence.request.lane.adapters == step.adapters for row in step.rows),
            "a batch has one adapter stack",
        )
        require(len({row.sequence for row in step.rows}) == len(step.rows), "a batch has one row for each sequence")
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
        """Check that nothing is left once all requests have ended."""
        require(self.finished.keys() == self.answers.keys(), "a request has exactly one terminal state")
        require(self.pool.num_free == self.pool.capacity and not self.pool.tables, "all blocks are free at the end")
        require(not len(self.scheduler.waiting) and not len(self.scheduler.running), "no request is left behind")
        require(not self.scheduler.ledger.suspended, "no request is left suspended")

    def _check_event(self, event: Event) -> None:
        if isinstance(event, Emitted):
            require(event.request_id not in self.finished, "no token after the end", event)
            self.emitted[event.request_id].extend(event.tokens)
            said = tuple(self.emitted[event.request_id])
            require(said == self.answers[event.request_id][: len(said)], "the tokens are correct", event, said)
        elif isinstance(event, Finished):
            require(event.request_id not in self.finished, "a request has exactly one terminal state", event)
            self.finished[event.request_id] = event.reason
            if event.reason in ("stop", "length"):
                said = tuple(self.emitted[event.request_id])
                require(said == self.answers[event.request_id], "the answer is complete", event, said)
            if event.reason == "error":
                require(event.detail in ERRORS_ON_PURPOSE, "only expected errors end a request", event)
        elif isinstance(event, Admitted):
            require(event.num_hit_tokens < event.num_tokens, "a hit never covers the last token", event)

    def _check_queue(self) -> None:
        require(self.scheduler.waiting.peek() is self._first_in_line(), "the queue's head has the best rank")

    def _first_in_line(self) -> Sequence | None:
        return min(self.scheduler.waiting, key=self._place, default=None)

    def _check_sequences(self) -> None:
        in_flight = self.scheduler.in_flight is not None
        for request_id, seq in self.scheduler.ledger.live.items():
            if seq.request.request_id != request_id:
                require(False, "a sequence is filed under its own id")
            num_tokens = seq.num_tokens
            if not (num_tokens == len(seq.chain) and 0 <= seq.num_computed <= num_tokens):
                require(num_tokens == len(seq.chain), "the token count equals the length of the chain", seq)
                require(False, "token counts are ordered", seq)
            self._check_place(seq)
            if not in_flight:
                require(seq.num_scheduled == 0, "tokens are scheduled only while a step is in flight", seq)
                if seq.state is not None:
                    require(
                        seq.state.num_tokens == seq.num_computed, "the recurrent state covers the computed tokens", seq
                    )

    def _check_place(self, seq: Sequence) -> None:
        scheduler = self.scheduler
        running, waiting, aside = seq in scheduler.running, seq in scheduler.waiting, seq in scheduler.ledger.suspended
        if running + waiting + aside != 1:
            require(running and aside, "a live request is waiting, running or suspended", seq)
            require(seq in self._to_leave, "a suspended request leaves with the next step", seq)
        if aside != (seq.suspended_for is not None):
            require(False, "a suspended request names the request that it was suspended for", seq)
        if (seq.table is None) == running:
            require(False, "a request holds blocks if and only if it runs", seq)

    def _check_in_flight(self) -> None:
        for row in self.scheduler.in_flight.rows if self.scheduler.in_flight else ():
            require(not row.table.released, "no block comes free while a step writes to it", row)

    def _check_snapshots(self) -> None:
        states = self.scheduler.states
        if isinstance(states, Hybrid):
            saved = [seq.saved for seq in self.scheduler.ledger.live.values() if seq.saved is not None]
            held = sum(snapshot.nbytes for snapshot in (*states.snapshots.values(), *saved))
            require(
                held == states.num_snapshot_bytes <= states.max_snapshot_bytes, "snapshots stay within their bounds"
            )

    def _check_cached_content(self) -> None:
        """Check that cached blocks were written. Poison the blocks that are neither held nor cached, so that reading
        them would change an answer. Blocks that wait for a copy have another content until then."""
        is_written, poison, host = self.memory.is_written, self.memory.poison, self.pool.host
        waiting = set() if host is None else {*host.to_spill.values(), *host.to_restore}
        for block in self.pool.blocks:
            if block.block_id in waiting:
                continue
            if block.key is not None:
                if not is_written(block.block_id):
                    require(False, "only computed blocks are cached", block)
                if host is not None:
                    self._check_content(block.key, self.memory.read_block(block.block_id))
                    self._owners.setdefault(block.key, self._writers[block.block_id])
            elif block.ref_count == 0:
                poison(block.block_id)
        if host is not None and isinstance(store := host._store, SimHostMemory):
            for key, found in host.blocks.items():
                if found.place not in host.to_spill:
                    self._check_content(key, store.places[found.place])

    def _check_content(self, key: BlockKey, content: tuple[int | None, ...]) -> None:
        require(self._contents.setdefault(key, content) == content, "a key always has the same content", key)

    def _check_turns(self, step: Step) -> None:
        served = {row.sequence for row in step.rows}
        chunk = any(row.sequence.num_tokens - row.start > 1 for row in step.rows)
        self._check_owed(chunk, served, step.num_tokens)
        if any(seq.suspect for seq in served):
            require(len(served) == 1, "a suspect runs alone")
            return
        if chunk and any(not seq.prefilling and not seq.suspect for seq in self.scheduler.running):
            require(step.num_tokens <= self.scheduler.budget.tokens(), "a chunk stays within its budget")
        self._check_starvation(chunk, served)

    def _check_owed(self, chunk: bool, served: set[Sequence], num_tokens: int) -> None:
        """Check that prefill does not starve decode: while a request that can decode waits, at most one chunk budget of
        prompt tokens is computed."""
        owed = self._could_decode if self._chunk_taken else self._owed
        self._owed = {seq for seq in owed if seq in self.scheduler.running and not (seq.suspect or seq.prefilling)}
        self._owed -= served
        if chunk:
            self._num_chunked = num_tokens + (self._num_chunked if self._owed else 0)
            enough = self._num_chunked <= self.scheduler.budget.tokens()
            require(enough or not self._owed, "decode is not starved by prefill", self._owed)
        self._chunk_taken = chunk

    def _note_decodable(self) -> None:
        if self.scheduler.in_flight is None:
            self._could_decode = {s for s in self.scheduler.running if not s.prefilling and not s.suspect}

    def _check_starvation(self, chunk: bool, served: set[Sequence]) -> None:
        """Check that no running request is passed over too often. Prompts of the adapter stack that `_hurried` returns
        are exempt, because they run in rank order."""
        config = self.scheduler.config
        bound = config.age_bound + config.max_running
        hurried = self._hurried(served) if chunk else None
        for seq in self.scheduler.running:
            if seq in served or (seq.prefilling and seq.request.lane.adapters == hurried):
                self._passed_over[seq] = 0
            elif seq.prefilling == chunk:
                self._passed_over[seq] = self._passed_over.get(seq, 0) + 1
                require(self._passed_over[seq] <= bound, "no request is passed over for long", seq)
        self._passed_over = {seq: self._passed_over.get(seq, 0) for seq in self.scheduler.running}

    def _watch_moves(self) -> None:
        ledger = self.scheduler.ledger
        ledger.start = self._watched_start(ledger.start)  # type: ignore[method-assign, assignment]
        ledger.preempt = self._watched_preempt(ledger.preempt)  # type: ignore[method-assign, assignment]
        ledger.preempt_suspended = self._watched_clearing(ledger.preempt_suspended)  # type: ignore[method-assign]

    def _watched_start(
        self, start: Callable[[Sequence, AdmissionPlan], None]
    ) -> Callable[[Sequence, AdmissionPlan], None]:
        def watched(seq: Sequence, plan: AdmissionPlan) -> None:
            others = len(self.scheduler.running)
            require(seq is self._first_in_line(), "only the head of the queue is admitted", seq)
            for block in plan.hit:
                require(self._writers[block.block_id] == owner_of(seq), "no block crosses lanes or tenants", seq)
            for found in plan.restored:
                require(self._owners[found.key] == owner_of(seq), "no block crosses lanes or tenants", seq)
            start(seq, plan)
            if plan.restored and seq.table is not None:
                for block_id in seq.table.block_ids[len(plan.hit) : plan.num_hit]:
                    self._writers[block_id] = owner_of(seq)
            require(seq.num_computed < seq.num_tokens, "a hit never covers the last token", seq)
            require(others < self.scheduler.config.max_running, "no request enters without a slot")
            window = max(1, min(1 + seq.draft_window, seq.max_total_tokens - seq.num_tokens))
            slots = min(seq.num_tokens + window, self.pool.capacity * self.pool.block_size)
            require(
                seq.table is not None and seq.table.num_slots >= slots,
                "an admission reserves every slot that it needs",
                seq,
            )
            if others:
                reserve = ceil(self.scheduler.config.watermark * self.pool.capacity)
                require(self.pool.num_free >= reserve, "the watermark stays free", seq)

        return watched

    def _watched_preempt(
        self, preempt: Callable[[Sequence, Literal["admission", "growth"], Sequence], None]
    ) -> Callable[[Sequence, Literal["admission", "growth"], Sequence], None]:
        def watched(victim: Sequence, cause: Literal["admission", "growth"], beneficiary: Sequence) -> None:
            require(len(self.scheduler.running) > 1, "the only running request is never preempted", victim)
            if cause == "admission":
                above, below = beneficiary.request.priority, victim.request.priority
                require(below < above, "only a strictly higher priority preempts a request", victim, beneficiary)
            else:
                above, below = beneficiary.request.priority, victim.request.priority
                require(below <= above, "no request grows at the cost of a higher priority", victim, beneficiary)
            for seq in self.scheduler.running:
                if seq.request.priority < victim.request.priority:
                    require(
                        not self._would_help(seq, beneficiary), "the lowest priority is preempted first", victim, seq
                    )
            before = self.pool.num_free
            gives_up = cause == "growth" and victim.num_tokens > victim.running_table().num_slots
            preempt(victim, cause, beneficiary)
            self._could_decode.discard(victim)
            self._owed.discard(victim)
            self._passed_over.pop(victim, None)  # Counting starts again if the victim runs again before the next step.
            require(gives_up or self.pool.num_free > before, "preemption frees the victim's blocks", victim)

        return watched

    def _watched_clearing(self, preempt_suspended: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            require(self.scheduler.in_flight is None, "no request leaves a slot that a step writes to")
            leaving = [seq for seq in self.scheduler.running if seq.suspended_for is not None]
            preempt_suspended()
            require(not any(seq in self.scheduler.running for seq in leaving), "suspended requests leave their slots")
            self._could_decode.difference_update(leaving)
            self._owed.difference_update(leaving)

        return watched

    def _would_help(self, seq: Sequence, beneficiary: Sequence) -> bool:
        """Return whether preempting `seq` would free a block. Blocks that `beneficiary` would share do not count."""
        if seq.table is None:
            return False
        wanted = set(beneficiary.chain.keys(beneficiary.num_tokens // self.pool.block_size))
        blocks = [self.pool.blocks[block_id] for block_id in seq.table.block_ids]
        return any(block.ref_count == 1 and block.key not in wanted for block in blocks)

    def _hurried(self, served: set[Sequence]) -> tuple[str, ...] | None:
        """If the most urgent prompt of the chunk's adapter stack has a deadline, check that the chunk serves the most
        urgent prompts of that stack, and return the stack. Otherwise return None."""
        stack = next(iter(served)).request.lane.adapters
        prompts = [s for s in self.scheduler.running if s.prefilling and not s.suspect]
        line = sorted((s for s in prompts if s.request.lane.adapters == stack), key=self._place)
        first = line[0].request
        if first.deadline is None and first.first_deadline is None:
            return None
        require(set(line[: len(served)]) == served, "a more urgent request is not overtaken", line[0])
        return stack

    def _place(self, seq: Sequence) -> tuple[float, ...]:
        return self._places[seq.request.request_id]
