"""Receipts and what belongs to them as the router's event loop sees them: what is written by anybody, and what is held
here. Nothing blocks; every call raises StoreUnavailable."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from octet.store.database import Database
from octet.store.held import Held
from octet.store.record_table import RecordTable
from octet.store.rows import AuditRow, ComparisonRow, ReceiptQuery, ReceiptRow
from octet.store.values import is_key

T = TypeVar("T")
S = TypeVar("S")


class AskFor(Protocol):
    """Raises StoreUnavailable."""

    def __call__(self, do: Callable[[Database], T], shape: Callable[[T], S], /) -> Awaitable[S]: ...


class Records:
    def __init__(self, ask_for: AskFor, held: Held) -> None:
        """`ask_for` shapes on the event loop, before more is written: what is not in the answer is still held."""
        self._ask_for = ask_for
        self._held = held

    async def newest(self, query: ReceiptQuery) -> Sequence[ReceiptRow]:
        """Newest first."""

        def with_held(stored: list[ReceiptRow]) -> Sequence[ReceiptRow]:
            found = {row.request_id: row for row in stored}
            replaced = {row.request_id: row for row in self._held.receipts()}
            kept = [row for row in found.values() if row.request_id not in replaced]
            wanted = [*filter(query.wants, reversed(replaced.values())), *kept]
            return sorted(wanted, key=lambda row: row.at_ms, reverse=True)[: query.most]

        if not all(map(is_key, query.given.values())):  # no receipt has such labels
            return ()
        return await self._ask_for(lambda database: RecordTable(database).newest(query), with_held)

    async def called(self, request_id: str) -> Sequence[ReceiptRow]:
        """Of whichever tenant, some of them where they are many."""

        def with_held(stored: list[ReceiptRow]) -> Sequence[ReceiptRow]:
            found = {row.request_id: row for row in (*stored, *self._held.receipts()) if _is_called(row, request_id)}
            return [self._held.verdicts.beside(row) for row in found.values()]

        if not is_key(request_id):  # no request is called so
            return ()
        return await self._ask_for(lambda database: RecordTable(database).called(request_id), with_held)

    async def comparisons(self, request_id: str) -> Sequence[ComparisonRow]:
        """Newest first, a few."""
        if not is_key(request_id):
            return ()
        return await self._ask_for(
            lambda database: RecordTable(database).comparisons(request_id),
            lambda stored: [*self._held.comparisons(request_id), *stored],
        )

    async def changes(self, subjects: Sequence[str], since_ms: int, until_ms: int, most: int) -> Sequence[AuditRow]:
        """What the audit says of any of them, newest first."""
        known = [subject for subject in subjects if is_key(subject)]
        if not known:
            return ()
        return await self._ask_for(
            lambda database: RecordTable(database).changes(known, since_ms, until_ms, most), lambda rows: rows
        )


def _is_called(row: ReceiptRow, request_id: str) -> bool:
    tenant = row.labels.tenant
    return row.request_id == (f"{tenant}:{request_id}" if tenant else request_id)
