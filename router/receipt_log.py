"""Receipts of ended requests: kept in memory and in the store, found by id, listed and explained."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

from google.protobuf.message import DecodeError

from admission.knobs import UNSPECIFIED_INTENT, Knob, KnobName
from octet.clock import Clock
from octet.rpc.refusal import Refusal, invalid_field
from octet.telemetry.outcomes import request_outcome, responsible_specialist
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2
from router.control.audit import audit_to_wire
from router.refusals import store_unavailable, unknown_request
from router.store.rows import (
    ComparisonRow,
    ReceiptLabels,
    ReceiptQuery,
    ReceiptRow,
    StoredVerdict,
    StoreUnavailable,
    receipt_key,
)
from router.store.store import Store

MAX_CACHE_BYTES = 32 << 20
_ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_")  # an answer id is one of these, followed by the request id
_AUDIT_MS_BEFORE = 3_600_000
_MAX_AUDIT_LINES = 100
_ROWS_PER_TURN = 64  # comparisons read in one turn of the event loop: about a millisecond


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

    def put(self, key: str, raw: bytes) -> None:
        """Keep a serialized receipt; it replaces an earlier one with the same key."""
        self._drop(key)
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
        """Drop expired receipts. All have the same lifetime, so the first is always the next to expire."""
        now = self._clock.now()
        while self._receipts and next(iter(self._receipts.values()))[0] <= now:
            self._drop(next(iter(self._receipts)))

    def _drop(self, key: str) -> None:
        if (cached := self._receipts.pop(key, None)) is not None:
            self.num_bytes -= len(key.encode()) + len(cached[1])


class ReceiptLog:
    """The receipts of ended requests. Used on the event loop. Every method that reads may raise Refusal."""

    def __init__(self, cache: ReceiptCache, store: Store) -> None:
        self._cache = cache
        self._store = store

    def put(self, receipt: wire.Receipt) -> None:
        key, raw = receipt_key(receipt.request_id, receipt.tenant), receipt.SerializeToString()
        self._cache.put(key, raw)
        self._store.keep_receipt(ReceiptRow(key, receipt.created_unix_ms, raw, receipt_labels(receipt)))

    async def get(self, given: str, tenant: str = "") -> wire.Receipt | None:
        """Return the tenant's receipt for a request id or an answer id; None if there is none."""
        for request_id in possible_request_ids(given):
            key = receipt_key(request_id, tenant)
            receipt = self._cache.get(key) or await self._read(key)
            if receipt is not None and receipt.tenant == tenant:
                return receipt
        return None

    async def newest(self, query: ReceiptQuery) -> Sequence[bytes]:
        """Return the receipts that match `query`, newest first, as serialized octet.v1.Receipt messages."""
        with _store_refusals():
            return [row.raw for row in await self._store.newest_receipts(query)]

    async def comparisons(self, since_ms: int) -> AsyncGenerator[bytes, None]:
        """Yield serialized octet.v1.Comparison messages, oldest first, and let other tasks run in between."""
        number = 0
        with _store_refusals():
            async for row in self._store.comparisons(since_ms):
                yield _with_text(row) if row.text else row.raw
                number += 1
                if number % _ROWS_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def find(self, given: str, tenant: str, own: str) -> wire.Receipt:
        """Return the receipt of `tenant` with the id `given`. If `tenant` is empty, search tenant `own` first, then all
        tenants. Raises Refusal if the id is unknown, or if several other tenants have it."""
        found = await self.get(given, tenant or own)
        if found is not None:
            return found
        for request_id in () if tenant else possible_request_ids(given):
            with _store_refusals():
                rows = await self._store.receipts_by_id(request_id)
            tenants = sorted({row.labels.tenant for row in rows})
            if len(tenants) > 1:
                raise invalid_field("tenant", f"one of {', '.join(tenants)} (all have this request id)", "none")
            found = parse_receipt(rows[0].raw) if rows else None
            if found is not None:
                return found
        raise unknown_request(given)

    async def explain(self, receipt: wire.Receipt, fallback: str) -> operator_pb2.Story:
        """Collect what the store holds about a request. `fallback` is the fallback of its primary specialist."""
        key = receipt_key(receipt.request_id, receipt.tenant)
        began = receipt.created_unix_ms
        until = began + round(receipt.timings.total * 1000)
        subjects = audit_subjects(receipt, fallback)
        with _store_refusals():
            comparisons, row, changes = await asyncio.gather(
                self._store.find_comparisons(key),
                self._store.receipt(key),
                self._store.find_audit(subjects, began - _AUDIT_MS_BEFORE, until, _MAX_AUDIT_LINES),
            )
        found = (operator_pb2.Comparison.FromString(each.raw) for each in comparisons if each.at_ms >= began)
        comparison = next((each for each in found if each.request_id == receipt.request_id), None)
        judged = StoredVerdict.unpack(row.judged if row is not None and row.at_ms == began else "")
        if not judged.outcome and comparison is not None and comparison.primary_outcome in ("passed", "failed"):
            judged = StoredVerdict(comparison.primary_outcome)
        entries = list(map(audit_to_wire, changes))
        verdict = {"judged": judged.outcome, "judged_kind": judged.kind, "judged_why": judged.why}
        return operator_pb2.Story(receipt=receipt, comparison=comparison, changes=entries, **verdict)

    async def _read(self, key: str) -> wire.Receipt | None:
        try:
            row = await self._store.receipt(key)
        except StoreUnavailable:
            message = "older receipts cannot be read now: the store does not answer"
            raise Refusal(wire.ERROR_REASON_STORE_UNAVAILABLE, message, field="request_id") from None
        except Refusal:  # no receipt has an id like this
            return None
        return None if row is None else parse_receipt(row.raw)


def _with_text(row: ComparisonRow) -> bytes:
    comparison = operator_pb2.Comparison.FromString(row.raw)
    comparison.text = row.text.decode(errors="replace")
    raw: bytes = comparison.SerializeToString()
    return raw


def parse_receipt(raw: bytes) -> wire.Receipt | None:
    try:
        receipt: wire.Receipt = wire.Receipt.FromString(raw)
    except DecodeError:
        return None
    return receipt


def receipt_labels(receipt: wire.Receipt) -> ReceiptLabels:
    return ReceiptLabels(receipt.tenant, responsible_specialist(receipt), request_outcome(receipt))


def parse_receipt_labels(raw: bytes) -> ReceiptLabels:
    """Compute the labels of a serialized receipt that was stored without labels. Any thread may call this."""
    receipt = parse_receipt(raw)
    return ReceiptLabels(outcome="unreadable") if receipt is None else receipt_labels(receipt)


def possible_request_ids(given: str) -> list[str]:
    """Return `given` and, if it has the prefix of an answer id, also the request id after that prefix."""
    return [given, *(given.removeprefix(prefix) for prefix in _ANSWER_PREFIXES if given.startswith(prefix))]


def audit_subjects(receipt: wire.Receipt, fallback: str = "") -> list[str]:
    """Return the subjects of audit entries that may concern a request: its specialists, replicas and knobs, and the
    store. `fallback` names the fallback of its primary specialist."""
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
        raise store_unavailable(f"the store cannot be read now: {error}") from None
