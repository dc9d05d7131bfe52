"""Receipts of every tenant, comparisons, and explanations of single requests, from the shared store."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args

from admission.knobs import UNSPECIFIED_INTENT, Knob, KnobName
from octet.rpc.refusal import Refusal, invalid_field
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as inference
from octet.v1 import operator_pb2 as wire
from router.control.audit import audit_to_wire
from router.receipt_log import parse_receipt, receipt_key
from router.refusals import unknown_request
from router.store.rows import ReceiptQuery, StoreUnavailable
from router.store.store import Store

FindReceipt = Callable[[str, str], Awaitable[inference.Receipt | None]]  # by request id and tenant. Raises Refusal.
_ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "msg_")  # prefixes of request ids in answer ids
_AUDIT_MS_BEFORE = 3_600_000
_MAX_AUDIT_LINES = 100


@dataclass(frozen=True)
class ComparisonArchive:
    _store: Store

    async def comparisons(self, since_ms: int) -> AsyncGenerator[bytes, None]:
        """Yield serialized octet.v1.Comparison, oldest first. Raises Refusal."""
        with _store_refusals():
            async for row in self._store.comparisons(since_ms):
                yield row.raw


@dataclass(frozen=True)
class ReceiptArchive:
    """Finds and explains stored requests. Used on the event loop. Every call may raise Refusal. `_fallback_of` returns
    the configured fallback of a specialist, or an empty string."""

    _store: Store
    _find_receipt: FindReceipt
    _fallback_of: Callable[[str], str]

    async def newest(self, query: ReceiptQuery) -> Sequence[bytes]:
        """Return serialized octet.v1.Receipt, newest first."""
        with _store_refusals():
            return [row.raw for row in await self._store.receipts.newest(query)]

    async def story(self, request_id: str, tenant: str, own: str) -> wire.Story:
        """Explain a request of the tenant; if none is given, of `own`, or else of the only tenant that has the id."""
        receipt = await self._receipt(request_id, tenant, own)
        key = receipt_key(receipt.request_id, receipt.tenant)
        began = receipt.created_unix_ms
        until = began + round(receipt.timings.total * 1000)
        subjects = audit_subjects(receipt, self._fallback_of(receipt.decision.primary))
        with _store_refusals():
            comparisons, row, changes = await asyncio.gather(
                self._store.receipts.comparisons(key),
                self._store.receipt(key),
                self._store.receipts.audit_of(subjects, began - _AUDIT_MS_BEFORE, until, _MAX_AUDIT_LINES),
            )
        found = (wire.Comparison.FromString(each.raw) for each in comparisons if each.at_ms >= began)
        comparison = next((each for each in found if each.request_id == receipt.request_id), None)
        judged = row.judged if row is not None and row.at_ms == began else ""
        if not judged and comparison is not None and comparison.primary_outcome in ("passed", "failed"):
            judged = comparison.primary_outcome
        entries = list(map(audit_to_wire, changes))
        return wire.Story(receipt=receipt, comparison=comparison, judged=judged, changes=entries)

    async def _receipt(self, request_id: str, tenant: str, own: str) -> inference.Receipt:
        for each in possible_request_ids(request_id):
            found = await self._find_receipt(each, tenant or own)
            if found is not None:
                return found
        if not tenant:
            for each in possible_request_ids(request_id):
                found = await self._receipt_of_any_tenant(each)
                if found is not None:
                    return found
        raise unknown_request(request_id)

    async def _receipt_of_any_tenant(self, request_id: str) -> inference.Receipt | None:
        """Raises Refusal if several tenants have a request with this id."""
        with _store_refusals():
            rows = await self._store.receipts.find_by_id(request_id)
        tenants = sorted({row.labels.tenant for row in rows})
        if len(tenants) > 1:
            raise invalid_field("tenant", f"one of {', '.join(tenants)}: each has a request with this id", "none")
        return parse_receipt(rows[0].raw) if rows else None


def possible_request_ids(given: str) -> list[str]:
    """Return the ids that a request id or an answer id may mean; a caller's own id may start like an answer id."""
    return [given, *(given.removeprefix(prefix) for prefix in _ANSWER_PREFIXES if given.startswith(prefix))]


def audit_subjects(receipt: inference.Receipt, fallback: str = "") -> list[str]:
    """Return the audit subjects that concern a request: its specialists, knobs and replicas, and the store. `fallback`
    is the primary's."""
    specialists = _distinct(
        receipt.specialist,
        receipt.decision.primary,
        receipt.decision.second_choice,
        fallback,
        receipt.between.instead_of,
        receipt.between.shadow.specialist,
        *(attempt.specialist for attempt in receipt.attempts),
    )
    replicas = (receipt.replica, *(attempt.replica for attempt in receipt.attempts))
    intent = receipt.decision.intent or UNSPECIFIED_INTENT
    knobs = [str(KnobName(intent, each, knob)) for each in (None, *specialists) for knob in get_args(Knob)]
    return _distinct(*specialists, *replicas, *knobs, "store")


def _distinct(*names: str) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))


@contextmanager
def _store_refusals() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        message = f"the store cannot be read now: {error}"
        raise Refusal(error_pb2.ERROR_REASON_STORE_UNAVAILABLE, message) from None
