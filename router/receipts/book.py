"""Receipts that somebody may still ask for. Bounded three ways; the oldest go first."""

from collections import OrderedDict
from typing import NamedTuple

from octet.clock import Clock
from octet.v1 import inference_pb2 as wire

MAX_BYTES = 32 << 20


class _Kept(NamedTuple):
    until: float
    raw: bytes


class ReceiptBook:
    def __init__(self, clock: Clock, *, most: int, seconds: float, max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, receipt: wire.Receipt, name: str = "") -> None:
        """The latest receipt of a name stands; it is kept under its request's id where none is given."""
        name = name or receipt.request_id
        self._drop(name)
        raw = receipt.SerializeToString()
        self._kept[name] = _Kept(self._clock.now() + self._seconds, raw)
        self._num_bytes += _weight(name, raw)
        self._expire()
        while len(self._kept) > self._most or self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, name: str) -> wire.Receipt | None:
        self._expire()
        kept = self._kept.get(name)
        return None if kept is None else wire.Receipt.FromString(kept.raw)

    def _expire(self) -> None:
        """All are kept equally long, so that the first is always the next to go."""
        now = self._clock.now()
        while self._kept and next(iter(self._kept.values())).until <= now:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._num_bytes -= _weight(name, kept.raw)


def _weight(name: str, raw: bytes) -> int:
    return len(name.encode()) + len(raw)
