"""Receipts of everybody, and stories of single requests, from the store that routers share."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc
from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal, invalid
from octet.store import ReceiptQuery, Store, StoreUnavailable
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as inference
from octet.v1 import operator_pb2 as wire
from router.control.rows import entry_of
from router.dispatch.live import unknown
from router.operator.subjects import subjects_of
from router.receipts.kept_as import kept_as

FindReceipt = Callable[[str, str], Awaitable[inference.Receipt | None]]
"""By the request's id and its tenant. Raises Refusal."""
PREFIXES = ("chatcmpl-", "cmpl-", "msg_")
"""What stands before a request's id in that of its answer."""
_BEFORE_MS = 3_600_000
_MOST_CHANGES = 100
_TELLING = ("passed", "failed")


class StoreLibrary:
    """Belongs to the event loop."""

    def __init__(self, store: Store, find_receipt: FindReceipt, fallback_of: Callable[[str], str]) -> None:
        """`fallback_of`: who is configured to stand in for a specialist; empty where nobody is."""
        self._store = store
        self._find_receipt = find_receipt
        self._fallback_of = fallback_of

    async def newest(self, query: ReceiptQuery) -> Sequence[bytes]:
        with _read():
            return [row.raw for row in await self._store.records.newest(query)]

    async def story(self, request_id: str, tenant: str, own: str) -> wire.Story:
        """Raises Refusal."""
        receipt = await self._receipt(request_id, tenant, own)
        with _read():
            comparison, judged, changes = await asyncio.gather(
                self._comparison(receipt), self._judged(receipt), self._changes(receipt)
            )
        if not judged and comparison is not None and comparison.primary_outcome in _TELLING:
            judged = comparison.primary_outcome
        return wire.Story(receipt=receipt, comparison=comparison, judged=judged, changes=changes)

    async def _receipt(self, request_id: str, tenant: str, own: str) -> inference.Receipt:
        for each in ids_of(request_id):
            found = await self._find_receipt(each, tenant or own)
            if found is not None:
                return found
        if not tenant:
            for each in ids_of(request_id):
                found = await self._only_one(each)
                if found is not None:
                    return found
        raise unknown(request_id)

    async def _only_one(self, request_id: str) -> inference.Receipt | None:
        """Whoever's it is. Raises Refusal where it may be several's."""
        with _read():
            rows = await self._store.records.called(request_id)
        tenants = sorted({row.labels.tenant for row in rows})
        if len(tenants) > 1:
            raise invalid("tenant", f"one of {', '.join(tenants)}: each has a request of this id", "none")
        return _parsed(rows[0].raw) if rows else None

    async def _comparison(self, receipt: inference.Receipt) -> wire.Comparison | None:
        for row in await self._store.records.comparisons(kept_as(receipt.request_id, receipt.tenant)):
            found: wire.Comparison = wire.Comparison.FromString(row.raw)
            if found.request_id == receipt.request_id and row.at_ms >= receipt.created_unix_ms:
                return found
        return None

    async def _judged(self, receipt: inference.Receipt) -> str:
        row = await self._store.receipt(kept_as(receipt.request_id, receipt.tenant))
        return row.judged if row is not None and row.at_ms == receipt.created_unix_ms else ""

    async def _changes(self, receipt: inference.Receipt) -> list[wire.AuditEntry]:
        began = receipt.created_unix_ms
        until = began + round(receipt.timings.total * 1000)
        subjects = subjects_of(receipt, self._fallback_of(receipt.decision.primary))
        rows = await self._store.records.changes(subjects, began - _BEFORE_MS, until, _MOST_CHANGES)
        return list(map(entry_of, rows))


def ids_of(asked: str) -> list[str]:
    """Of a request or of an answer; a caller's own id may begin like that of an answer."""
    return [asked, *(asked.removeprefix(prefix) for prefix in PREFIXES if asked.startswith(prefix))]


@contextmanager
def _read() -> Iterator[None]:
    """Raises Refusal."""
    try:
        yield
    except StoreUnavailable as error:
        raise Refusal(
            grpc.StatusCode.UNAVAILABLE,
            error_pb2.ERROR_REASON_STORE_UNAVAILABLE,
            f"what is kept cannot be read now: {error}",
        ) from None


def _parsed(raw: bytes) -> inference.Receipt | None:
    try:
        receipt: inference.Receipt = inference.Receipt.FromString(raw)
    except DecodeError:
        return None
    return receipt
