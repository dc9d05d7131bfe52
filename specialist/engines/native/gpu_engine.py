"""Runs decode steps ahead of the scheduler: while it commits a step and assembles the next one, the GPU computes that.

A prediction of the next decode step has the rows that cannot end by length, each with one token more. Its tokens are
those that the step before draws on the device. A predicted row that the scheduler does not ask for is dropped: it wrote
only slots of tokens that no sequence has, and every later step runs after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple, Protocol

from torch import Tensor

from kvpool import BlockTable
from specialist.adapters.adapter import Adapter
from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.base import Completion
from specialist.engines.native.engine import Decoder, NativeEngine, StepBatch
from specialist.engines.native.shaped_draw import Shaped, is_plain, shaped_of
from specialist.ops.reference.sampling import SampledToken, SampleRow, logits_fault, sample, uniform
from specialist.scheduling.sequence import Request, Sampling
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import Rollback, Row, RowFault, Step, StepOutcome


class DecodeRow(NamedTuple):
    """One token of a row of a decode step."""

    token: int
    source: int  # the row of the launch before whose drawn token replaces `token`; -1 for none
    position: int
    blocks: Sequence[int]  # as an array of int32; blocks after the token's are ignored
    temperature: float = 0.0
    uniform: float = 0.0
    adapters: tuple[Adapter, ...] = ()
    shaped: Shaped | None = None  # if more than the temperature matters


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The rows of a decode step, in columns, as in DecodeRow."""

    tokens: Sequence[int]
    sources: Sequence[int]
    positions: Sequence[int]
    blocks: Sequence[Sequence[int]]
    temperatures: Sequence[float]
    uniforms: Sequence[float]
    adapters: Sequence[tuple[Adapter, ...]]
    shaped: Sequence[Shaped | None]

    @classmethod
    def of(cls, rows: Iterable[DecodeRow]) -> "DecodeRows":
        return cls(*zip(*rows, strict=True))

    @property
    def count(self) -> int:
        return len(self.tokens)


class Arriving(Protocol):
    """A launched decode step, whose tokens are still on their way."""

    def wait(self) -> tuple[list[int], list[float]]:
        """Wait for the step. Return each row's token and largest logit."""


class AheadDecoder(Decoder, Protocol):
    """A decoder that starts decode steps without waiting for them. What is launched later runs later."""

    most_rows: int  # of a launched step

    def launch(self, rows: DecodeRows) -> Arriving:
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

    def can_draw(self, sampling: Sampling, stop_ids: frozenset[int]) -> bool:
        """Whether `launch` and `draw_shaped` draw for such a request."""

    def draw_shaped(self, logits: Tensor, rows: Sequence[Shaped]) -> tuple[list[int], list[float]]:
        """The same as `draw`, for changed distributions: `logits` change, and the largest ones are those after that."""

    def forget(self) -> None:
        """Count the tokens of all sequences anew: a step may have been undone."""


class _Rows(NamedTuple):
    """The rows of a plain decode step, in columns."""

    sequences: tuple[Tracked, ...]
    tables: tuple[BlockTable, ...]
    starts: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]  # one each

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Rows":
        return cls(*tuple(zip(*rows, strict=True))[:4])

    def at(self, places: list[int]) -> "_Rows":
        """Return the rows at these places."""
        if places == list(range(len(self.sequences))):
            return self
        sequences, tables, starts, tokens = self
        return _Rows(
            tuple([sequences[place] for place in places]),
            tuple([tables[place] for place in places]),
            tuple([starts[place] for place in places]),
            tuple([tokens[place] for place in places]),
        )


class _Fixed(NamedTuple):
    """What is the same in all steps of the same sequences."""

    sequences: tuple[Tracked, ...]
    places: dict[Tracked, int]  # the row of each sequence
    temperatures: tuple[float, ...]
    adapters: tuple[tuple[Adapter, ...], ...]
    drawing: tuple[int, ...]  # the rows with a temperature
    shaped: tuple[int, ...]  # the rows in whose draws more than the temperature matters


class _Launched(NamedTuple):
    rows: _Rows  # their tokens count only if the host knew them
    places: dict[Tracked, int]  # the row of each sequence
    spare: list[int]  # rows whose keys and values are in their spare blocks
    drawn: Arriving


class GpuEngine(NativeEngine):
    """Steps of any other kind run as in NativeEngine. Every row has the adapters of its request."""

    mixes_adapters = True

    def __init__(self, decoder: AheadDecoder, adapters: AdapterStore, slots: DeviceSlots) -> None:
        super().__init__(decoder, adapters, slots, self._sample_here)
        self._gpu = decoder
        self._ahead: _Launched | None = None
        self._tokens: dict[Tracked, tuple[int, ...] | RowFault] = {}  # what the last plain decode step drew
        self._fixed = _Fixed((), {}, (), (), (), ())  # of the sequences that were launched last
        # Whether the last step was a plain decode step. The first one after another kind of step launches none ahead,
        # because often a chunk of a prompt comes next, which would have to wait for it.
        self._is_decoding = False
        self.num_hits = self.num_misses = 0  # decode steps that were predicted, and those that were not

    def run(self, step: Step) -> Iterable[Completion]:
        if not self._is_plain_decode(step):
            self._is_decoding = False
            return super().run(step)
        rows = _Rows.of(step.rows)
        launched = self._take(rows)
        was_decoding, self._is_decoding = self._is_decoding, True
        self._ahead = self._launch_ahead(rows, launched) if was_decoding else None
        tokens, peaks = launched.drawn.wait()
        if rows.sequences != launched.rows.sequences:
            places = [launched.places[seq] for seq in rows.sequences]
            tokens, peaks = [tokens[place] for place in places], [peaks[place] for place in places]
        sampled: tuple[tuple[int, ...] | RowFault, ...] = tuple(zip(tokens, strict=True))
        if not all(map(isfinite, peaks)):
            each = zip(rows.sequences, sampled, peaks, strict=True)
            sampled = tuple(_fault(peak, seq.request.sampling) or token for seq, token, peak in each)
        self._tokens = dict(zip(rows.sequences, sampled, strict=True))
        return (Completion(step, StepOutcome(sampled)),)

    def _forward(self, step: Step, batch: StepBatch) -> Tensor:
        return self._gpu.forward_mixed(batch, [self._stack(row.sequence.request) for row in step.rows])

    def _stack(self, request: Request) -> tuple[Adapter, ...]:
        return tuple(self.adapters.get(digest) for digest in request.lane.adapters)

    def _sample_here(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | RowFault]:
        """Sample as a plain decode step does, whatever the other rows are, by the same kernels: all rows that these can
        draw for."""
        found: dict[int, SampledToken | RowFault] = {}
        plain, shaped = [], dict[int, Shaped]()
        for index, row in enumerate(rows):
            if row.guide is None and is_plain(row.sampling):
                plain.append(index)
            elif self._gpu.can_draw(row.sampling, row.stop_ids):
                try:
                    shaped[index] = Shaped.of(row, logits.shape[1])
                except Exception as error:  # a row's own settings must not break other rows
                    found[index] = RowFault(f"{type(error).__name__}: {error}")
        others = [index for index in range(len(rows)) if not (index in found or index in shaped or index in plain)]
        if others:
            found |= zip(others, sample(logits[others], [rows[index] for index in others]), strict=True)

        def keep(places: Sequence[int], drawn: tuple[list[int], list[float]]) -> None:
            for index, token, peak in zip(places, *drawn, strict=True):
                found[index] = _fault(peak, rows[index].sampling) or SampledToken(token, None)

        if plain:
            heat = [rows[index].sampling.temperature for index in plain]
            noise = [uniform(rows[i].seed, len(rows[i].tokens)) if t else 0.0 for i, t in zip(plain, heat, strict=True)]
            keep(plain, self._gpu.draw(_pick(logits, plain), heat, noise))
        if shaped:
            keep(list(shaped), self._gpu.draw_shaped(_pick(logits, list(shaped)), list(shaped.values())))
        return [found[index] for index in range(len(rows))]

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        undone = list(rollbacks)
        if undone:
            self._ahead, self._is_decoding = None, False  # so that the next decode step starts from known tokens
            self._gpu.forget()
        super().discard(undone)

    def _is_plain_decode(self, step: Step) -> bool:
        if step.mode != "decode" or len(step.rows) > self._gpu.most_rows:
            return False
        return all(
            row.num_samples == 1 and (row.sequence in self._fixed.places or self._is_simple(row.sequence.request))
            for row in step.rows
        )

    def _is_simple(self, request: Request) -> bool:
        if request.guide is not None or request.hidden_sum is not None:
            return False
        return is_plain(request.sampling) or self._gpu.can_draw(request.sampling, request.stop_ids)

    def _take(self, rows: _Rows) -> _Launched:
        """Return the launch that computes these rows: the prediction if it was right, otherwise a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not self._is_predicted(rows, ahead):
            self.num_misses += 1
            return self._launch(rows, [-1] * len(rows.sequences))
        self.num_hits += 1
        if ahead.spare:
            each = zip(rows.sequences, rows.tables, rows.starts, strict=True)
            self._gpu.move_slots(
                [
                    (self._gpu.spare_block(row) * table.block_size, next(table.slots(start, start + 1)))
                    for seq, table, start in each
                    if (row := ahead.places[seq]) in ahead.spare
                ]
            )
        return ahead

    def _is_predicted(self, rows: _Rows, ahead: _Launched) -> bool:
        """Whether the launch computes all of these rows, with the tokens that were drawn for them."""
        if not all(map(ahead.places.__contains__, rows.sequences)):
            return False
        mine = ahead.rows.at([ahead.places[seq] for seq in rows.sequences])
        drawn = tuple(map(self._tokens.get, rows.sequences))
        return mine.tables == rows.tables and mine.starts == rows.starts and drawn == rows.tokens

    def _launch_ahead(self, rows: _Rows, launched: _Launched) -> _Launched | None:
        """Launch the decode step after that of `rows`, whose tokens `launched` draws. Return None if no row follows."""
        each = enumerate(zip(rows.sequences, rows.starts, strict=True))
        following = rows.at([row for row, (seq, start) in each if start + 2 < seq.max_total_tokens])
        if not following.sequences:
            return None
        ahead = following._replace(starts=tuple([start + 1 for start in following.starts]))
        return self._launch(ahead, [launched.places[seq] for seq in ahead.sequences])

    def _launch(self, rows: _Rows, sources: Sequence[int]) -> _Launched:
        """`sources`: for each row, that of the launch before whose token it takes, or -1."""
        if self._fixed.sequences != rows.sequences:
            self._fixed = self._fix(rows.sequences)
        fixed, count = self._fixed, len(rows.sequences)
        blocks = [table.block_ids for table in rows.tables]
        size = rows.tables[0].block_size
        spare = [
            row for row, (ids, start) in enumerate(zip(blocks, rows.starts, strict=True)) if start >= len(ids) * size
        ]
        for row in spare:
            blocks[row] = blocks[row][:]
            blocks[row].append(self._gpu.spare_block(row))
        uniforms, shaped = [0.0] * count, list[Shaped | None]([None] * count)
        for row in fixed.drawing:
            uniforms[row] = uniform(rows.sequences[row].request.seed, rows.starts[row] + 1)
        for row in fixed.shaped:
            seq = rows.sequences[row]
            shaped[row] = shaped_of(seq.request, uniforms[row], seq.chain.view(), seq)
        tokens = [token for (token,) in rows.tokens]
        inputs = DecodeRows(tokens, sources, rows.starts, blocks, fixed.temperatures, uniforms, fixed.adapters, shaped)
        return _Launched(rows, fixed.places, spare, self._gpu.launch(inputs))

    def _fix(self, sequences: tuple[Tracked, ...]) -> _Fixed:
        requests = [seq.request for seq in sequences]
        temperatures = tuple([request.sampling.temperature for request in requests])
        return _Fixed(
            sequences,
            dict(zip(sequences, range(len(sequences)), strict=True)),
            temperatures,
            tuple([self._stack(request) for request in requests]),
            tuple([row for row, temperature in enumerate(temperatures) if temperature]),
            tuple([row for row, request in enumerate(requests) if not is_plain(request.sampling)]),
        )


def _pick(logits: Tensor, rows: list[int]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[rows]


def _fault(peak: float, sampling: Sampling) -> RowFault | None:
    """`peak` is the largest logit after all changes."""
    return logits_fault(0.0 if peak == -inf and not is_plain(sampling) else peak, peak)
