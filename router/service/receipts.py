"""Receipts that somebody may ask for: the newest from memory, older ones from the store."""

import grpc
from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal
from octet.store import ReceiptRow, Store, StoreUnavailable
from octet.v1 import inference_pb2 as wire
from router.receipts.book import ReceiptBook


class Receipts:
    """Belongs to the event loop."""

    def __init__(self, book: ReceiptBook, store: Store) -> None:
        self._book = book
        self._store = store

    def put(self, receipt: wire.Receipt) -> None:
        self._book.put(receipt)
        row = ReceiptRow(receipt.request_id, receipt.created_unix_ms, receipt.SerializeToString())
        self._store.keep_receipt(row)

    async def get(self, request_id: str) -> wire.Receipt | None:
        """Raises Refusal where it may be kept, but cannot be read now."""
        receipt = self._book.get(request_id)
        if receipt is not None:
            return receipt
        try:
            row = await self._store.receipt(request_id)
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
