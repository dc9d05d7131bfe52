"""Adapters in a GPU's memory, in pages of 16 ranks. The rows of a step may have different adapters."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from specialist.adapters.adapter import Adapter, matrix_shapes
from specialist.models.checkpoint import ModelConfig
from specialist.ops.gpu.low_rank import RANKS

GROUPS = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""The matrices of a layer that have the same input. The product of a group is one kernel."""
QKV, OUT, GATE_UP, DOWN = range(len(GROUPS))
MOST_PAGES, _FIRST_PAGES = 128, 16

Stack = tuple[Adapter, ...]
"""The adapters of a row, in order. Their terms are added up, so a stack is one adapter with the ranks of all."""


def page_bytes(config: ModelConfig, itemsize: int) -> int:
    """Return the bytes of a page, if adapters change every matrix."""
    ranks: int = RANKS.value
    return itemsize * ranks * sum(rows + columns for rows, columns in matrix_shapes(config).values())


class Placed(NamedTuple):
    """The pages of a step: those of a row are `pages[first : first + count]`."""

    pages: tuple[int, ...]
    firsts: tuple[int, ...]
    counts: tuple[int, ...]


class GpuAdapters:
    """Keeps the most recently used stacks. Only the engine's thread uses it. A page is written after all steps that
    were launched before have read it."""

    def __init__(self, config: ModelConfig, most_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        """`most_pages` may be exceeded only if a single step needs more."""
        self._num_layers, self._most_pages = config.num_layers, most_pages
        self._device, self._dtype = device, dtype
        shapes = matrix_shapes(config)
        self._shapes = [[shapes[f"layers.0.{name}"] for name in group] for group in GROUPS]
        self.edges = [_edges([rows for rows, _ in group]) for group in self._shapes]
        self.num_pages = min(_FIRST_PAGES, most_pages)  # when it grows, all tensors are replaced
        self.a: dict[int, Tensor] = {}  # by group, if an adapter changes it: [layers, pages, matrices, 16, columns]
        self.b: dict[int, Tensor] = {}  # [layers, pages, rows, 16]
        self._free = list(range(self.num_pages))
        self._held: OrderedDict[tuple[str, ...], tuple[int, ...]] = OrderedDict()  # least recently used first

    @torch.inference_mode()
    def place(self, stacks: Sequence[Stack]) -> Placed | None:
        """Return the pages of rows with these stacks, which are loaded where necessary. None if no row has adapters.
        Raises torch.OutOfMemoryError if they do not fit."""
        wanted = {tuple(adapter.digest for adapter in stack): stack for stack in stacks if stack}
        if not wanted:
            return None
        for name, stack in wanted.items():
            if name not in self._held:
                self._held[name] = self._load(stack, wanted)
            self._held.move_to_end(name)
        names = sorted(wanted)
        ends = list(accumulate(len(self._held[name]) for name in names))
        spans = {
            name: (end - len(self._held[name]), len(self._held[name])) for name, end in zip(names, ends, strict=True)
        }
        spans[()] = (0, 0)
        rows = [spans[tuple(adapter.digest for adapter in stack)] for stack in stacks]
        pages = tuple(page for name in names for page in self._held[name])
        return Placed(pages, tuple(first for first, _ in rows), tuple(count for _, count in rows))

    def _load(self, stack: Stack, wanted: Iterable[tuple[str, ...]]) -> tuple[int, ...]:
        edges = [0, *accumulate(adapter.rank for adapter in stack)]
        count = -(-edges[-1] // RANKS.value)
        self._make_room(count, set(wanted))
        taken = tuple(self._free.pop() for _ in range(count))
        try:
            for group, names in enumerate(GROUPS):
                self._write(group, names, stack, edges, taken)
        except BaseException:
            self._free.extend(taken)
            raise
        return taken

    def _make_room(self, count: int, wanted: set[tuple[str, ...]]) -> None:
        while len(self._free) < count:
            unused = next((name for name in self._held if name not in wanted), None)
            may_grow = unused is None or 2 * self.num_pages <= self._most_pages
            if may_grow and self._grow(must=unused is None):
                continue
            if unused is not None:
                self._free.extend(self._held.pop(unused))

    def _grow(self, *, must: bool) -> bool:
        """Double the number of pages. If memory is short, raise torch.OutOfMemoryError if it must, else never grow."""
        before, size = self.num_pages, 2 * self.num_pages
        kept = [(memory, group, old) for memory in (self.a, self.b) for group, old in memory.items()]
        try:
            grown = [old.new_zeros(old.shape[0], size, *old.shape[2:]) for _, _, old in kept]
        except torch.OutOfMemoryError:
            self._most_pages = before
            if must:
                raise
            return False
        for (memory, group, old), new in zip(kept, grown, strict=True):
            new[:, :before] = old
            memory[group] = new
        self._free.extend(range(before, size))
        self.num_pages = size
        return True

    def _write(
        self, group: int, names: tuple[str, ...], stack: Stack, edges: list[int], pages: tuple[int, ...]
    ) -> None:
        changed = any(
            f"layers.{i}.{name}" in each.targets for each in stack for i in range(self._num_layers) for name in names
        )
        if not changed and group not in self.a:
            return
        shapes = self._shapes[group]
        columns, rows = shapes[0][1], [0, *accumulate(height for height, _ in shapes)]
        ranks = len(pages) * RANKS.value
        a = torch.zeros(self._num_layers, len(names), ranks, columns)
        b = torch.zeros(self._num_layers, rows[-1], ranks)
        for adapter, begin in zip(stack, edges, strict=False):
            for layer in range(self._num_layers):
                for index, name in enumerate(names):
                    if low := adapter.targets.get(f"layers.{layer}.{name}"):
                        its = slice(begin, begin + len(low.a))
                        a[layer, index, its] = low.a
                        b[layer, rows[index] : rows[index + 1], its] = low.scale * low.b.float()
        by_page = a.view(*a.shape[:2], len(pages), RANKS.value, columns), b.view(*b.shape[:2], len(pages), RANKS.value)
        for memory, values in zip((self.a, self.b), (each.movedim(2, 1) for each in by_page), strict=True):
            if group not in memory:
                shape = (self._num_layers, self.num_pages, *values.shape[2:])
                memory[group] = torch.zeros(shape, dtype=self._dtype, device=self._device)
            memory[group][:, list(pages)] = values.to(self._dtype).to(self._device)


def _edges(heights: Sequence[int]) -> tuple[int, int]:
    """Return where the second and the third matrix begin in the stacked ones; after all of them if there is none."""
    begins = [*accumulate(heights[:-1]), sum(heights), sum(heights)]
    return begins[0], begins[1]
