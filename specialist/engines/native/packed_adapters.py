"""Adapters as the C++ decoder reads them."""

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specialist.adapters.adapter import Adapter
from specialist.ops.cpu.library import TARGETS, LowRank
from specialist.ops.cpu.pack import pack_floats


class _Packed(NamedTuple):
    table: Any
    """[layers, targets] LowRanks"""
    arrays: list[NDArray[np.uint8]]
    """What the table points into."""
    nbytes: int


class PackedAdapters:
    """The most recent, up to so many bytes, and the pointer table of the stack that was asked for last.

    Packing takes longer than a step: when more take turns than are kept, every turn of each of them packs it anew.
    One thread asks for them; any may drop one.
    """

    def __init__(self, num_layers: int, most_bytes: int, max_rank: int) -> None:
        self._num_layers = num_layers
        self._most_bytes = most_bytes
        self._max_rank = max_rank
        self._lock = Lock()
        self._packed: OrderedDict[str, _Packed] = OrderedDict()
        self._names: tuple[str, ...] = ()
        self._stack: Any = None
        self.num_packs = 0
        self.nbytes = 0
        self._members: list[_Packed] = []
        """Of the stack: kept for as long as it points to them, though others may have pushed them out."""

    def address(self, adapters: Sequence[Adapter]) -> int | None:
        """Of [adapters, layers, targets] LowRanks, good until the next call."""
        if not adapters:
            return None
        names = tuple(adapter.digest for adapter in adapters)
        if self._names != names:
            self._members = [self._get(adapter) for adapter in adapters]
            lows = [low for member in self._members for low in member.table]
            self._stack = (LowRank * len(lows))(*lows)
            self._names = names
        return ctypes.addressof(self._stack)

    def drop(self, digest: str) -> None:
        """Nobody uses it any more. What a step reads at this moment lasts until another stack is asked for."""
        with self._lock:
            self._forget(digest)

    def _get(self, adapter: Adapter) -> _Packed:
        with self._lock:
            packed = self._forget(adapter.digest)
        if packed is None:
            packed = self._pack(adapter)
            self.num_packs += 1
        with self._lock:
            self._packed[adapter.digest] = packed
            self.nbytes += packed.nbytes
            while self.nbytes > self._most_bytes and self._packed:
                self._forget(next(iter(self._packed)))
        return packed

    def _forget(self, digest: str) -> _Packed | None:
        packed = self._packed.pop(digest, None)
        self.nbytes -= 0 if packed is None else packed.nbytes
        return packed

    def _pack(self, adapter: Adapter) -> _Packed:
        if adapter.rank > self._max_rank:
            raise ValueError(f"an adapter of rank {adapter.rank}; the most is {self._max_rank}")
        table = (LowRank * (self._num_layers * len(TARGETS)))()
        arrays = []
        for layer in range(self._num_layers):
            for index, target in enumerate(TARGETS):
                low = adapter.targets.get(f"layers.{layer}.{target}")
                if low is not None:
                    a, b = pack_floats(low.a), pack_floats(low.b)
                    arrays += [a, b]
                    at = layer * len(TARGETS) + index
                    table[at] = LowRank(a.ctypes.data, b.ctypes.data, low.a.shape[0], low.scale)
        return _Packed(table, arrays, ctypes.sizeof(table) + sum(array.nbytes for array in arrays))
