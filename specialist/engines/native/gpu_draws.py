"""Draws tokens on a GPU, and brings them to the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.engines.native.gpu_inputs import send_together
from specialist.ops.gpu import sampling

_RING = 4  # buffers on the host; a buffer is used again after the step that used it has ended


class Drawn(NamedTuple):
    """A launched step, whose tokens are still on their way."""

    tokens: NDArray[np.int32]  # [most rows]
    peaks: NDArray[np.float32]  # [most rows], the largest logits
    arrived: torch.cuda.Event | None  # None on a CPU, which computes at once
    num_rows: int

    @property
    def stays(self) -> bool:
        return True

    def wait(self) -> tuple[list[int], list[float]]:
        """Wait for the step. Return each row's token and largest logit."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tokens[: self.num_rows].tolist(), self.peaks[: self.num_rows].tolist()


class DrawnApart(NamedTuple):
    """A launched step, whose tokens stay on the device until they are waited for. No later step overwrites them."""

    parts: list[tuple[Tensor, int]]  # the tokens and the bits of the peaks, [2, rows and padding], and how many rows

    @property
    def stays(self) -> bool:
        return False

    def wait(self) -> tuple[list[int], list[float]]:
        """Wait for the step. Return each row's token and largest logit."""
        tokens: list[int] = []
        peaks: list[float] = []
        for part, num_rows in self.parts:
            host = part.cpu()
            tokens += host[0, :num_rows].tolist()
            peaks += host[1, :num_rows].view(torch.float32).tolist()
        return tokens, peaks


class _Result:
    """One of the buffers on the host, and its parts."""

    def __init__(self, memory: Tensor, arrived: torch.cuda.Event | None) -> None:
        self.memory, self.arrived = memory, arrived
        self.tokens: NDArray[np.int32] = memory[0].numpy()
        self.peaks: NDArray[np.float32] = memory[1].view(torch.float32).numpy()


class Draws:
    """What the rows of the last step have drawn. The next step may take its tokens from here. All steps must run on the
    stream that is current when this is made: only that stream is waited for."""

    def __init__(self, most_rows: int, vocab: int, device: torch.device) -> None:
        self._most_rows, self._device = most_rows, device
        self._space = sampling.SampleSpace(most_rows, vocab, device)
        self.both = torch.zeros((2, most_rows), dtype=torch.int32, device=device)
        self.tokens, self.peaks = self.both[0], self.both[1].view(torch.float32)
        on_gpu = device.type == "cuda"
        memory = [torch.zeros((2, most_rows), dtype=torch.int32, pin_memory=on_gpu) for _ in range(_RING)]
        self._results = [_Result(each, torch.cuda.Event() if on_gpu else None) for each in memory]  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream(device) if on_gpu else None  # of all steps
        self._turn = 0

    def run(self, logits: Tensor, temperatures: Tensor, uniforms: Tensor, *, chained: bool) -> None:
        sampling.draw(logits, temperatures, uniforms, self.tokens, self.peaks, self._space, chained=chained)

    def fetch(self, num_rows: int) -> Drawn:
        """Let the first rows come to the host."""
        self._turn = (self._turn + 1) % _RING
        result = self._results[self._turn]
        result.memory.copy_(self.both, non_blocking=True)
        if result.arrived is not None:
            result.arrived.record(self._stream)
        return Drawn(result.tokens, result.peaks, result.arrived, num_rows)

    def draw(self, logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> DrawnApart:
        """Draw a token from each row of `logits`, exactly as `run` does."""
        drawn_apart = DrawnApart([])
        for first in range(0, len(logits), self._most_rows):
            part = logits[first : first + self._most_rows]
            shares = (torch.tensor(each[first : first + len(part)]) for each in (temperatures, uniforms))
            drawn = torch.empty((2, -(-len(part) // 4) * 4), dtype=torch.int32, device=self._device)
            heat, noise = send_together(self._device, *shares)
            sampling.draw(part, heat, noise, drawn[0], drawn[1].view(torch.float32), self._space)
            drawn_apart.parts.append((drawn, len(part)))
        return drawn_apart
