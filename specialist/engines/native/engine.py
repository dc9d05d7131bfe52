"""Runs steps on a real model: a step becomes tensors, a decoder computes logits, and a sampler draws tokens."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.base import Completion
from specialist.engines.native.recurrent_state import RecurrentState
from specialist.ops.reference.sampling import SampledToken, SampleRow, sample
from specialist.scheduling.sequence import SampledLogprobs
from specialist.scheduling.step import Rollback, Row, RowFault, Step, StepOutcome


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """A step of R rows and T tokens, S of which are followed by a sample. Tensors are int32 and on the CPU."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T], in the token's sequence
    slots: Tensor  # [T], KV slots of the tokens
    query_start: Tensor  # [R + 1], row r has the tokens [query_start[r], query_start[r + 1])
    context_lens: Tensor  # [R], the number of tokens that the row's last token attends to, itself included
    block_tables: Tensor  # [R, largest number of blocks], padded with 0, the garbage block
    outputs: Tensor  # [S], indices of the tokens whose logits are needed, ascending
    states: tuple[RecurrentState, ...] = ()  # for each row, if the model has recurrent layers


def build_batch(step: Step, block_size: int) -> StepBatch:
    """Turn a step into tensors. Raises ValueError if a row has no block for one of its tokens, or a token is not below
    2**31."""
    rows = tuple(step.rows)
    tokens = array("I")
    for row in rows:
        tokens.extend(row.tokens)
    ids = np.frombuffer(tokens, np.int32)
    if (ids < 0).any():
        raise ValueError(f"token {max(tokens)} is not below {2**31}")
    lengths = np.array([len(row.tokens) for row in rows], np.int32)
    starts = np.array([row.start for row in rows], np.int32)
    stops = starts + lengths
    query_start = np.concatenate(([0], lengths.cumsum()), dtype=np.int32)
    # index in T - start of the row in T + start of the row in its sequence
    positions = np.arange(len(tokens), dtype=np.int32) + np.repeat(starts - query_start[:-1], lengths)
    tables = _padded_tables(rows, -(-stops // block_size))
    blocks = positions // block_size
    first_of_table = np.arange(0, tables.size, tables.shape[1], dtype=np.int32)
    block_ids = tables.ravel().take(blocks + np.repeat(first_of_table, lengths))
    return StepBatch(
        tokens=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy((block_ids - blocks) * block_size + positions),
        query_start=torch.from_numpy(query_start),
        context_lens=torch.from_numpy(stops),
        block_tables=torch.from_numpy(tables),
        outputs=_outputs(query_start[1:], [row.num_samples for row in rows]),
        states=tuple(_staged(row) for row in rows if row.sequence.state is not None),
    )


def _staged(row: Row) -> RecurrentState:
    """Return the row's state, ready for this step."""
    state = row.sequence.state
    if not isinstance(state, RecurrentState):
        raise TypeError(f"not a state of this engine: {type(state).__name__}")
    state.stage(row.start, len(row.tokens), keeps_inputs=row.num_drafts > 0)
    return state


def _padded_tables(rows: Sequence[Row], num_blocks: NDArray[np.int32]) -> NDArray[np.int32]:
    ids = array("i")
    for row, count in zip(rows, num_blocks.tolist(), strict=True):
        ids.extend(row.table.block_ids[:count])
    if len(ids) != num_blocks.sum():
        raise ValueError(f"the step needs {num_blocks.sum()} blocks, but its tables have {len(ids)}")
    tables = np.zeros((len(rows), num_blocks.max()), np.int32)
    tables[np.arange(tables.shape[1]) < num_blocks[:, None]] = ids
    return tables


def _outputs(stops: NDArray[np.int32], num_samples: list[int]) -> Tensor:
    counts = np.array(num_samples, np.int32)
    ends = counts.cumsum(dtype=np.int32)
    return torch.from_numpy(np.arange(ends[-1], dtype=np.int32) + np.repeat(stops - ends, counts))


class Decoder(Protocol):
    """A model and the memory for its keys and values: `num_blocks` blocks of `block_size` slots, allocated once."""

    num_blocks: int
    block_size: int
    device: torch.device

    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        """Write the keys and values of every token to its slot and return the logits of `batch.outputs`.

        The logits are float32 [S, vocab], on the decoder's device, valid until the next call. `adapters` are on that
        device and are applied in order to every row. The caller ensures that tokens are in the vocabulary, positions
        are within the context, and no slot occurs twice. Slots outside a row's context never affect that row."""

    def add_hidden(self, start: int, stop: int, total: NDArray[np.float64]) -> None:
        """Add the final hidden states of tokens [start, stop) of the last batch to `total` [hidden], one token after
        the other, so that the sum does not depend on how a prompt was split into chunks."""

    def zero(self, slots: Sequence[int]) -> None: ...


Sampler = Callable[[Tensor, Sequence[SampleRow]], list[SampledToken | RowFault]]
RowSamples = tuple[tuple[int, ...] | RowFault, tuple[SampledLogprobs, ...]]


class NativeEngine:
    mixes_adapters = False  # whether the rows of a step may have different adapters
    runs_ahead = False  # whether it begins the next decode step before this one is committed

    def __init__(self, decoder: Decoder, adapters: AdapterStore, slots: DeviceSlots, sampler: Sampler = sample) -> None:
        self.decoder = decoder
        self.adapters = adapters
        self.slots = slots
        self._sample = sampler

    def run(self, step: Step) -> Iterable[Completion]:
        batch = build_batch(step, self.decoder.block_size)
        drawn = iter(self._draw(step, batch))
        results = [_row_samples(row, drawn) for row in step.rows]
        if any(row.sequence.request.hidden_sum is not None for row in step.rows):
            self._add_hidden(step.rows, batch)
        logprobs = tuple(likely for _, likely in results)
        outcome = StepOutcome(tuple(tokens for tokens, _ in results), logprobs if any(logprobs) else ())
        return (Completion(step, outcome),)

    def _draw(self, step: Step, batch: StepBatch) -> list[SampledToken | RowFault]:
        """Compute the step. Return its samples, row after row."""
        own = [self.slots.get(self.adapters.get(digest)) for digest in step.adapters]
        logits = self.decoder.forward(batch, own)
        wanted = [sample_row for row in step.rows for sample_row in sample_rows(row)]
        return self._sample(logits, wanted) if wanted else []

    def _add_hidden(self, rows: Sequence[Row], batch: StepBatch) -> None:
        for row, (start, stop) in zip(rows, pairwise(batch.query_start.tolist()), strict=True):
            wanted = row.sequence.request.hidden_sum
            if wanted is not None and row.start < len(row.sequence.request.prompt):
                self.decoder.add_hidden(start, stop, wanted.begin(row.start, row.stop))

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        slots = [slot for table, start, stop in rollbacks for slot in table.slots(start, stop)]
        if slots:
            self.decoder.zero(slots)


def sample_rows(row: Row) -> Iterator[SampleRow]:
    """Yield a SampleRow for each token to sample. Its tokens include the drafts before that token."""
    request, known = row.sequence.request, row.sequence.chain.view()
    num_known = len(known)
    drafted = array("I", [*known, *row.tokens[-row.num_drafts :]]) if row.num_drafts else array("I")
    for index in range(row.num_samples):
        tokens: Sequence[int] = known if index == 0 else drafted[: num_known + index]
        yield SampleRow(
            request.sampling, request.seed, tokens, len(request.prompt), request.stop_ids, request.guide, index
        )


def _row_samples(row: Row, drawn: Iterator[SampledToken | RowFault]) -> RowSamples:
    """Return the row's samples. After a wrong draft, nothing counts: a fault there is not the request's own."""
    samples = [next(drawn) for _ in range(row.num_samples)]
    drafts = row.tokens[len(row.tokens) - row.num_drafts :]
    tokens: list[int] = []
    logprobs: list[SampledLogprobs] = []
    for each in samples:
        if isinstance(each, RowFault):
            if list(drafts[: len(tokens)]) == tokens:
                return each, ()
            tokens.append(0)
            continue
        tokens.append(each.token)
        if each.logprobs is not None:
            logprobs.append(each.logprobs)
    return tuple(tokens), tuple(logprobs)
