"""What operators do and look up, checked and bounded, the same through every door: messages in, messages out."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from octet.rpc.refusal import Refusal, invalid, shorten
from octet.store import Labels, ReceiptQuery
from octet.telemetry.outcome import OUTCOMES
from octet.v1 import operator_pb2 as wire
from router.control.refusals import unknown_name
from router.operator.controls import Controls, Library, SloSource
from router.operator.limits import CHECKS, RECEIPT_CHECKS, USUAL_AUDIT, USUAL_RECEIPTS
from router.operator.seats import Seats
from router.operator.suggest import suggesting
from router.reception.caller import current_caller

_log = logging.getLogger(__name__)
_MOST_READERS = 16
_MessageT = TypeVar("_MessageT", bound=Message)


class Desk:
    """Belongs to the event loop. Everything raises Refusal; whoever calls is the one that the door has let in."""

    def __init__(self, controls: Controls, library: Library, slos: SloSource) -> None:
        self.controls = controls
        self.readers = Seats("reading receipts", _MOST_READERS)
        """Whoever lists or explains sits on one."""
        self._library = library
        self._slos = slos
        self._making: set[asyncio.Task[Any]] = set()

    @property
    def num_changes(self) -> int:
        """Under way."""
        return len(self._making)

    async def list_breakers(self, _: wire.ListBreakersRequest) -> wire.ListBreakersResponse:
        controls = self.controls
        return wire.ListBreakersResponse(breakers=controls.breakers(), store_trouble=controls.store_trouble)

    async def hold_breaker(self, ask: wire.HoldBreakerRequest) -> wire.BreakerInfo:
        specialist, hold = _texts(ask, "specialist", "hold")
        return await self._made(ask, self.controls.hold_breaker(specialist, hold, **_signed(ask)))

    async def release_breaker(self, ask: wire.ReleaseBreakerRequest) -> wire.BreakerInfo:
        (specialist,) = _texts(ask, "specialist")
        return await self._made(ask, self.controls.release_breaker(specialist, **_signed(ask)))

    async def list_knobs(self, _: wire.ListKnobsRequest) -> wire.ListKnobsResponse:
        return wire.ListKnobsResponse(knobs=self.controls.knobs())

    async def set_knob(self, ask: wire.SetKnobRequest) -> wire.KnobInfo:
        (name,) = _texts(ask, "name")
        value = CHECKS.in_range("value", ask.value)
        return await self._made(ask, self.controls.set_knob(name, value, **_signed(ask)))

    async def release_knob(self, ask: wire.ReleaseKnobRequest) -> wire.KnobInfo:
        (name,) = _texts(ask, "name")
        return await self._made(ask, self.controls.release_knob(name, **_signed(ask)))

    async def list_lanes(self, ask: wire.ListLanesRequest) -> wire.ListLanesResponse:
        (specialist,) = _texts(ask, "specialist")
        try:
            return wire.ListLanesResponse(lanes=self.controls.lanes(specialist))
        except Refusal as refusal:
            raise self._suggesting(refusal, ask) from None

    async def load_adapter(self, ask: wire.LoadLaneRequest) -> wire.LaneInfo:
        specialist, path, name = _texts(ask, "specialist", "path", "name")
        return await self._made(ask, self.controls.load_adapter(specialist, path, name, **_signed(ask)))

    async def promote(self, ask: wire.PromoteLaneRequest) -> wire.LaneInfo:
        specialist, name = _texts(ask, "specialist", "name")
        return await self._made(ask, self.controls.promote(specialist, name, **_signed(ask)))

    async def roll_back(self, ask: wire.RollBackLaneRequest) -> wire.LaneInfo:
        (specialist,) = _texts(ask, "specialist")
        return await self._made(ask, self.controls.roll_back(specialist, **_signed(ask)))

    async def list_replicas(self, _: wire.ListReplicasRequest) -> wire.ListReplicasResponse:
        return wire.ListReplicasResponse(replicas=self.controls.replicas())

    async def drain(self, ask: wire.DrainReplicaRequest) -> wire.ReplicaInfo:
        (replica,) = _texts(ask, "replica")
        return await self._made(ask, self.controls.drain_replica(replica, **_signed(ask)))

    async def undrain(self, ask: wire.UndrainReplicaRequest) -> wire.ReplicaInfo:
        (replica,) = _texts(ask, "replica")
        return await self._made(ask, self.controls.undrain_replica(replica, **_signed(ask)))

    async def audit(self, ask: wire.ListAuditRequest) -> Sequence[wire.AuditEntry]:
        """Newest first."""
        (subject,) = _texts(ask, "subject")
        return await self.controls.audit(int(CHECKS.in_range("most", ask.most)) or USUAL_AUDIT, subject)

    async def receipts(self, ask: wire.ListReceiptsRequest) -> Sequence[bytes]:
        """Serialised octet.v1.Receipt of every tenant, newest first."""
        tenant, specialist, outcome = _texts(ask, "tenant", "specialist", "outcome")
        if outcome and outcome not in OUTCOMES:
            raise invalid("outcome", f"one of {', '.join(OUTCOMES)}", shorten(outcome))
        most = int(RECEIPT_CHECKS.in_range("most", ask.most)) or USUAL_RECEIPTS
        before_ms = int(RECEIPT_CHECKS.in_range("before_unix_ms", ask.before_unix_ms))
        found = await self._library.newest(ReceiptQuery(most, before_ms, Labels(tenant, specialist, outcome)))
        if not found:
            self._check_known(ask)
        return found

    async def explain(self, ask: wire.ExplainRequest) -> wire.Story:
        request_id, tenant = _texts(ask, "request_id", "tenant")
        return await self._library.story(request_id, tenant, current_caller().tenant)

    async def get_slo(self, ask: wire.GetSloRequest) -> wire.GetSloResponse:
        (specialist,) = _texts(ask, "specialist")
        try:
            return wire.GetSloResponse(slos=[self._slos.of(specialist)] if specialist else self._slos.all())
        except Refusal as refusal:
            raise self._suggesting(refusal, ask) from None

    def _check_known(self, ask: wire.ListReceiptsRequest) -> None:
        """Nothing was found, perhaps because it is misspelt."""
        names = dict.fromkeys(breaker.specialist for breaker in self.controls.breakers())
        if ask.specialist and ask.specialist not in names:
            raise self._suggesting(unknown_name("specialist", ask.specialist, names), ask)

    async def _made(self, ask: Message, change: Coroutine[Any, Any, _MessageT]) -> _MessageT:
        """A change that has begun is finished, whether its caller waits for it or not."""
        making = asyncio.create_task(change)
        self._making.add(making)
        making.add_done_callback(self._finished)
        try:
            return await asyncio.shield(making)
        except Refusal as refusal:
            raise self._suggesting(refusal, ask) from None

    def _finished(self, making: "asyncio.Task[Any]") -> None:
        self._making.discard(making)
        if not making.cancelled() and making.exception() is not None:
            _log.debug("a change was not made: %s", making.exception())

    def _suggesting(self, refusal: Refusal, ask: Any) -> Refusal:
        field = refusal.error.field
        if field not in ask.DESCRIPTOR.fields_by_name:
            return refusal
        return suggesting(refusal, getattr(ask, field), self._known(field, ask))

    def _known(self, field: str, ask: Any) -> Iterable[str]:
        if field == "specialist":
            return (breaker.specialist for breaker in self.controls.breakers())
        if field == "replica":
            return (replica.name for replica in self.controls.replicas())
        if isinstance(ask, wire.SetKnobRequest | wire.ReleaseKnobRequest):
            return (knob.name for knob in self.controls.knobs())
        return (lane.adapter for lane in self.controls.lanes() if lane.status == "candidate")


def _texts(ask: Any, *fields: str) -> list[str]:
    return [CHECKS.identifier(field, getattr(ask, field)) for field in fields]


def _signed(ask: Any) -> dict[str, str]:
    who = _actor(CHECKS.identifier("change.who", ask.change.who), current_caller().name)
    return {"who": who, "why": CHECKS.identifier("change.why", ask.change.why)}


def _actor(who: str, key: str) -> str:
    """The key's name is known; what callers call themselves is what they say."""
    if not key or who == key:
        return who
    return f"{key} as {who}" if who else key
