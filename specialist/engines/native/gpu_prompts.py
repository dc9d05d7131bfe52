"""The integers of steps with chunks of prompts, and how many tokens a captured graph of them takes."""

from typing import NamedTuple

import torch
from torch import Tensor

from specialist.engines.native.decode_inputs import MOST_ROWS
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_adapters import Placed
from specialist.engines.native.gpu_inputs import Staging, pages_of_tokens, send_together
from specialist.ops.gpu import prompt_attention

_HEADER = 16
_NO_TOKEN = 1 << 30  # where a block of queries begins that has no token
_LEAST_EXACT = 2048  # from here on, launching every kernel takes less time than computing many padding tokens
_PADDED = 16  # of so many tokens, one may then be a padding token


class PromptInputs(NamedTuple):
    """All int32, on the device."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    starts: Tensor
    contexts: Tensor
    rows: Tensor
    firsts: Tensor
    outputs: Tensor
    widths: Tensor
    tables: Tensor
    pages: tuple[Tensor, ...] = ()  # of adapters, and for each token those of its row


def send_prompts(batch: StepBatch, group: int, device: torch.device, placed: Placed | None) -> PromptInputs:
    """Copy a step to the device."""
    rows, firsts = prompt_attention.query_blocks(batch.query_start.numpy(), batch.context_lens.numpy(), group)
    width = batch.block_tables.shape[1]
    own: list[Tensor] = []
    if placed is not None:
        pages, *each = pages_of_tokens(batch, placed)
        own = [torch.tensor(values, dtype=torch.int32) for values in ((len(pages), *pages), *each)]
    parts = send_together(
        device,
        *(batch.tokens, batch.positions, batch.slots, batch.query_start, batch.context_lens),
        *(torch.from_numpy(values) for values in (rows, firsts)),
        *(batch.outputs, torch.tensor([width], dtype=torch.int32), batch.block_tables.flatten(), *own),
    )
    tokens, positions, slots, starts, contexts, of_rows, of_firsts, outputs, widths, tables, *of_pages = parts
    return PromptInputs(
        tokens, positions, slots, starts, contexts, of_rows, of_firsts, outputs, widths, tables, tuple(of_pages)
    )


def prompt_buckets(most_tokens: int) -> tuple[int, ...]:
    """Return for how many tokens graphs are captured: from MOST_ROWS on, four sizes in every octave."""
    sizes, base = [MOST_ROWS // 2, MOST_ROWS], MOST_ROWS
    while base < most_tokens:
        sizes += [base + base // 4 * quarter for quarter in range(1, 5)]
        base *= 2
    return tuple(size for size in sizes if size <= most_tokens)


class CapturedInputs:
    """A step of at most `most_tokens` tokens, MOST_ROWS rows and as many outputs, in one piece of memory."""

    def __init__(self, most_tokens: int, most_blocks: int, group: int, device: torch.device) -> None:
        self.buckets = prompt_buckets(most_tokens)
        self._queries = prompt_attention.queries(group)
        self._group = group
        programs = self._num_programs(most_tokens)
        lengths = [*(most_tokens,) * 3, MOST_ROWS + _HEADER, MOST_ROWS, programs, programs, MOST_ROWS]
        self._edges = [_HEADER]
        for length in lengths:
            self._edges.append(self._edges[-1] + -(-length // 4) * 4)
        size = self._edges[-1] + MOST_ROWS * most_blocks
        self._staging = Staging((size,), device)
        self._all = torch.zeros(size, dtype=torch.int32, device=device)

    def _num_programs(self, num_tokens: int) -> int:
        return -(-num_tokens // self._queries) + MOST_ROWS

    def bucket(self, batch: StepBatch) -> int | None:
        """Return the number of tokens for which the batch is computed; None if it must be computed as it is."""
        count = len(batch.tokens)
        if max(len(batch.context_lens), len(batch.outputs)) > MOST_ROWS:
            return None
        bucket = next((size for size in self.buckets if size >= count), None)
        if bucket is None or (count > _LEAST_EXACT and (bucket - count) * _PADDED > count):
            return None
        return bucket

    def inputs(self, bucket: int) -> PromptInputs:
        """Return the step's integers as a graph of this bucket takes them."""
        tokens, positions, slots, starts, contexts, rows, firsts, outputs = (
            self._all[begin:end] for begin, end in zip(self._edges, self._edges[1:], strict=False)
        )
        programs = self._num_programs(bucket)
        first = tokens[:bucket], positions[:bucket], slots[:bucket], starts, contexts
        return PromptInputs(
            *first, rows[:programs], firsts[:programs], outputs, self._all[:1], self._all[self._edges[-1] :]
        )

    def send(self, batch: StepBatch, bucket: int) -> None:
        """Copy the batch to the device, and padding tokens, which write to block 0 and attend to nothing."""
        numbers, edges = self._staging.next(), self._edges
        rows, firsts = prompt_attention.query_blocks(batch.query_start.numpy(), batch.context_lens.numpy(), self._group)
        num_rows, width = batch.block_tables.shape
        numbers[0] = width
        for begin, values in zip(edges, (batch.tokens, batch.positions, batch.slots), strict=False):
            numbers[begin : begin + len(values)] = values.numpy()
            numbers[begin + len(values) : begin + bucket] = 0
        for begin, values in zip(edges[3:5], (batch.query_start, batch.context_lens), strict=True):
            numbers[begin : begin + len(values)] = values.numpy()
        programs = self._num_programs(bucket)
        numbers[edges[5] : edges[5] + programs] = 0
        numbers[edges[6] : edges[6] + programs] = _NO_TOKEN
        numbers[edges[5] : edges[5] + len(rows)] = rows
        numbers[edges[6] : edges[6] + len(firsts)] = firsts
        numbers[edges[7] : edges[7] + len(batch.outputs)] = batch.outputs.numpy()
        stop = edges[8] + num_rows * width
        numbers[edges[8] : stop] = batch.block_tables.numpy().ravel()
        self._staging.send(self._all, stop)


def on_block_0(count: int, block_size: int) -> StepBatch:
    """Return a prompt of so many tokens on block 0, with a sample."""
    zeros, one = torch.zeros(count, dtype=torch.int32), torch.tensor([count], dtype=torch.int32)
    starts = torch.tensor([0, count], dtype=torch.int32)
    tables = torch.zeros((1, -(-count // block_size)), dtype=torch.int32)
    return StepBatch(zeros, zeros, zeros, starts, one, tables, one - 1)
