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

    def put(self, receipt: wire.Receipt) -> None:
        """The latest receipt of an id stands."""
        self._drop(receipt.request_id)
        raw = receipt.SerializeToString()
        self._kept[receipt.request_id] = _Kept(self._clock.now() + self._seconds, raw)
        self._num_bytes += _weight(receipt.request_id, raw)
        self._expire()
        while len(self._kept) > self._most or self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, request_id: str) -> wire.Receipt | None:
        self._expire()
        kept = self._kept.get(request_id)
        return None if kept is None else wire.Receipt.FromString(kept.raw)

    def _expire(self) -> None:
        """All are kept equally long, so that the first is always the next to go."""
        now = self._clock.now()
        while self._kept and next(iter(self._kept.values())).until <= now:
            self._drop(next(iter(self._kept)))

    def _drop(self, request_id: str) -> None:
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self._num_bytes -= _weight(request_id, kept.raw)


def _weight(request_id: str, raw: bytes) -> int:
    return len(request_id.encode()) + len(raw)
