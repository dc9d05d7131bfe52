"""Receipts that somebody may ask for: the newest from memory, older ones from the store."""

import grpc
from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal
from octet.store import ReceiptRow, Store, StoreUnavailable
from octet.v1 import inference_pb2 as wire
from router.receipts.book import ReceiptBook
from router.receipts.kept_as import kept_as
from router.service.labels import labels_of


class Receipts:
    """Belongs to the event loop."""

    def __init__(self, book: ReceiptBook, store: Store) -> None:
        self._book = book
        self._store = store

    def put(self, receipt: wire.Receipt) -> None:
        name = kept_as(receipt.request_id, receipt.tenant)
        self._book.put(receipt, name)
        row = ReceiptRow(name, receipt.created_unix_ms, receipt.SerializeToString(), labels_of(receipt))
        self._store.keep_receipt(row)

    async def get(self, request_id: str, tenant: str = "") -> wire.Receipt | None:
        """That tenant's, and no other's. Raises Refusal where it may be kept, but cannot be read now."""
        receipt = await self._find(kept_as(request_id, tenant))
        return receipt if receipt is not None and receipt.tenant == tenant else None

    async def _find(self, name: str) -> wire.Receipt | None:
        receipt = self._book.get(name)
        if receipt is not None:
            return receipt
        try:
            row = await self._store.receipt(name)
        except StoreUnavailable:
            raise _unreadable() from None
        except Refusal:  # no receipt has such an id
            return None
        return None if row is None else _read(row.raw)


def _unreadable() -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_STORE_UNAVAILABLE,
        "older receipts cannot be read now: the store does not answer",
        field="request_id",
    )


def _read(raw: bytes) -> wire.Receipt | None:
    try:
        receipt: wire.Receipt = wire.Receipt.FromString(raw)
    except DecodeError:
        return None
    return receipt
