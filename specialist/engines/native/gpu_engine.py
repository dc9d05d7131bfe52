"""Runs decode steps ahead of the scheduler: while it commits a step and assembles the next one, the GPU computes that.

A prediction of the next decode step has the rows that cannot end by length, each with one token more. Its tokens are
those that the step before draws on the device. A predicted row that the scheduler does not ask for is dropped: it wrote
only slots of tokens that no sequence has, and every later step runs after it.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from torch import Tensor

from kvpool import BlockTable
from specialist.adapters.adapter import Adapter
from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.base import Completion
from specialist.engines.native.engine import Decoder, NativeEngine, StepBatch
from specialist.ops.reference.sampling import SampledToken, SampleRow, logits_fault, sample, uniform
from specialist.scheduling.sequence import Request, Sampling
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import Row, RowFault, Step, StepOutcome


class DecodeRow(NamedTuple):
    """One token of a row of a decode step."""

    token: int
    source: int  # the row of the launch before whose drawn token replaces `token`; -1 for none
    position: int
    blocks: Sequence[int]  # as an array of int32; blocks after the token's are ignored
    temperature: float = 0.0
    uniform: float = 0.0
    adapters: tuple[Adapter, ...] = ()


class Arriving(Protocol):
    """A launched decode step, whose tokens are still on their way."""

    def wait(self) -> tuple[list[int], list[float]]:
        """Wait for the step. Return each row's token and largest logit."""


class AheadDecoder(Decoder, Protocol):
    """A decoder that starts decode steps without waiting for them. What is launched later runs later."""

    most_rows: int  # of a launched step

    def launch(self, rows: Sequence[DecodeRow]) -> Arriving:
        """Start a decode step, and return before it ends."""

    def forward_mixed(self, batch: StepBatch, stacks: Sequence[tuple[Adapter, ...]]) -> Tensor:
        """The same as `forward`, for rows with these adapters."""

    def spare_block(self, row: int) -> int:
        """Return a block for the token of this row of a launch, if the row has no block for it yet."""

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from slots to others."""

    def draw(
        self, logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Draw a token from each row, exactly as a decode step does. Return the tokens and the largest logits."""


class _Place(NamedTuple):
    """A row of a launched step."""

    row: int
    start: int
    table: BlockTable
    is_spare: bool  # whether its keys and values are in the spare block of this row


class _Launched(NamedTuple):
    places: dict[Tracked, _Place]
    drawn: Arriving


@lru_cache(1024)
def _draws_on_device(sampling: Sampling) -> bool:
    return sampling == Sampling(temperature=sampling.temperature)


def _is_simple(request: Request) -> bool:
    return request.guide is None and request.hidden_sum is None and _draws_on_device(request.sampling)


def _is_simple_row(row: SampleRow) -> bool:
    return row.guide is None and _draws_on_device(row.sampling)


class GpuEngine(NativeEngine):
    """Steps of any other kind run as in NativeEngine. Every row has the adapters of its request."""

    mixes_adapters = True

    def __init__(self, decoder: AheadDecoder, adapters: AdapterStore, slots: DeviceSlots) -> None:
        super().__init__(decoder, adapters, slots, self._sample_here)
        self._gpu = decoder
        self._ahead: _Launched | None = None
        self._tokens: dict[Tracked, int] = {}  # the tokens that the last plain decode step drew
        # Whether the last step was a plain decode step. The first one after another kind of step launches none ahead,
        # because often a chunk of a prompt comes next, which would have to wait for it.
        self._is_decoding = False
        self.num_hits = self.num_misses = 0  # decode steps that were predicted, and those that were not

    def run(self, step: Step) -> Iterable[Completion]:
        if not self._is_plain_decode(step):
            self._is_decoding = False
            return super().run(step)
        launched = self._take(step.rows)
        was_decoding, self._is_decoding = self._is_decoding, True
        self._ahead = self._launch_ahead(step.rows, launched) if was_decoding else None
        tokens, peaks = launched.drawn.wait()
        places = [launched.places[row.sequence].row for row in step.rows]
        self._tokens = {row.sequence: tokens[place] for row, place in zip(step.rows, places, strict=True)}
        sampled: tuple[tuple[int, ...] | RowFault, ...] = tuple(
            logits_fault(peaks[place], peaks[place]) or (tokens[place],) for place in places
        )
        return (Completion(step, StepOutcome(sampled)),)

    def _forward(self, step: Step, batch: StepBatch) -> Tensor:
        return self._gpu.forward_mixed(batch, [self._stack(row.sequence.request) for row in step.rows])

    def _stack(self, request: Request) -> tuple[Adapter, ...]:
        return tuple(self.adapters.get(digest) for digest in request.lane.adapters)

    def _sample_here(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | RowFault]:
        """Sample simple rows as a plain decode step does, whatever the other rows are: by the same kernel."""
        simple = [index for index, row in enumerate(rows) if _is_simple_row(row)]
        if not simple:
            return sample(logits, rows)
        picked = logits if len(simple) == len(rows) else logits[simple]
        temperatures = [rows[index].sampling.temperature for index in simple]
        uniforms = [
            uniform(rows[index].seed, len(rows[index].tokens)) if temperature else 0.0
            for index, temperature in zip(simple, temperatures, strict=True)
        ]
        drawn = zip(*self._gpu.draw(picked, temperatures, uniforms), strict=True)
        found: dict[int, SampledToken | RowFault] = {
            index: logits_fault(peak, peak) or SampledToken(token, None)
            for index, (token, peak) in zip(simple, drawn, strict=True)
        }
        others = [index for index in range(len(rows)) if index not in found]
        if others:
            found |= zip(others, sample(logits[others], [rows[index] for index in others]), strict=True)
        return [found[index] for index in range(len(rows))]

    def _is_plain_decode(self, step: Step) -> bool:
        if len(step.rows) > self._gpu.most_rows:
            return False
        return all(
            len(row.tokens) == 1 and row.num_samples == 1 and _is_simple(row.sequence.request) for row in step.rows
        )

    def _take(self, rows: Sequence[Row]) -> _Launched:
        """Return the launch that computes these rows: the prediction if it was right, otherwise a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not all(self._is_predicted(row, ahead) for row in rows):
            self.num_misses += 1
            return self._launch([_Next(row.sequence, row.table, row.start, row.tokens[0], -1) for row in rows])
        self.num_hits += 1
        places = [(row, ahead.places[row.sequence]) for row in rows]
        self._gpu.move_slots(
            [
                (self._gpu.spare_block(place.row) * row.table.block_size, next(row.table.slots(row.start, row.stop)))
                for row, place in places
                if place.is_spare
            ]
        )
        return ahead

    def _is_predicted(self, row: Row, ahead: _Launched) -> bool:
        place = ahead.places.get(row.sequence)
        if place is None or place.start != row.start or place.table is not row.table:
            return False
        return self._tokens.get(row.sequence) == row.tokens[0]

    def _launch_ahead(self, rows: Sequence[Row], launched: _Launched) -> _Launched | None:
        """Launch the decode step after that of `rows`, whose tokens `launched` draws. Return None if no row follows."""
        following = [
            _Next(row.sequence, row.table, row.stop, 0, launched.places[row.sequence].row)
            for row in rows
            if row.stop + 1 < row.sequence.max_total_tokens
        ]
        return self._launch(following) if following else None

    def _launch(self, rows: Sequence["_Next"]) -> _Launched:
        places: dict[Tracked, _Place] = {}
        inputs = []
        for index, row in enumerate(rows):
            blocks = row.table.block_ids
            is_spare = row.start >= len(blocks) * row.table.block_size
            if is_spare:
                blocks = blocks[:]
                blocks.append(self._gpu.spare_block(index))
            places[row.sequence] = _Place(index, row.start, row.table, is_spare)
            request = row.sequence.request
            temperature = request.sampling.temperature
            drawn = uniform(request.seed, row.start + 1) if temperature else 0.0
            own = self._stack(request) if request.lane.adapters else ()
            inputs.append(DecodeRow(row.token, row.source, row.start, blocks, temperature, drawn, own))
        return _Launched(places, self._gpu.launch(inputs))


class _Next(NamedTuple):
    """A row to launch."""

    sequence: Tracked
    table: BlockTable
    start: int
    token: int
    source: int
