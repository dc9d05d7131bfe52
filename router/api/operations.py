"""Operator calls, with their checks and limits, shared by gRPC and HTTP."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from google.protobuf.message import Message

from octet.limits import Range, shorten
from octet.rpc.checks import FieldChecks
from octet.rpc.handlers import ConcurrencyLimit
from octet.rpc.refusal import Refusal, invalid_field
from octet.telemetry.outcomes import OUTCOMES
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.control.audit import unknown_name
from router.control.control import ControlPlane
from router.quality.slo import SloTracker
from router.receipt_log import ReceiptLog
from router.request import current_caller
from router.store.rows import ReceiptLabels, ReceiptQuery

_log = logging.getLogger(__name__)
REQUEST_BYTES = 64 << 10
MAX_AUDIT = 2_000  # about 10 ms of the event loop
DEFAULT_AUDIT = 100
MAX_RECEIPTS = 500
DEFAULT_RECEIPTS = 50
_MAX_READERS = 16  # dashboards must take no capacity from callers
_TEN_YEARS = 10 * 365 * 86_400
_RANGES = {"value": Range(-1_000_000, 1_000_000), "last_seconds": Range(0, _TEN_YEARS), "most": Range(0, MAX_AUDIT)}
_NAMES = ("specialist", "hold", "name", "replica", "subject", "outcome", "tenant", "request_id", "change.who")
_SIZES = {**dict.fromkeys(_NAMES, 256), "path": 4096, "model": 4096, "digest": 256, "change.why": 2048}
CHECKS = FieldChecks(_RANGES, _SIZES, {})
RECEIPT_CHECKS = FieldChecks({"most": Range(0, MAX_RECEIPTS), "before_unix_ms": Range(0, 2**53)}, _SIZES, {})
_CHANGES: Mapping[type[Message], str] = {  # by request: the method that takes its fields, `who` and `why`
    wire.HoldBreakerRequest: "hold_breaker",
    wire.ReleaseBreakerRequest: "release_breaker",
    wire.RelearnFloorRequest: "relearn_floor",
    wire.SetKnobRequest: "set_knob",
    wire.ReleaseKnobRequest: "release_knob",
    wire.LoadLaneRequest: "load_adapter",
    wire.RefreshModelRequest: "refresh",
    wire.PromoteLaneRequest: "promote",
    wire.RollBackLaneRequest: "roll_back",
    wire.DrainReplicaRequest: "drain_replica",
    wire.UndrainReplicaRequest: "undrain_replica",
}
ShadowCounts = Callable[[], wire.ShadowCounts]  # since this router started


class OperatorApi:
    """The operator's calls, made for the current caller. Used on the event loop. Every call may raise Refusal."""

    def __init__(self, controls: ControlPlane, receipts: ReceiptLog, slos: SloTracker) -> None:
        self.controls = controls
        self.readers = ConcurrencyLimit(_MAX_READERS, "reading receipts")
        self._receipts = receipts
        self._slos = slos
        self._changes: set[asyncio.Task[Any]] = set()

    @property
    def num_changes(self) -> int:
        return len(self._changes)

    async def list_breakers(self, _: wire.ListBreakersRequest) -> wire.ListBreakersResponse:
        controls = self.controls
        return wire.ListBreakersResponse(breakers=controls.breakers(), store_trouble=controls.store_trouble)

    async def list_knobs(self, _: wire.ListKnobsRequest) -> wire.ListKnobsResponse:
        return wire.ListKnobsResponse(knobs=self.controls.knobs())

    async def list_lanes(self, request: wire.ListLanesRequest) -> wire.ListLanesResponse:
        with self._suggesting(request):
            return wire.ListLanesResponse(lanes=self.controls.lanes(*_check(request, "specialist")))

    async def list_replicas(self, _: wire.ListReplicasRequest) -> wire.ListReplicasResponse:
        return wire.ListReplicasResponse(replicas=self.controls.replicas())

    async def change(self, request: Any) -> Any:
        """Make the change that `request` describes. Once started, it is finished even if the caller disconnects."""
        values = _check(request, *(field.name for field in request.DESCRIPTOR.fields if field.name != "change"))
        who = CHECKS.identifier("change.who", request.change.who)
        why = CHECKS.identifier("change.why", request.change.why)
        key = current_caller().name
        if key and who != key:  # the key's name is verified; the name that its caller states is not
            who = f"{key} as {who}" if who else key
        change = asyncio.create_task(getattr(self.controls, _CHANGES[type(request)])(*values, who=who, why=why))
        self._changes.add(change)
        change.add_done_callback(self._change_done)
        with self._suggesting(request):
            return await asyncio.shield(change)

    async def audit(self, request: wire.ListAuditRequest) -> Sequence[wire.AuditEntry]:
        """List audit entries, newest first."""
        most, subject = _check(request, "most", "subject")
        return await self.controls.audit(int(most) or DEFAULT_AUDIT, subject)

    async def receipts(self, request: wire.ListReceiptsRequest) -> Sequence[bytes]:
        tenant, specialist, outcome = _check(request, "tenant", "specialist", "outcome")
        if outcome and outcome not in OUTCOMES:
            raise invalid_field("outcome", f"one of {', '.join(OUTCOMES)}", shorten(outcome))
        most = int(RECEIPT_CHECKS.in_range("most", request.most)) or DEFAULT_RECEIPTS
        before_ms = int(RECEIPT_CHECKS.in_range("before_unix_ms", request.before_unix_ms))
        found = await self._receipts.newest(ReceiptQuery(most, before_ms, ReceiptLabels(tenant, specialist, outcome)))
        names = dict.fromkeys(breaker.specialist for breaker in self.controls.breakers())
        if not found and specialist and specialist not in names:  # perhaps it is misspelt
            with self._suggesting(request):
                raise unknown_name("specialist", specialist, names)
        return found

    async def explain(self, request: wire.ExplainRequest) -> wire.Story:
        request_id, tenant = _check(request, "request_id", "tenant")
        with self.readers.enter():
            receipt = await self._receipts.find(request_id, tenant, current_caller().tenant)
            primary = receipt.decision.primary
            fallbacks = (breaker.fallback for breaker in self.controls.breakers() if breaker.specialist == primary)
            return await self._receipts.explain(receipt, next(fallbacks, ""))

    async def get_slo(self, request: wire.GetSloRequest) -> wire.GetSloResponse:
        (specialist,) = _check(request, "specialist")
        with self._suggesting(request):
            return wire.GetSloResponse(slos=[self._slos.of(specialist)] if specialist else self._slos.all())

    def _change_done(self, change: "asyncio.Task[Any]") -> None:
        self._changes.discard(change)
        if not change.cancelled() and change.exception() is not None:
            _log.debug("a change was refused: %s", change.exception())

    @contextmanager
    def _suggesting(self, request: Any) -> Iterator[None]:
        """Add a similar known name to the refusal of an unknown name."""
        try:
            yield
        except Refusal as refusal:
            error = refusal.error
            is_unknown = error.reason == error_pb2.ERROR_REASON_UNKNOWN_NAME
            if not is_unknown or error.field not in request.DESCRIPTOR.fields_by_name:
                raise
            near = get_close_matches(getattr(request, error.field), list(self._names(error.field, request)), n=1)
            if not near:
                raise
            message = f"{error.message}; did you mean {near[0]}?"
            kept: Any = {"field": error.field, "limit": error.limit, "value": error.value}
            raise Refusal(error.reason, message, code=refusal.code, **kept) from None

    def _names(self, field: str, request: Any) -> Iterable[str]:
        if field == "specialist":
            return (breaker.specialist for breaker in self.controls.breakers())
        if field == "replica":
            return (replica.name for replica in self.controls.replicas())
        if isinstance(request, wire.SetKnobRequest | wire.ReleaseKnobRequest):
            return (knob.name for knob in self.controls.knobs())
        return (lane.adapter for lane in self.controls.lanes() if lane.status == "candidate")


def _check(request: Any, *fields: str) -> list[Any]:
    checks = {field: CHECKS.in_range if field in _RANGES else CHECKS.identifier for field in fields}
    return [check(field, getattr(request, field)) for field, check in checks.items()]
