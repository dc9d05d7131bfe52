"""Runs decode steps ahead of the scheduler: while it commits a step and assembles the next one, the GPU computes that.

A prediction of the next decode step has the rows that cannot end by length, each with one token more. Its tokens are
those that the step before draws on the device. A predicted row that the scheduler does not ask for is dropped: it wrote
only slots of tokens that no sequence has, and every later step runs after it.

What a guide allows depends on the token before, which the host must know. Rows with a guide are launched ahead like the
others, but draw again when their masks are known, before the step after them is launched.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from threading import get_ident
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.base import Completion
from specialist.engines.native.begun_step import Arriving, Begun, fault_of, is_unchanged
from specialist.engines.native.engine import Decoder, NativeEngine, StepBatch, build_batch, sample_rows
from specialist.engines.native.shaped_draw import Shaped, is_plain, shaped_of
from specialist.ops.reference.sampling import SampledToken, SampleRow, sample, uniform
from specialist.scheduling.sequence import Request, Sampling
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import PlainRows, Rollback, Row, RowFault, Step, StepOutcome

_MOST_OTHERS = 2  # a launched step's tokens stay on the host until a few more steps have run
_MOST_LAUNCHED = 3  # steps in turn: enough to keep a GPU busy, and fewer than a decoder has buffers for


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


class DecodeRows(NamedTuple):
    """The rows of a decode step, in columns, as in DecodeRow. A column never changes."""

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
    def num_rows(self) -> int:
        return len(self.tokens)


class AheadDecoder(Decoder, Protocol):
    """A decoder that starts decode steps without waiting for them. What is launched later runs later."""

    most_rows: int  # of a launched step
    vocab_size: int

    def enter_thread(self) -> None:
        """Let the calling thread use the decoder's GPU. Other threads may use others."""

    def launch(self, rows: DecodeRows) -> Arriving:
        """Start a decode step, and return before it ends."""

    def launch_batch(
        self,
        batch: StepBatch,
        stacks: Sequence[tuple[Adapter, ...]],
        temperatures: Sequence[float],
        uniforms: Sequence[float],
    ) -> tuple[Tensor, Arriving]:
        """Start a step of any kind, whose rows have these adapters. Return the logits as `forward` does, and a token
        drawn from each, exactly as a decode step does."""

    def spare_block(self, row: int) -> int:
        """Return a block for the token of this row of a launch, if the row has no block for it yet."""

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from slots to others."""

    def can_draw(self, sampling: Sampling, stop_ids: frozenset[int]) -> bool:
        """Whether `launch` and `draw_shaped` draw for such a request."""

    def draw_shaped(self, logits: Tensor, rows: Sequence[Shaped]) -> tuple[list[int], list[float]]:
        """Draw a token from each row, whose distribution changes. Return the tokens and the largest logits after all
        changes. `logits` change."""

    def redraw(self, rows: Sequence[Shaped | None]) -> Arriving:
        """Draw again for some rows of the decode step that was launched last, after which no other step has run; a row
        that is None keeps its token. Return what is drawn for all its rows."""

    def forget(self) -> None:
        """Count the tokens of all sequences anew: a step may have been undone."""


class _Fixed(NamedTuple):
    """What is the same in all steps of the same sequences."""

    sequences: tuple[Tracked, ...]
    places: dict[Tracked, int]  # the row of each sequence
    temperatures: tuple[float, ...]
    adapters: tuple[tuple[Adapter, ...], ...]
    drawing: tuple[int, ...]  # the rows with a temperature
    shaped: tuple[int, ...]  # the rows without a guide in whose draws more than the temperature matters
    guided: tuple[int, ...]  # the rows with a guide
    least_total: int  # the fewest tokens that one of them may have
    in_order: tuple[int, ...]  # the number of each row
    zeros: tuple[int, ...]
    nothing: tuple[None, ...]


class _Launched(NamedTuple):
    rows: PlainRows  # their tokens count only if the host knew them
    places: dict[Tracked, int]  # the row of each sequence
    spare: list[int]  # rows whose keys and values are in their spare blocks
    guided: tuple[int, ...]  # rows with a guide
    drawn: Arriving


class GpuEngine(NativeEngine):
    """Steps of any other kind run as in NativeEngine. Every row has the adapters of its request."""

    mixes_adapters = True
    runs_ahead = True

    def __init__(self, decoder: AheadDecoder, adapters: AdapterStore, slots: DeviceSlots) -> None:
        super().__init__(decoder, adapters, slots)
        self._gpu = decoder
        self._ahead: _Launched | None = None
        self._drawn: tuple[tuple[Tracked, ...], tuple[tuple[int, ...] | RowFault, ...]] = (), ()
        """The sequences of the last plain decode step, and what it drew for them."""
        self._fixed = self._fix(())  # of the sequences that were launched last
        # Whether the last step was a plain decode step. The first one after another kind of step launches none ahead:
        # that step has overwritten the drawn tokens, and often a chunk of a prompt comes next, which would wait for it.
        self._is_decoding = False
        self._thread = 0  # that ran the last step
        self._num_others = 0  # steps of other kinds since the last plain decode step
        self.num_hits = self.num_misses = 0  # decode steps that were predicted, and those that were not

    def run(self, step: Step) -> Iterable[Completion]:
        self._enter_thread()
        rows = self._plain_decode(step)
        if rows is None:
            self._is_decoding = False
            self._num_others += 1
            if self._ahead is not None and (self._ahead.guided or self._num_others > _MOST_OTHERS):
                # Its logits, from which it must draw again, do not survive this step; its tokens do not survive many.
                self._ahead = None
            return super().run(step)
        self._num_others = 0
        launched = self._take(rows)
        drawn, faults = self._follow_guides(step.rows, launched)
        was_decoding, self._is_decoding = self._is_decoding, True
        self._ahead = self._launch_ahead(rows, launched) if was_decoding and step.may_repeat else None
        tokens, peaks = drawn.wait()
        if rows.sequences != launched.rows.sequences:
            places = [launched.places[seq] for seq in rows.sequences]
            tokens, peaks = [tokens[place] for place in places], [peaks[place] for place in places]
        sampled: tuple[tuple[int, ...] | RowFault, ...] = tuple(zip(tokens, strict=True))
        if faults or not all(map(isfinite, peaks)):
            each = zip(rows.sequences, sampled, peaks, strict=True)
            sampled = tuple(
                faults.get(seq) or fault_of(peak, is_changed=not is_unchanged(seq.request)) or token
                for seq, token, peak in each
            )
        self._drawn = rows.sequences, sampled
        return (Completion(step, StepOutcome(sampled)),)

    def _enter_thread(self) -> None:
        if self._thread != get_ident():
            self._thread = get_ident()
            self._gpu.enter_thread()

    def wait(self) -> None:
        if self._gpu.device.type == "cuda":
            torch.cuda.current_stream(self._gpu.device).synchronize()

    @property
    def most_in_turn(self) -> int:
        return self._gpu.most_rows

    def draws_in_turn(self, request: Request) -> bool:
        return request.guide is None and self._is_simple(request)

    def draw_in_turn(self, step: Step, counts: Sequence[int]) -> Iterator[list[int | RowFault]]:
        self._enter_thread()
        self._ahead, self._is_decoding = None, False
        rows, stops, left = PlainRows.of(step.rows), [row.stop for row in step.rows], list(counts)
        if step.mode == "decode":
            begun, stays = Begun(self._launch(rows, None).drawn, {}), True
        else:
            begun = self._begin(step, build_batch(step, self.decoder.block_size))
            stays = begun.arriving.stays and not begun.found
        launched = deque([(rows.sequences, begun)])
        while max(left) > 1:
            places = [place for place, num in enumerate(left) if num > 1]
            if len(places) < len(left):
                rows, stops = rows.at(places), [stops[place] for place in places]
            sources: list[int] | None = places
            tokens = rows.tokens
            if not stays:
                sequences, begun = launched.popleft()
                drawn = begun.tokens(sequences)
                yield drawn
                sources, known = None, [drawn[place] for place in places]
                tokens = tuple([(0 if isinstance(each, RowFault) else each,) for each in known])
            rows = PlainRows(rows.sequences, rows.tables, tuple(stops), tokens)
            launched.append((rows.sequences, Begun(self._launch(rows, sources).drawn, {})))
            stays, stops, left = True, [stop + 1 for stop in stops], [left[place] - 1 for place in places]
            if len(launched) == _MOST_LAUNCHED:
                sequences, begun = launched.popleft()
                yield begun.tokens(sequences)
        for sequences, begun in launched:
            yield begun.tokens(sequences)

    def _draw(self, step: Step, batch: StepBatch) -> list[SampledToken | RowFault]:
        begun = self._begin(step, batch)
        for row in step.rows:  # the commit needs these keys: they are computed while the GPU computes
            row.sequence.chain.keys((row.stop - row.num_drafts) // row.table.block_size)
        return begun.samples()

    def _begin(self, step: Step, batch: StepBatch) -> Begun:
        """Draw by the same kernels as plain decode steps, whatever the other rows are, where these can."""
        draws: list[tuple[float, float]] = []  # of each sample
        changed: dict[int, SampleRow] = {}  # by their place among all samples
        for row in step.rows:
            if is_unchanged(row.sequence.request):
                draws += _plain_draws(row)
            else:
                changed |= enumerate(sample_rows(row), len(draws))
                draws += [(0.0, 0.0)] * row.num_samples
        stacks = [self._stack(row.sequence.request) for row in step.rows]
        heat, noise = [each for each, _ in draws], [each for _, each in draws]
        logits, arriving = self._gpu.launch_batch(batch, stacks, heat, noise)
        return Begun(arriving, self._sample_changed(logits, changed))

    def _stack(self, request: Request) -> tuple[Adapter, ...]:
        return tuple(self.adapters.get(digest) for digest in request.lane.adapters)

    def _sample_changed(self, logits: Tensor, rows: Mapping[int, SampleRow]) -> dict[int, SampledToken | RowFault]:
        """Sample for rows whose distribution changes, by the place of their logits."""
        found: dict[int, SampledToken | RowFault] = {}
        shaped: dict[int, Shaped] = {}
        others: dict[int, SampleRow] = {}
        for place, row in rows.items():
            if not self._gpu.can_draw(row.sampling, row.stop_ids):
                others[place] = row
                continue
            drawn = _shape(row, self._gpu.vocab_size)
            if isinstance(drawn, RowFault):
                found[place] = drawn
            else:
                shaped[place] = drawn
        if others:
            found |= zip(others, sample(logits[list(others)], list(others.values())), strict=True)
        if shaped:
            picked = logits if len(shaped) == len(logits) else logits[list(shaped)]
            drawn_ones = zip(*self._gpu.draw_shaped(picked, list(shaped.values())), strict=True)
            for place, (token, peak) in zip(shaped, drawn_ones, strict=True):
                found[place] = fault_of(peak, is_changed=True) or SampledToken(token, None)
        return found

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        undone = list(rollbacks)
        if undone:
            self._ahead, self._is_decoding = None, False  # so that the next decode step starts from known tokens
            self._gpu.forget()
        super().discard(undone)

    def _plain_decode(self, step: Step) -> PlainRows | None:
        """Return the rows if each has one token and draws the next one as decode steps do."""
        if step.mode != "decode" or len(step.rows) > self._gpu.most_rows:
            return None
        if not isinstance(step.rows, PlainRows) and not all(row.num_samples for row in step.rows):  # part of a prompt
            return None
        rows, known = PlainRows.of(step.rows), self._fixed
        if rows.sequences == known.sequences:
            return rows
        simple = all(seq in known.places or self._is_simple(seq.request) for seq in rows.sequences)
        return rows if simple else None

    def _is_simple(self, request: Request) -> bool:
        if request.hidden_sum is not None:
            return False
        return is_unchanged(request) or self._gpu.can_draw(request.sampling, request.stop_ids)

    def _take(self, rows: PlainRows) -> _Launched:
        """Return the launch that computes these rows: the prediction if it was right, otherwise a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not self._is_predicted(rows, ahead):
            self.num_misses += 1
            return self._launch(rows, None)
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

    def _is_predicted(self, rows: PlainRows, ahead: _Launched) -> bool:
        """Whether the launch computes all of these rows, with the tokens that were drawn for them."""
        mine, (sequences, drawn) = ahead.rows, self._drawn
        if rows.sequences != mine.sequences:
            if not all(map(ahead.places.__contains__, rows.sequences)):
                return False
            mine = mine.at([ahead.places[seq] for seq in rows.sequences])
        if rows.sequences != sequences:
            by_sequence = dict(zip(sequences, drawn, strict=True))
            if not all(map(by_sequence.__contains__, rows.sequences)):
                return False
            drawn = tuple([by_sequence[seq] for seq in rows.sequences])
        return mine.tables == rows.tables and mine.starts == rows.starts and drawn == rows.tokens

    def _follow_guides(self, rows: Sequence[Row], launched: _Launched) -> tuple[Arriving, dict[Tracked, RowFault]]:
        """Draw again for the rows with a guide, whose masks are known only now. Return what the step draws, and the
        faults of guides."""
        faults: dict[Tracked, RowFault] = {}
        if not launched.guided:
            return launched.drawn, faults
        again: list[Shaped | None] = [None] * len(launched.places)
        for row in rows:
            if row.sequence.request.guide is None:
                continue
            shaped = _shape(next(sample_rows(row)), self._gpu.vocab_size)
            if isinstance(shaped, RowFault):
                faults[row.sequence] = shaped
            else:
                again[launched.places[row.sequence]] = shaped._replace(key=row.sequence)
        return self._gpu.redraw(again) if any(again) else launched.drawn, faults

    def _launch_ahead(self, rows: PlainRows, launched: _Launched) -> _Launched | None:
        """Launch the decode step after that of `rows`, whose tokens `launched` draws. Return None if no row follows."""
        following, fixed = rows, self._fixed
        if rows.sequences != fixed.sequences or max(rows.starts) + 2 >= fixed.least_total:
            each = enumerate(zip(rows.sequences, rows.starts, strict=True))
            following = rows.at([row for row, (seq, start) in each if start + 2 < seq.max_total_tokens])
            if not following.sequences:
                return None
        starts = tuple([start + 1 for start in following.starts])
        sources = fixed.in_order
        if following.sequences != launched.rows.sequences:
            sources = tuple([launched.places[seq] for seq in following.sequences])
        return self._launch(PlainRows(following.sequences, following.tables, starts, following.tokens), sources)

    def _launch(self, rows: PlainRows, sources: Sequence[int] | None) -> _Launched:
        """`sources`: for each row, that of the launch before whose token it takes. None: the host knows all tokens."""
        if self._fixed.sequences != rows.sequences:
            self._fixed = self._fix(rows.sequences)
        fixed = self._fixed
        blocks = [table.block_ids for table in rows.tables]
        size = rows.tables[0].block_size
        spare = [
            row for row, (ids, start) in enumerate(zip(blocks, rows.starts, strict=True)) if start >= len(ids) * size
        ]
        for row in spare:
            blocks[row] = blocks[row][:]
            blocks[row].append(self._gpu.spare_block(row))
        uniforms, shaped = self._noise(rows) if fixed.drawing or fixed.shaped else (fixed.zeros, fixed.nothing)
        tokens: Sequence[int] = fixed.zeros
        if sources is None:
            tokens, sources = [token for (token,) in rows.tokens], (-1,) * len(rows.tokens)
        inputs = DecodeRows(tokens, sources, rows.starts, blocks, fixed.temperatures, uniforms, fixed.adapters, shaped)
        return _Launched(rows, fixed.places, spare, fixed.guided, self._gpu.launch(inputs))

    def _noise(self, rows: PlainRows) -> tuple[Sequence[float], Sequence[Shaped | None]]:
        """Return the uniform number of each row, and how the distributions of some change."""
        uniforms, shaped = [0.0] * len(rows.starts), list[Shaped | None](self._fixed.nothing)
        for row in self._fixed.drawing:
            uniforms[row] = uniform(rows.sequences[row].request.seed, rows.starts[row] + 1)
        for row in self._fixed.shaped:
            seq = rows.sequences[row]
            shaped[row] = shaped_of(seq.request, uniforms[row], seq.chain.view(), seq)
        return uniforms, shaped

    def _fix(self, sequences: tuple[Tracked, ...]) -> _Fixed:
        requests, count = [seq.request for seq in sequences], len(sequences)
        temperatures = tuple([request.sampling.temperature for request in requests])
        return _Fixed(
            sequences,
            dict(zip(sequences, range(count), strict=True)),
            temperatures,
            tuple([self._stack(request) for request in requests]),
            tuple([row for row, temperature in enumerate(temperatures) if temperature]),
            tuple([row for row, each in enumerate(requests) if each.guide is None and not is_plain(each.sampling)]),
            tuple([row for row, each in enumerate(requests) if each.guide is not None]),
            min((seq.max_total_tokens for seq in sequences), default=0),
            tuple(range(count)),
            (0,) * count,
            (None,) * count,
        )


def _plain_draws(row: Row) -> list[tuple[float, float]]:
    """Return the temperature and the uniform number of each sample."""
    request, first = row.sequence.request, row.sequence.num_tokens
    temperature = request.sampling.temperature
    positions = range(first, first + row.num_samples)
    return [(temperature, uniform(request.seed, position) if temperature else 0.0) for position in positions]


def _shape(row: SampleRow, vocab: int) -> Shaped | RowFault:
    try:
        return Shaped.of(row, vocab)
    except Exception as error:  # a row's own settings must not break other rows
        return RowFault(f"{type(error).__name__}: {error}")
