"""The store as the service reads it."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

import grpc

from octet.rpc.refusal import Refusal
from octet.store import ComparisonRow, StoreUnavailable
from octet.v1 import error_pb2


class Comparisons(Protocol):
    def comparisons(self, since_ms: int) -> AsyncIterator[ComparisonRow]:
        """Raises StoreUnavailable."""


class StoreArchive:
    def __init__(self, store: Comparisons) -> None:
        self._store = store

    async def comparisons(self, since_ms: int) -> AsyncGenerator[bytes, None]:
        try:
            async for row in self._store.comparisons(since_ms):
                yield row.raw
        except StoreUnavailable as error:
            raise Refusal(
                grpc.StatusCode.UNAVAILABLE,
                error_pb2.ERROR_REASON_STORE_UNAVAILABLE,
                f"what is kept cannot be read now: {error}",
            ) from None
