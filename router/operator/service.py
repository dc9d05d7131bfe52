"""`octet.v1.Operator`: its calls, checked and bounded. What they mean is decided by whoever controls."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from octet.rpc.calls import Context, relaying, streaming, unary, write
from octet.rpc.refusal import Refusal, caller_stalled
from octet.v1 import operator_pb2 as wire
from router.operator.controls import Archive, Controls, ShadowCounts
from router.operator.glance import Glance
from router.operator.limits import CHECKS, REQUEST_BYTES, USUAL_AUDIT
from router.operator.report import Report
from router.operator.seats import Seats
from router.operator.suggest import suggesting
from router.reception.caller import current_caller
from router.reception.standing import current_standing
from router.view.view import View

_log = logging.getLogger(__name__)
NAME: str = wire.DESCRIPTOR.services_by_name["Operator"].full_name
_STALL_SECONDS = 20.0
_MOST_WATCHERS = 32
_MOST_READERS = 4
_SLICE = 64
"""Comparisons between two looks at what else waits: about a millisecond."""
_MessageT = TypeVar("_MessageT", bound=Message)


class OperatorService:
    """Belongs to the event loop."""

    def __init__(
        self,
        controls: Controls,
        archive: Archive,
        shadow_counts: ShadowCounts,
        wall_ms: Callable[[], int],
        stall_seconds: float = _STALL_SECONDS,
        *,
        view: View,
    ) -> None:
        """`wall_ms` is milliseconds since 1970. A caller that takes nothing for `stall_seconds` is let go."""
        self._controls = controls
        self._archive = archive
        self._shadow_counts = shadow_counts
        self._wall_ms = wall_ms
        self._stall_seconds = stall_seconds
        self._making: set[asyncio.Task[Any]] = set()
        self._watchers = Seats("watching events", _MOST_WATCHERS)
        self._readers = Seats("reading what is kept", _MOST_READERS)
        self._glance = Glance(view, self._send)

    def handler(self) -> Any:
        def single(ask: type[Message], answer: type[Message], serve: Any) -> Any:
            return unary(ask, answer, serve, REQUEST_BYTES)

        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "ListBreakers": single(wire.ListBreakersRequest, wire.ListBreakersResponse, self._list_breakers),
                "HoldBreaker": single(wire.HoldBreakerRequest, wire.BreakerInfo, self._hold_breaker),
                "ReleaseBreaker": single(wire.ReleaseBreakerRequest, wire.BreakerInfo, self._release_breaker),
                "ListKnobs": single(wire.ListKnobsRequest, wire.ListKnobsResponse, self._list_knobs),
                "SetKnob": single(wire.SetKnobRequest, wire.KnobInfo, self._set_knob),
                "ReleaseKnob": single(wire.ReleaseKnobRequest, wire.KnobInfo, self._release_knob),
                "ListLanes": single(wire.ListLanesRequest, wire.ListLanesResponse, self._list_lanes),
                "LoadAdapter": single(wire.LoadLaneRequest, wire.LaneInfo, self._load_adapter),
                "PromoteLane": single(wire.PromoteLaneRequest, wire.LaneInfo, self._promote),
                "RollBackLane": single(wire.RollBackLaneRequest, wire.LaneInfo, self._roll_back),
                "ListReplicas": single(wire.ListReplicasRequest, wire.ListReplicasResponse, self._list_replicas),
                "DrainReplica": single(wire.DrainReplicaRequest, wire.ReplicaInfo, self._drain),
                "UndrainReplica": single(wire.UndrainReplicaRequest, wire.ReplicaInfo, self._undrain),
                "ShadowReport": single(wire.ShadowReportRequest, wire.ShadowReportResponse, self._shadow_report),
                "ListComparisons": relaying(wire.ListComparisonsRequest, self._list_comparisons, REQUEST_BYTES),
                "ListAudit": streaming(wire.ListAuditRequest, wire.AuditEntry, self._list_audit, REQUEST_BYTES),
                "WatchEvents": streaming(wire.WatchEventsRequest, wire.OperatorEvent, self._watch, REQUEST_BYTES),
                **self._glance.handlers(),
            },
        )

    async def _list_breakers(self, _: wire.ListBreakersRequest) -> wire.ListBreakersResponse:
        controls = self._controls
        return wire.ListBreakersResponse(breakers=controls.breakers(), store_trouble=controls.store_trouble)

    async def _hold_breaker(self, ask: wire.HoldBreakerRequest) -> wire.BreakerInfo:
        specialist, hold = _texts(ask, "specialist", "hold")
        return await self._made(ask, self._controls.hold_breaker(specialist, hold, **_signed(ask)))

    async def _release_breaker(self, ask: wire.ReleaseBreakerRequest) -> wire.BreakerInfo:
        (specialist,) = _texts(ask, "specialist")
        return await self._made(ask, self._controls.release_breaker(specialist, **_signed(ask)))

    async def _list_knobs(self, _: wire.ListKnobsRequest) -> wire.ListKnobsResponse:
        return wire.ListKnobsResponse(knobs=self._controls.knobs())

    async def _set_knob(self, ask: wire.SetKnobRequest) -> wire.KnobInfo:
        (name,) = _texts(ask, "name")
        value = CHECKS.in_range("value", ask.value)
        return await self._made(ask, self._controls.set_knob(name, value, **_signed(ask)))

    async def _release_knob(self, ask: wire.ReleaseKnobRequest) -> wire.KnobInfo:
        (name,) = _texts(ask, "name")
        return await self._made(ask, self._controls.release_knob(name, **_signed(ask)))

    async def _list_lanes(self, ask: wire.ListLanesRequest) -> wire.ListLanesResponse:
        (specialist,) = _texts(ask, "specialist")
        try:
            return wire.ListLanesResponse(lanes=self._controls.lanes(specialist))
        except Refusal as refusal:
            raise self._suggesting(refusal, ask) from None

    async def _load_adapter(self, ask: wire.LoadLaneRequest) -> wire.LaneInfo:
        specialist, path, name = _texts(ask, "specialist", "path", "name")
        return await self._made(ask, self._controls.load_adapter(specialist, path, name, **_signed(ask)))

    async def _promote(self, ask: wire.PromoteLaneRequest) -> wire.LaneInfo:
        specialist, name = _texts(ask, "specialist", "name")
        return await self._made(ask, self._controls.promote(specialist, name, **_signed(ask)))

    async def _roll_back(self, ask: wire.RollBackLaneRequest) -> wire.LaneInfo:
        (specialist,) = _texts(ask, "specialist")
        return await self._made(ask, self._controls.roll_back(specialist, **_signed(ask)))

    async def _list_replicas(self, _: wire.ListReplicasRequest) -> wire.ListReplicasResponse:
        return wire.ListReplicasResponse(replicas=self._controls.replicas())

    async def _drain(self, ask: wire.DrainReplicaRequest) -> wire.ReplicaInfo:
        (replica,) = _texts(ask, "replica")
        return await self._made(ask, self._controls.drain_replica(replica, **_signed(ask)))

    async def _undrain(self, ask: wire.UndrainReplicaRequest) -> wire.ReplicaInfo:
        (replica,) = _texts(ask, "replica")
        return await self._made(ask, self._controls.undrain_replica(replica, **_signed(ask)))

    async def _shadow_report(self, ask: wire.ShadowReportRequest) -> wire.ShadowReportResponse:
        report = Report()
        with self._readers.one():
            async with aclosing(self._comparisons(ask.last_seconds)) as rows:
                async for raw in rows:
                    report.add(wire.Comparison.FromString(raw))
        return wire.ShadowReportResponse(rows=report.rows(), counts=self._shadow_counts())

    async def _list_comparisons(self, ask: wire.ListComparisonsRequest, context: Context) -> None:
        with self._readers.one():
            async with aclosing(self._comparisons(ask.last_seconds)) as rows:
                async for raw in rows:
                    await self._send(context, raw)

    async def _comparisons(self, last_seconds: float) -> AsyncGenerator[bytes, None]:
        seconds = CHECKS.in_range("last_seconds", last_seconds)
        since_ms = max(0, self._wall_ms() - int(seconds * 1000)) if seconds else 0
        number = 0
        async with aclosing(self._archive.comparisons(since_ms)) as rows:
            async for raw in rows:
                yield raw
                number += 1
                if number % _SLICE == 0:
                    await asyncio.sleep(0)

    async def _list_audit(self, ask: wire.ListAuditRequest, context: Context) -> None:
        (subject,) = _texts(ask, "subject")
        most = int(CHECKS.in_range("most", ask.most)) or USUAL_AUDIT
        with self._readers.one():
            for entry in await self._controls.audit(most, subject):
                await self._send(context, entry)

    async def _watch(self, _: wire.WatchEventsRequest, context: Context) -> None:
        with self._watchers.one(), self._controls.events.subscribe() as events:
            await context.send_initial_metadata(())  # from here on nothing is missed
            known = current_standing()
            while (event := await known.while_known(lambda: anext(events, None))) is not None:
                await self._send(context, event)

    async def _send(self, context: Context, message: Message | bytes) -> None:
        if not await write(context, message, self._stall_seconds):
            raise caller_stalled(f"nothing was taken for {self._stall_seconds:g} s")

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
            return (breaker.specialist for breaker in self._controls.breakers())
        if field == "replica":
            return (replica.name for replica in self._controls.replicas())
        if isinstance(ask, wire.SetKnobRequest | wire.ReleaseKnobRequest):
            return (knob.name for knob in self._controls.knobs())
        return (lane.adapter for lane in self._controls.lanes() if lane.status == "candidate")


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
