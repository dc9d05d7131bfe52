"""A step as tensors: what to compute, where its keys and values go, and what it attends over."""

from array import array
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.step import Step


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """R rows with T tokens in all, of which S are to be followed by a sample. Every tensor is int32, on the CPU."""

    tokens: Tensor
    """[T]"""
    positions: Tensor
    """[T], in its own sequence."""
    slots: Tensor
    """[T], where each token's keys and values go."""
    query_start: Tensor
    """[R + 1], row r has the tokens [query_start[r], query_start[r + 1])."""
    context_lens: Tensor
    """[R], tokens attended over by the row's last token, itself included."""
    block_tables: Tensor
    """[R, most blocks], padded with 0, the garbage block."""
    outputs: Tensor
    """[S], the tokens whose logits are wanted, in order."""


def batch_of(step: Step, block_size: int) -> Batch:
    """Raises ValueError when a row has no block for one of its tokens."""
    rows = step.rows
    lengths = np.array([len(row.tokens) for row in rows])
    starts = np.array([row.start for row in rows])
    stops = starts + lengths
    query_start = np.concatenate(([0], lengths.cumsum()))
    row_of = np.repeat(np.arange(len(rows)), lengths)
    # index in T, less where the row begins in T, plus where it begins in its sequence
    positions = np.arange(query_start[-1]) + (starts - query_start[:-1])[row_of]
    tables = _padded_tables(step, -(-stops // block_size))
    return Batch(
        tokens=_int32(list(chain.from_iterable(row.tokens for row in rows))),
        positions=_int32(positions),
        slots=_int32(tables[row_of, positions // block_size] * block_size + positions % block_size),
        query_start=_int32(query_start),
        context_lens=_int32(stops),
        block_tables=torch.from_numpy(tables),
        outputs=_int32(_outputs(query_start[1:], [row.num_samples for row in rows])),
    )


def _padded_tables(step: Step, num_blocks: NDArray[np.int64]) -> NDArray[np.int32]:
    ids = array("i")
    for row, count in zip(step.rows, num_blocks.tolist(), strict=True):
        ids.extend(row.table.block_ids[:count])
    if len(ids) != num_blocks.sum():
        raise ValueError(f"{num_blocks.sum()} blocks are needed for the step, its tables have {len(ids)} of them")
    tables = np.zeros((len(step.rows), num_blocks.max()), np.int32)
    tables[np.arange(tables.shape[1]) < num_blocks[:, None]] = ids
    return tables


def _outputs(stops: NDArray[np.int64], num_samples: list[int]) -> NDArray[np.int64]:
    """The last `num_samples` tokens before each stop."""
    counts = np.array(num_samples, np.int64)
    ends = counts.cumsum()
    outputs: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(stops - ends, counts)
    return outputs


def _int32(values: object) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.int32))
