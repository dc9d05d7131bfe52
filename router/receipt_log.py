"""Receipts of ended requests, found later in memory or in the store."""

from collections import OrderedDict

from google.protobuf.message import DecodeError

from octet.clock import Clock
from octet.rpc.refusal import Refusal
from octet.telemetry.outcomes import request_outcome, responsible_specialist
from octet.v1 import inference_pb2 as wire
from router.store.rows import ReceiptLabels, ReceiptRow, StoreUnavailable
from router.store.store import Store

MAX_CACHE_BYTES = 32 << 20


def receipt_key(request_id: str, tenant: str) -> str:
    return f"{tenant}:{request_id}" if tenant else request_id


class ReceiptCache:
    """Recent receipts, bounded by number, bytes and age. The oldest are dropped first."""

    def __init__(self, clock: Clock, *, max_receipts: int, seconds: float, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._clock = clock
        self._max_receipts = max_receipts
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._receipts: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # expiry and content
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._receipts)

    def put(self, receipt: wire.Receipt, key: str = "") -> None:
        """Store a receipt, replacing one with the same key; the default key is the request id."""
        key = key or receipt.request_id
        self._drop(key)
        raw = receipt.SerializeToString()
        self._receipts[key] = self._clock.now() + self._seconds, raw
        self.num_bytes += len(key.encode()) + len(raw)
        self._expire()
        while len(self._receipts) > self._max_receipts or self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._receipts)))

    def get(self, key: str) -> wire.Receipt | None:
        self._expire()
        cached = self._receipts.get(key)
        return None if cached is None else wire.Receipt.FromString(cached[1])

    def _expire(self) -> None:
        """All receipts have the same lifetime, so the first is always the next to expire."""
        now = self._clock.now()
        while self._receipts and next(iter(self._receipts.values()))[0] <= now:
            self._drop(next(iter(self._receipts)))

    def _drop(self, key: str) -> None:
        if (cached := self._receipts.pop(key, None)) is not None:
            self.num_bytes -= len(key.encode()) + len(cached[1])


class ReceiptLog:
    def __init__(self, cache: ReceiptCache, store: Store) -> None:
        self._cache = cache
        self._store = store

    def put(self, receipt: wire.Receipt) -> None:
        key = receipt_key(receipt.request_id, receipt.tenant)
        self._cache.put(receipt, key)
        row = ReceiptRow(key, receipt.created_unix_ms, receipt.SerializeToString(), receipt_labels(receipt))
        self._store.keep_receipt(row)

    async def get(self, request_id: str, tenant: str = "") -> wire.Receipt | None:
        """Return a receipt of that tenant only. Raises Refusal if the store may have it but does not answer."""
        key = receipt_key(request_id, tenant)
        receipt = self._cache.get(key)
        if receipt is None:
            try:
                row = await self._store.receipt(key)
            except StoreUnavailable:
                message = "older receipts cannot be read now: the store does not answer"
                raise Refusal(wire.ERROR_REASON_STORE_UNAVAILABLE, message, field="request_id") from None
            except Refusal:  # no receipt has an id like this
                return None
            receipt = None if row is None else parse_receipt(row.raw)
        return receipt if receipt is not None and receipt.tenant == tenant else None


def parse_receipt(raw: bytes) -> wire.Receipt | None:
    try:
        receipt: wire.Receipt = wire.Receipt.FromString(raw)
    except DecodeError:
        return None
    return receipt


def receipt_labels(receipt: wire.Receipt) -> ReceiptLabels:
    return ReceiptLabels(receipt.tenant, responsible_specialist(receipt), request_outcome(receipt))


def parse_receipt_labels(raw: bytes) -> ReceiptLabels:
    """Return the labels of a receipt that was stored without them. Used on any thread."""
    receipt = parse_receipt(raw)
    return ReceiptLabels(outcome="unreadable") if receipt is None else receipt_labels(receipt)
