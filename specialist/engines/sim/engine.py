"""The sim engine: it computes tokens by a formula and takes time according to a cost model, on an injected clock."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import isfinite
from typing import Any, Literal
from zlib import crc32

from kvpool import GARBAGE, BlockCopy, BlockTable
from octet.clock import Clock
from octet.identity import Lane
from specialist.engines.base import Completion, EngineFault
from specialist.scheduling.sequence import GuideExhausted, Request, Snapshot, SnapshotUnusable
from specialist.scheduling.step import Rollback, Row, RowFault, Step, StepOutcome


@dataclass(frozen=True, slots=True)
class CostModel:
    """The costs of a step, in seconds. The defaults roughly describe a 135M-parameter model on two CPU cores."""

    prefill_step: float = 2e-3
    prefill_token: float = 3e-3
    prefill_pair: float = 1e-7  # for each pair of a prompt token and a token that it attends to
    decode_step: float = 4e-3
    decode_token: float = 2.5e-3
    decode_pair: float = 1e-7
    adapter_switch: float = 5e-3
    preemption: float = 1e-3

    def seconds(self, step: Step, *, switched: bool) -> float:
        if step.mode == "prefill":
            seconds = self.prefill_step + self.prefill_token * step.num_tokens + self.prefill_pair * step.num_pairs
        else:
            seconds = self.decode_step + self.decode_token * step.num_tokens + self.decode_pair * step.num_pairs
        return seconds + self.adapter_switch * switched + self.preemption * step.num_preempted


class CalibrationInvalid(ValueError):
    """The file is not a valid calibration. The message states why."""


def cost_model_to_json(cost: CostModel, about: Mapping[str, Any]) -> str:
    """Return a calibration as JSON. `about` describes the origin of the figures, for human readers."""
    return json.dumps({"cost": asdict(cost), "about": about}, indent=2, allow_nan=False) + "\n"


def cost_model_from_json(text: str) -> CostModel:
    """Read a calibration. Raises CalibrationInvalid unless every cost is present, finite and not negative."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CalibrationInvalid(f"the cost model is not JSON: {error}") from error
    cost = document.get("cost") if isinstance(document, dict) else None
    if not isinstance(cost, dict):
        raise CalibrationInvalid("the cost model must have an object named cost")
    names = {field.name for field in fields(CostModel)}
    if set(cost) != names:
        raise CalibrationInvalid(f"the cost model must have exactly {sorted(names)}, got {sorted(cost)}")
    return CostModel(**{name: _seconds(name, value) for name, value in cost.items()})


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not isfinite(value) or value < 0:
        raise CalibrationInvalid(f"cost model: {name} must be a finite number of seconds of at least 0, got {value!r}")
    return float(value)


class PoisonedRead(RuntimeError):
    """An empty slot was read: a block was allocated, shared or kept by mistake."""


class SimMemory:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._poison: list[int | None] = [None] * block_size
        self._cells: list[int | None] = [None] * (num_blocks * block_size)

    def context(self, table: BlockTable, stop: int) -> int:
        size, cells = self.block_size, self._cells
        full, rest = divmod(stop, size)
        total = 0
        try:
            for block_id in table.block_ids[:full]:
                total += sum(cells[block_id * size : (block_id + 1) * size])  # type: ignore[arg-type]
            if rest:
                first = table.block_ids[full] * size
                total += sum(cells[first : first + rest])  # type: ignore[arg-type]
        except TypeError as error:
            raise PoisonedRead(f"a slot below position {stop} is empty") from error
        return total

    def write(self, table: BlockTable, position: int, value: int | None) -> None:
        size = self.block_size
        self._cells[table.block_ids[position // size] * size + position % size] = value

    def write_padding(self, value: int) -> None:
        self._cells[GARBAGE * self.block_size] = value

    def read_block(self, block_id: int) -> tuple[int | None, ...]:
        return tuple(self._cells[block_id * self.block_size : (block_id + 1) * self.block_size])

    def is_written(self, block_id: int) -> bool:
        return None not in self.read_block(block_id)

    def write_block(self, block_id: int, values: tuple[int | None, ...]) -> None:
        self._cells[block_id * self.block_size : (block_id + 1) * self.block_size] = values

    def poison(self, block_id: int) -> None:
        self._cells[block_id * self.block_size : (block_id + 1) * self.block_size] = self._poison


class SimHostMemory:
    """Keeps the content of evicted blocks."""

    def __init__(self, memory: SimMemory, capacity: int) -> None:
        self._memory = memory
        self.places: list[tuple[int | None, ...]] = [()] * capacity

    def spill(self, copies: Sequence[BlockCopy]) -> None:
        for block_id, place in copies:
            self.places[place] = self._memory.read_block(block_id)

    def restore(self, copies: Sequence[BlockCopy]) -> None:
        for block_id, place in copies:
            self._memory.write_block(block_id, self.places[place])


_PRIME = 2**61 - 1


@lru_cache(maxsize=1024)
def lane_number(lane: Lane) -> int:
    return int.from_bytes(lane.digest()[:7], "little")


@dataclass(frozen=True, slots=True)
class SimModel:
    """Computes tokens by a formula. As in a real model, each token depends on all earlier ones, so that any scheduling
    or cache error changes the output. Every position has a number, called its cell. The context of a position is the
    sum of the cells before it. A hybrid model also has a recurrent state."""

    vocab_size: int = 97
    hybrid: bool = False

    def cell(self, lane: int, context: int, token: int, position: int) -> int:
        mixed = (context + token * 0x9E3779B97F4A7C15) % _PRIME
        return (mixed * 0x2545F4914F6CDD1D + position * 0x1B873593 + lane) % _PRIME

    def absorb(self, state: int, token: int) -> int:
        return (state * 0x5851F42D4C957F2D + token + 1) % _PRIME if self.hybrid else 0

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        """Draw a token. `allowed` has one bit per token. Ids from `vocab_size` on are drawn only if no others fit."""
        mixed = (context + 3 * state + seed * 0x6A09E667F3BCC909 + position) % _PRIME
        drawn = mixed * 0x9E6C63D0876A9A47 % _PRIME >> 17
        if allowed is None:
            return drawn % self.vocab_size
        fitting = [token for token in range(8 * len(allowed)) if allowed[token >> 3] >> (token & 7) & 1]
        if not fitting:
            raise GuideExhausted("no token fits the structure")
        usual = bisect_left(fitting, self.vocab_size) or len(fitting)
        return fitting[drawn % usual]

    def answer(self, request: Request, limit: int | None = None) -> tuple[int, ...]:
        """Return the expected answer, computed without blocks, batches or caches."""
        lane, context, state = lane_number(request.lane), 0, 0
        tokens, generated = list(request.prompt), 0
        most = request.max_tokens if limit is None else min(limit, request.max_tokens)
        position = 0
        while generated < most:
            while position < len(tokens):
                state = self.absorb(state, tokens[position])
                context += self.cell(lane, context, tokens[position], position)
                position += 1
            answer = tokens[len(request.prompt) :]
            allowed = None if request.guide is None else request.guide.allowed(answer)
            token = self.sample(context, state, request.seed, position, allowed)
            if token in request.stop_ids:
                break
            tokens.append(token)
            generated += 1
            if request.guide is not None and request.guide.ended(answer, (token,)):
                break
        return tuple(tokens[len(request.prompt) :])


@dataclass(frozen=True, slots=True)
class SimSnapshot:
    num_tokens: int
    value: int
    tail: tuple[int | None, ...] | None
    checksum: int
    nbytes: int = 8


def _checksum(num_tokens: int, value: int, tail: tuple[int | None, ...] | None) -> int:
    return crc32(repr((num_tokens, value, tail)).encode())


class SimState:
    nbytes = 8

    def __init__(self, memory: SimMemory) -> None:
        self._memory = memory
        self.num_tokens = 0
        # the state at the current boundary, then the state after each token that a forward pass computed beyond it
        self._staged = [0]

    @property
    def state(self) -> int:
        return self._staged[0]

    def stage(self, values: list[int]) -> None:
        self._staged = [self._staged[0], *values]

    def trim(self, num_tokens: int) -> None:
        ahead = num_tokens - self.num_tokens
        if not 0 <= ahead < len(self._staged):
            most = self.num_tokens + len(self._staged) - 1
            raise ValueError(f"cannot trim to {num_tokens} tokens: must be from {self.num_tokens} to {most}")
        self._staged = [self._staged[ahead]]
        self.num_tokens = num_tokens

    def snapshot(self, tail: int | None) -> SimSnapshot | None:
        cells = None if tail is None else self._memory.read_block(tail)
        checksum = _checksum(self.num_tokens, self.state, cells)
        return SimSnapshot(self.num_tokens, self.state, cells, checksum)

    def restore(self, snapshot: Snapshot, tail: int | None) -> None:
        if not isinstance(snapshot, SimSnapshot):
            raise SnapshotUnusable(f"not a snapshot of this engine: {type(snapshot).__name__}")
        if snapshot.checksum != _checksum(snapshot.num_tokens, snapshot.value, snapshot.tail):
            raise SnapshotUnusable("the snapshot's checksum differs")
        if (tail is None) != (snapshot.tail is None):
            raise SnapshotUnusable("the snapshot has a partial block and the sequence has none, or the reverse")
        if tail is not None and snapshot.tail is not None:
            self._memory.write_block(tail, snapshot.tail)
        self.num_tokens, self._staged = snapshot.num_tokens, [snapshot.value]


# In order: raise before or after writing; fail one row; take `factor` times as long; complete only with the next
# step; complete again with the next step.
FaultKind = Literal["fail_before", "fail_after", "fail_row", "slow", "late", "duplicate"]


@dataclass(frozen=True, slots=True)
class InjectedFault:
    kind: FaultKind
    row: int = 0  # the row that causes the fault, if a row does
    named: bool = False  # whether a failure names the request that caused it
    factor: float = 10.0


FaultSource = Callable[[Step], InjectedFault | None]


def no_faults(_: Step) -> None:
    """The default fault source: no step fails."""


class SimEngine:
    def __init__(
        self,
        model: SimModel,
        cost: CostModel,
        clock: Clock,
        *,
        num_blocks: int,
        block_size: int,
        faults: FaultSource = no_faults,
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
        culprit = step.rows[fault.row].sequence.request.request_id if fault is not None and fault.named else None
        if kind == "fail_before":
            raise EngineFault("injected", culprit)
        sampled: list[tuple[int, ...] | RowFault] = []
        for row in step.rows:
            try:
                sampled.append(self._compute(row))
            except GuideExhausted as error:
                sampled.append(RowFault(f"{type(error).__name__}: {error}"))
        if kind == "fail_after":
            raise EngineFault("injected", culprit)
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

    def _compute(self, row: Row) -> tuple[int, ...]:
        model, memory = self.model, self.memory
        request, guide = row.sequence.request, row.sequence.request.guide
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
                drafts = row.tokens[len(row.tokens) - row.num_drafts :][: len(sampled)]
                if list(drafts) != sampled:
                    sampled.append(0)  # nothing counts after a wrong draft
                    continue
                allowed = None if guide is None else guide.allowed(row.sequence.generated, drafts)
                sampled.append(model.sample(context, state, request.seed, position + 1, allowed))
        if isinstance(row.sequence.state, SimState):
            row.sequence.state.stage(states)
        return tuple(sampled)

    def _state_before(self, row: Row) -> int:
        state = row.sequence.state
        if state is None:
            return 0
        if state.num_tokens != row.start:
            error = f"the state has absorbed {state.num_tokens} tokens, but the row starts at {row.start}"
            raise EngineFault(error, row.sequence.request.request_id)
        return int(state.state)
