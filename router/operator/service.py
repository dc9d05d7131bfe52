"""`octet.v1.Operator`: its calls, bounded. What is asked is checked at the desk, and decided by whoever controls."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import Message

from octet.rpc.calls import Context, relaying, streaming, unary, write
from octet.rpc.refusal import caller_stalled
from octet.v1 import operator_pb2 as wire
from router.operator.controls import Archive, ShadowCounts
from router.operator.desk import Desk
from router.operator.glance import Glance
from router.operator.limits import CHECKS, REQUEST_BYTES
from router.operator.report import Report
from router.operator.seats import Seats
from router.reception.standing import current_standing
from router.view.view import View

NAME: str = wire.DESCRIPTOR.services_by_name["Operator"].full_name
_STALL_SECONDS = 20.0
_MOST_WATCHERS = 32
_MOST_READERS = 4
_SLICE = 64
"""Comparisons between two looks at what else waits: about a millisecond."""


class OperatorService:
    """Belongs to the event loop."""

    def __init__(
        self,
        desk: Desk,
        archive: Archive,
        shadow_counts: ShadowCounts,
        wall_ms: Callable[[], int],
        stall_seconds: float = _STALL_SECONDS,
        *,
        view: View,
    ) -> None:
        """`wall_ms` is milliseconds since 1970. A caller that takes nothing for `stall_seconds` is let go."""
        self._desk = desk
        self._controls = desk.controls
        self._archive = archive
        self._shadow_counts = shadow_counts
        self._wall_ms = wall_ms
        self._stall_seconds = stall_seconds
        self._watchers = Seats("watching events", _MOST_WATCHERS)
        self._readers = Seats("reading what is kept", _MOST_READERS)
        self._glance = Glance(view, self._send)

    def handler(self) -> Any:
        def single(ask: type[Message], answer: type[Message], serve: Any) -> Any:
            return unary(ask, answer, serve, REQUEST_BYTES)

        desk = self._desk
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "ListBreakers": single(wire.ListBreakersRequest, wire.ListBreakersResponse, desk.list_breakers),
                "HoldBreaker": single(wire.HoldBreakerRequest, wire.BreakerInfo, desk.hold_breaker),
                "ReleaseBreaker": single(wire.ReleaseBreakerRequest, wire.BreakerInfo, desk.release_breaker),
                "ListKnobs": single(wire.ListKnobsRequest, wire.ListKnobsResponse, desk.list_knobs),
                "SetKnob": single(wire.SetKnobRequest, wire.KnobInfo, desk.set_knob),
                "ReleaseKnob": single(wire.ReleaseKnobRequest, wire.KnobInfo, desk.release_knob),
                "ListLanes": single(wire.ListLanesRequest, wire.ListLanesResponse, desk.list_lanes),
                "LoadAdapter": single(wire.LoadLaneRequest, wire.LaneInfo, desk.load_adapter),
                "PromoteLane": single(wire.PromoteLaneRequest, wire.LaneInfo, desk.promote),
                "RollBackLane": single(wire.RollBackLaneRequest, wire.LaneInfo, desk.roll_back),
                "ListReplicas": single(wire.ListReplicasRequest, wire.ListReplicasResponse, desk.list_replicas),
                "DrainReplica": single(wire.DrainReplicaRequest, wire.ReplicaInfo, desk.drain),
                "UndrainReplica": single(wire.UndrainReplicaRequest, wire.ReplicaInfo, desk.undrain),
                "ShadowReport": single(wire.ShadowReportRequest, wire.ShadowReportResponse, self._shadow_report),
                "ListComparisons": relaying(wire.ListComparisonsRequest, self._list_comparisons, REQUEST_BYTES),
                "ListAudit": streaming(wire.ListAuditRequest, wire.AuditEntry, self._list_audit, REQUEST_BYTES),
                "GetSlo": single(wire.GetSloRequest, wire.GetSloResponse, desk.get_slo),
                "WatchEvents": streaming(wire.WatchEventsRequest, wire.OperatorEvent, self._watch, REQUEST_BYTES),
                "ListReceipts": relaying(wire.ListReceiptsRequest, self._list_receipts, REQUEST_BYTES),
                "Explain": single(wire.ExplainRequest, wire.Story, self._explain),
                **self._glance.handlers(),
            },
        )

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
        with self._readers.one():
            for entry in await self._desk.audit(ask):
                await self._send(context, entry)

    async def _list_receipts(self, ask: wire.ListReceiptsRequest, context: Context) -> None:
        with self._desk.readers.one():
            for raw in await self._desk.receipts(ask):
                await self._send(context, raw)

    async def _explain(self, ask: wire.ExplainRequest) -> wire.Story:
        with self._desk.readers.one():
            return await self._desk.explain(ask)

    async def _watch(self, _: wire.WatchEventsRequest, context: Context) -> None:
        with self._watchers.one(), self._controls.events.subscribe() as events:
            await context.send_initial_metadata(())  # from here on nothing is missed
            known = current_standing()
            while (event := await known.while_known(lambda: anext(events, None))) is not None:
                await self._send(context, event)

    async def _send(self, context: Context, message: Message | bytes) -> None:
        if not await write(context, message, self._stall_seconds):
            raise caller_stalled(f"nothing was taken for {self._stall_seconds:g} s")
