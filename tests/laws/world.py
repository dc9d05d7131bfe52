"""A replica under random traffic, faults and interruptions. The same seed gives the same history."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import get_args

from kvpool import BlockCopy, BlockPool, HostCache
from octet.clock import ManualClock
from specialist.engines.base import EngineFault
from specialist.engines.sim.engine import (
    CostModel,
    FaultKind,
    InjectedFault,
    SimEngine,
    SimHostMemory,
    SimMemory,
    SimModel,
    SimSnapshot,
    SimState,
)
from specialist.scheduling.copied_text import LaneTexts
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.ledger import Hybrid, PureAttention
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import FinishReason, PromptTooLarge
from specialist.scheduling.step import Event, Finished, FixedBudget, Proposer, Step, TimedBudget
from tests.laws.copies import CopyLaws
from tests.laws.oracle import EagerProposer, ModelProposer, OracleProposer
from tests.laws.scenario import BARE, Callers, Setup
from tests.laws.small_model import check_followers, small_model
from tests.simulation.laws.scheduler import LawBroken, Laws, require

ENDS: tuple[FinishReason, ...] = ("cancelled", "cancelled", "error")
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.setup = setup = Setup.draw(self.rng)
        self.clock = ManualClock()
        copies = seed % 5 == 4  # two tokens: texts repeat themselves, so that drafts can be copied from them
        self.lane_texts = LaneTexts(most_bytes=1 << 16) if seed % 5 == 3 else None
        self.small: DraftModel | None = None
        self.model = SimModel(2 if copies else 97, hybrid=setup.hybrid)
        self.callers = Callers(self.rng, self.model.vocab_size, alike=self.lane_texts is not None)
        self.proposer = OracleProposer(self.rng, self.model)
        self.fault_rate = setup.fault_rate
        if seed % 5 == 1:
            self.small = small_model(
                self.model,
                self.clock,
                num_blocks=self.rng.choice((2, 9, 40)),
                block_size=setup.block_size,
                errs=5,
                faults=self._fault,
                prefix_cache=setup.prefix_cache,
            )
        self.engine = SimEngine(
            self.model,
            CostModel(),
            self.clock,
            num_blocks=setup.num_blocks,
            block_size=setup.block_size,
            faults=self._fault,
        )
        self.host = self._host() if seed % 7 in (1, 3, 4) and setup.prefix_cache and not setup.hybrid else None
        self.pool = BlockPool(setup.num_blocks, setup.block_size, prefix_cache=setup.prefix_cache, host=self.host)
        self.states = Hybrid(self.pool, self._new_state, 80) if setup.hybrid else PureAttention(self.pool)
        self.suspends = seed % 4 == 0
        self.scheduler = self._scheduler()
        self.loop = StepLoop(self.scheduler, self.engine)
        self.laws = Laws(self.scheduler, self.engine, self.model)
        self.copies = CopyLaws() if copies or self.lane_texts is not None else None
        self.log: list[tuple[float, str, list[Event]]] = []

    def run(self, num_events: int) -> "World":
        """Run this many events, then let all requests end. Raises LawBroken for the first broken law."""
        try:
            for _ in range(num_events):
                self._event()
            self._settle()
        except Exception as error:
            raise LawBroken(f"seed {self.seed}, event {len(self.log) + 1}: {error}") from error
        return self

    def history(self) -> bytes:
        lines = (f"{at:.6f} {what} {events}" for at, what, events in self.log)
        return "\n".join((repr(self.setup), *lines)).encode()

    def _event(self) -> None:
        roll = self.rng.random()
        if self.suspends and self.rng.random() < 0.1:
            self._suspend_or_resume()
        elif roll < 0.22:
            self._submit()
        elif roll < 0.90:
            self._step(interrupted=self.rng.random() < 0.08)
        elif roll < 0.95:
            self._end_one()
        elif roll < 0.97:
            self._spoil_a_snapshot()
        else:
            self.clock.sleep(self.rng.uniform(0.0, 0.05))
            self.scheduler.expire()
            self._observe("wait")

    def _suspend_or_resume(self) -> None:
        live = list(self.scheduler.ledger.live)
        if not live:
            self._observe("no sequence to suspend")
            return
        request_id = self.rng.choice(live)
        seq = self.scheduler.ledger.live[request_id]
        if seq.suspended_for is not None:
            require(self.scheduler.resume(request_id), "a suspended request can be resumed", seq)
            require(not self.scheduler.resume(request_id), "no request is resumed twice", seq)
            self._observe(f"resume {request_id}")
            return
        require(self.scheduler.suspend(request_id, "another"), "a live request can be suspended", seq)
        self.laws.suspend(seq)
        self._observe(f"suspend {request_id}")

    def _settle(self) -> None:
        self.fault_rate = 0.0
        for seq in list(self.scheduler.ledger.suspended):
            self.scheduler.resume(seq.request.request_id)
        for _ in range(5000):
            if not self.scheduler.ledger.live:
                break
            ran = self._step(interrupted=False)
            require(ran or not self.scheduler.ledger.live, "a live request can run")
        self.laws.at_rest()

    def _submit(self) -> None:
        if len(self.scheduler.ledger.live) > 24:
            self._step(interrupted=False)
            return
        request = self.callers.request(self.clock.now())
        fits = self.pool.blocks_for(len(request.prompt) + 1) <= self.pool.capacity
        try:
            self.scheduler.submit(request)
        except PromptTooLarge:
            require(not fits, "only a request that never fits is refused", request)
            self._observe(f"refuse {request.request_id}")
            return
        require(fits, "a request that never fits is refused", request)
        self.laws.submitted(request)
        if self.copies is not None:
            self.copies.submitted(self.scheduler.ledger.live[request.request_id])
        self.proposer.learn(request, self.laws.answers[request.request_id])
        self._observe(f"submit {request.request_id}")

    def _step(self, *, interrupted: bool) -> bool:
        """Run a step. Return False if there was none. If `interrupted`, some requests of the step end while it runs."""
        step = self.scheduler.assemble_step()
        if step is None:
            self._observe("idle")
            return False
        self.laws.assembled(step)
        if self.copies is not None:
            self.copies.assembled(step)
        if interrupted:
            for row in step.rows:
                if self.rng.random() < 0.4:
                    self.scheduler.end(row.sequence.request.request_id, "cancelled")
            self._end_one()
            if self.suspends:
                self._suspend_or_resume()
        self.loop.run(step)
        self._observe(self._describe(step))
        return True

    def _end_one(self) -> None:
        live = list(self.scheduler.ledger.live)
        if not live:
            self._observe("no sequence to end")
            return
        request_id = self.rng.choice(live)
        reason = self.rng.choice(ENDS)
        require(self.scheduler.end(request_id, reason, "asked for"), "a live request can end", request_id)
        require(not self.scheduler.end(request_id, "cancelled"), "no request ends twice", request_id)
        self._observe(f"{reason} {request_id}")

    def _spoil_a_snapshot(self) -> None:
        """Flip a bit in a waiting sequence's saved state and in a stored snapshot, if there are any. This may cost
        time, but must not change an answer."""
        waiting = [seq for seq in self.scheduler.waiting if seq.saved is not None]
        if waiting:
            seq = self.rng.choice(waiting)
            if isinstance(seq.saved, SimSnapshot):
                seq.saved = replace(seq.saved, value=seq.saved.value ^ 1)
        if isinstance(self.states, Hybrid) and self.states.snapshots:
            key = self.rng.choice(list(self.states.snapshots))
            spoiled = self.states.snapshots[key]
            if isinstance(spoiled, SimSnapshot):
                self.states.snapshots[key] = replace(spoiled, value=spoiled.value ^ 1)
        self._observe("spoil")

    def _observe(self, what: str) -> None:
        events = self.scheduler.take_events()
        self.laws.after_event(events)
        if self.small is not None:
            check_followers(self.small, self.scheduler.ledger.live.values())
        for event in events:
            if isinstance(event, Finished):
                self.proposer.forget(event.request_id)
                if self.copies is not None:
                    self.copies.ended(event.request_id)
        self.log.append((self.clock.now(), what, events))

    def _describe(self, step: Step) -> str:
        rows = " ".join(f"{row.sequence.request.request_id}@{row.start}+{len(row.tokens)}" for row in step.rows)
        return f"step {step.number} {step.mode} {rows}"

    def _fault(self, step: Step) -> InjectedFault | None:
        if self.rng.random() >= self.fault_rate:
            return None
        return InjectedFault(
            self.rng.choice(FAULTS), row=self.rng.randrange(len(step.rows)), named=self.rng.random() < 0.5
        )

    def _host(self) -> HostCache:
        rng = Random(self.seed)  # its own, so that the same requests come with and without a host tier
        capacity = rng.choice((1, 2, 5, 12, 60))
        return HostCache(capacity, ShakyHostMemory(self.engine.memory, capacity, rng, lambda: self.fault_rate))

    def _scheduler(self) -> Scheduler:
        setup = self.setup
        timed = TimedBudget(seconds=0.02, first_guess=2, most=32)
        return Scheduler(
            self.pool,
            SchedulerConfig(
                BARE,
                max_running=setup.max_running,
                max_step_tokens=setup.max_step_tokens,
                watermark=setup.watermark,
                age_bound=setup.age_bound,
            ),
            self.clock,
            budget=timed if setup.chunk_tokens is None else FixedBudget(setup.chunk_tokens),
            states=self.states,
            proposer=self._proposer(),
        )

    def _proposer(self) -> Proposer:
        if self.small is not None:
            return ModelProposer(None, self.small)
        copies = self.model.vocab_size == 2 or self.lane_texts is not None
        return EagerProposer(self.lane_texts) if copies else self.proposer

    def _new_state(self) -> SimState:
        return ForgetfulState(self.engine.memory, self.rng)


class ForgetfulState(SimState):
    """A recurrent state that sometimes has no room for a snapshot."""

    def __init__(self, memory: SimMemory, rng: Random) -> None:
        super().__init__(memory)
        self._rng = rng

    def snapshot(self, tail: int | None) -> SimSnapshot | None:
        return super().snapshot(tail) if self._rng.random() < 0.9 else None


class ShakyHostMemory(SimHostMemory):
    """Host memory for blocks, to and from which some copies fail: before the first, in between, or after the last."""

    def __init__(self, memory: SimMemory, capacity: int, rng: Random, fault_rate: Callable[[], float]) -> None:
        super().__init__(memory, capacity)
        self._rng = rng
        self._fault_rate = fault_rate

    def spill(self, copies: Sequence[BlockCopy]) -> None:
        fails = self._fails()
        super().spill(copies[: self._rng.randint(0, len(copies))] if fails else copies)
        self._raise_if(fails)

    def restore(self, copies: Sequence[BlockCopy]) -> None:
        fails = self._fails()
        super().restore(copies[: self._rng.randint(0, len(copies))] if fails else copies)
        self._raise_if(fails)

    def _fails(self) -> bool:
        return self._rng.random() < self._fault_rate()

    @staticmethod
    def _raise_if(fails: bool) -> None:
        if fails:
            raise EngineFault("injected")
