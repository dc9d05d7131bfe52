"""Runs steps by arithmetic, on the clock it is given."""

from collections.abc import Iterable

from octet.clock import Clock
from specialist.engines.base import Completion, EngineFault
from specialist.engines.sim.cost import CostModel
from specialist.engines.sim.faults import Fault, FaultSource
from specialist.engines.sim.memory import SimMemory
from specialist.engines.sim.model import SimModel, lane_number
from specialist.engines.sim.state import SimState
from specialist.steering import NothingFits
from specialist.step import Rollback, Row, RowFault, Step, StepOutcome


class SimEngine:
    def __init__(
        self,
        model: SimModel,
        cost: CostModel,
        clock: Clock,
        *,
        num_blocks: int,
        block_size: int,
        faults: FaultSource = lambda step: None,
    ) -> None:
        self.model = model
        self.cost = cost
        self.clock = clock
        self.memory = SimMemory(num_blocks, block_size)
        self._faults = faults
        self._late: list[Completion] = []
        self._adapters: tuple[str, ...] = ()

    def new_state(self) -> SimState:
        return SimState(self.memory)

    def run(self, step: Step) -> Iterable[Completion]:
        fault = self._faults(step)
        kind = None if fault is None else fault.kind
        seconds = self.cost.seconds(step, switched=step.adapters != self._adapters)
        self._adapters = step.adapters
        self.clock.sleep(seconds * fault.factor if fault is not None and kind == "slow" else seconds)
        self.memory.write_padding(step.number)
        if fault is not None and kind == "fail_before":
            raise self._failure(step, fault)
        sampled: list[tuple[int, ...] | RowFault] = [self._outcome(row) for row in step.rows]
        if fault is not None and kind == "fail_after":
            raise self._failure(step, fault)
        if fault is not None and kind == "fail_row":
            sampled[fault.row] = RowFault("injected")
        completion = Completion(step, StepOutcome(tuple(sampled)))
        arrived, self._late = self._late, []
        if kind in ("late", "duplicate"):
            self._late.append(completion)
        return arrived if kind == "late" else [*arrived, completion]

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        for table, start, stop in rollbacks:
            for position in range(start, stop):
                self.memory.write(table, position, None)

    def _failure(self, step: Step, fault: Fault) -> EngineFault:
        culprit = step.rows[fault.row].sequence.request.request_id if fault.named else None
        return EngineFault("injected", culprit)

    def _outcome(self, row: Row) -> tuple[int, ...] | RowFault:
        try:
            return self._compute(row)
        except NothingFits as error:
            return RowFault(f"NothingFits: {error}")

    def _compute(self, row: Row) -> tuple[int, ...]:
        model, memory = self.model, self.memory
        request = row.sequence.request
        lane = lane_number(request.lane)
        state = self._state_before(row)
        states: list[int] = []
        context = memory.context(row.table, row.start)
        sampled: list[int] = []
        first_sample = row.stop - row.num_samples
        for position, token in enumerate(row.tokens, row.start):
            cell = model.cell(lane, context, token, position)
            memory.write(row.table, position, cell)
            context += cell
            state = model.absorb(state, token)
            states.append(state)
            if position >= first_sample:
                allowed = _allowed(row, len(sampled))
                sampled.append(model.sample(context, state, request.seed, position + 1, allowed))
        if isinstance(row.sequence.state, SimState):
            row.sequence.state.stage(states)
        return tuple(sampled)

    def _state_before(self, row: Row) -> int:
        state = row.sequence.state
        if state is None:
            return 0
        if state.num_tokens != row.start:
            error = f"the state has absorbed {state.num_tokens} tokens, the row starts at {row.start}"
            raise EngineFault(error, row.sequence.request.request_id)
        return int(state.state)


def _allowed(row: Row, num_guessed: int) -> bytes | None:
    guide = row.sequence.request.guide
    if guide is None:
        return None
    return guide.allowed(row.sequence.generated, row.tokens[len(row.tokens) - row.num_drafts :][:num_guessed])
