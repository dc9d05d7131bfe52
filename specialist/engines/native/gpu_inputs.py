"""How integers reach the device: those of flat steps, in which each token is a row, of adapters, and of prompts."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from specialist.engines.native.decode_inputs import MOST_ROWS
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_adapters import Placed
from specialist.ops.gpu import low_rank

_RING = 4
_HEADER, _NUM_INTS, _NUM_FLOATS = 16, 5, 2


class Staging:
    """Memory on the host in several buffers, so that one can be filled while others are still being copied."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._buffers = [torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu) for _ in range(_RING)]
        self._copied = [torch.cuda.Event() for _ in range(_RING)] if on_gpu else []  # type: ignore[no-untyped-call]
        self._turn = 0

    def next(self) -> NDArray[np.int32]:
        """Return the buffer to fill next, after it has been copied."""
        self._turn = (self._turn + 1) % _RING
        if self._copied:
            self._copied[self._turn].synchronize()
        numbers: NDArray[np.int32] = self._buffers[self._turn].numpy()
        return numbers

    def send(self, target: Tensor, count: int) -> None:
        """Copy the first `count` elements, or rows, of the filled buffer to the first of the target."""
        target[:count].copy_(self._buffers[self._turn][:count], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()


def send_together(device: torch.device, *parts: Tensor) -> list[Tensor]:
    """Copy vectors of 4-byte elements to the device at once. Each starts at a multiple of 16 bytes, as a kernel is
    compiled anew for other addresses."""
    padded = [functional.pad(part, (0, -len(part) % 4)) for part in parts]
    whole = torch.cat(padded)
    sent = (whole.pin_memory() if device.type == "cuda" else whole).to(device, non_blocking=True)
    pieces = torch.split(sent, [len(part) for part in padded])
    return [piece[: len(part)] for piece, part in zip(pieces, parts, strict=True)]


class FlatInputs:
    """A step of at most MOST_ROWS tokens, in one piece of memory on the device."""

    def __init__(self, most_blocks: int, device: torch.device) -> None:
        self._tables_at = _HEADER + (_NUM_INTS + _NUM_FLOATS) * MOST_ROWS
        size = self._tables_at + MOST_ROWS * most_blocks
        self._staging = Staging((size,), device)
        self._all = torch.zeros(size, dtype=torch.int32, device=device)
        self.widths = self._all[:1]
        parts = self._all[_HEADER : self._tables_at].view(-1, MOST_ROWS)
        self.tokens, self.positions, self.slots, self.owners, self.outputs = parts[:_NUM_INTS]
        self.temperatures, self.uniforms = parts[_NUM_INTS:].view(torch.float32)
        self.tables = self._all[self._tables_at :]

    def send(self, batch: StepBatch, temperatures: Sequence[float], uniforms: Sequence[float]) -> None:
        """Copy the batch to the device, with a temperature and a uniform number for each output. Padding tokens write
        to block 0 and read the first row's first token; padding outputs are those of the first token."""
        numbers = self._staging.next()
        count, num_outputs = batch.tokens.shape[0], batch.outputs.shape[0]
        num_rows, width = batch.block_tables.shape
        numbers[0] = width
        parts = numbers[_HEADER : self._tables_at].reshape(-1, MOST_ROWS)
        parts[:] = 0
        owners = np.repeat(np.arange(num_rows), np.diff(batch.query_start.numpy()))
        parts[:4, :count] = batch.tokens.numpy(), batch.positions.numpy(), batch.slots.numpy(), owners
        parts[4, :num_outputs] = batch.outputs.numpy()
        parts[_NUM_INTS:].view(np.float32)[:, :num_outputs] = temperatures, uniforms
        stop = self._tables_at + num_rows * width
        numbers[self._tables_at : stop] = batch.block_tables.numpy().ravel()
        self._staging.send(self._all, stop)


def num_attended(batch: StepBatch) -> int:
    """Return to how many tokens those of the batch attend in all, windows left aside."""
    return int(batch.positions.numpy().sum(dtype=np.int64)) + len(batch.positions)


class AdapterInputs:
    """The pages of the rows of a captured step, on the device. They are sent only if they change."""

    def __init__(self, num_pages: int, device: torch.device) -> None:
        size = -(-(1 + num_pages) // 4) * 4
        self._staging = Staging((size + 2 * MOST_ROWS,), device)
        self._all = torch.zeros(size + 2 * MOST_ROWS, dtype=torch.int32, device=device)
        self._size = size
        self._sent: Placed | None = None
        self.rows = low_rank.Rows(*torch.split(self._all, [size, MOST_ROWS, MOST_ROWS]))

    def send(self, placed: Placed) -> None:
        if placed == self._sent:
            return
        numbers, size = self._staging.next(), self._size
        numbers[size:] = 0
        numbers[: 1 + len(placed.pages)] = (len(placed.pages), *placed.pages)
        for begin, values in ((size, placed.firsts), (size + MOST_ROWS, placed.counts)):
            numbers[begin : begin + len(values)] = values
        self._staging.send(self._all, len(numbers))
        self._sent = placed


def pages_of_tokens(batch: StepBatch, placed: Placed) -> Placed:
    """Return, for each token, the pages of its row."""
    lengths = np.diff(batch.query_start.numpy())
    firsts, counts = (tuple(np.repeat(values, lengths).tolist()) for values in placed[1:])
    return Placed(placed.pages, firsts, counts)
