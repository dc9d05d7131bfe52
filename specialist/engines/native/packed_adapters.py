"""Adapters as the C++ decoder reads them."""

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specialist.adapters.adapter import Adapter
from specialist.ops.cpu.library import TARGETS, LowRank
from specialist.ops.cpu.pack import pack_floats


class PackedAdapters:
    """Adapters as the kernels read them, the most recent few, and the pointer tables of the stacks made of them."""

    def __init__(self, num_layers: int, most: int) -> None:
        self._num_layers = num_layers
        self._most = most
        self._packed: OrderedDict[str, tuple[Any, list[NDArray[np.uint8]]]] = OrderedDict()
        self._stack: tuple[tuple[str, ...], Any] = ((), None)

    def address(self, adapters: Sequence[Adapter]) -> int | None:
        """Of [adapters, layers, targets] LowRanks, good until the next call."""
        if not adapters:
            return None
        names = tuple(adapter.digest for adapter in adapters)
        if self._stack[0] != names:
            tables = [self._table(adapter) for adapter in adapters]
            lows = [low for table in tables for low in table]
            self._stack = (names, (LowRank * len(lows))(*lows))
        return ctypes.addressof(self._stack[1])

    def _table(self, adapter: Adapter) -> Any:
        if adapter.digest not in self._packed:
            while len(self._packed) >= self._most:
                self._packed.popitem(last=False)
            self._packed[adapter.digest] = self._pack(adapter)
        self._packed.move_to_end(adapter.digest)
        return self._packed[adapter.digest][0]

    def _pack(self, adapter: Adapter) -> tuple[Any, list[NDArray[np.uint8]]]:
        table = (LowRank * (self._num_layers * len(TARGETS)))()
        kept = []
        for layer in range(self._num_layers):
            for index, target in enumerate(TARGETS):
                low = adapter.targets.get(f"layers.{layer}.{target}")
                if low is not None:
                    a, b = pack_floats(low.a), pack_floats(low.b)
                    kept += [a, b]
                    at = layer * len(TARGETS) + index
                    table[at] = LowRank(a.ctypes.data, b.ctypes.data, low.a.shape[0], low.scale)
        return table, kept
