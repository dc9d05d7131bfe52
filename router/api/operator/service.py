"""The gRPC service `octet.v1.Operator`."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from octet.rpc.handlers import (
    ConcurrencyLimit,
    Context,
    relay_handler,
    streaming_handler,
    unary_handler,
    write_message,
)
from octet.rpc.refusal import caller_stalled
from octet.v1 import operator_pb2 as wire
from router.api.operator.operations import CHECKS, REQUEST_BYTES, OperatorApi, ShadowCounts
from router.observe.overview.overview import Overviews
from router.observe.overview.shadow_agreement import ShadowTally
from router.receipt_log import ReceiptLog
from router.request import current_grant

_SERVICE = wire.DESCRIPTOR.services_by_name["Operator"]
OPERATOR_SERVICE: str = _SERVICE.full_name
_MAX_WATCHERS = 32
_MAX_READERS = 4
_ROWS_PER_TURN = 64  # comparisons read in one turn of the event loop: about a millisecond


@dataclass
class OperatorService:
    """`_wall_ms` returns Unix milliseconds. A call whose caller reads nothing for `stall_seconds` is ended."""

    _api: OperatorApi
    _receipts: ReceiptLog
    _shadow_counts: ShadowCounts
    _wall_ms: Callable[[], int]
    stall_seconds: float = 20.0
    view: Overviews = field(kw_only=True)
    _watchers: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(_MAX_WATCHERS, "watching events"))
    _readers: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(_MAX_READERS, "reading stored rows"))

    def handler(self) -> Any:
        api = self._api
        unary = {
            "ListBreakers": api.list_breakers,
            "ListKnobs": api.list_knobs,
            "ListLanes": api.list_lanes,
            "ListReplicas": api.list_replicas,
            "ShadowReport": self._shadow_report,
            "GetSlo": api.get_slo,
            "Explain": api.explain,
            "GetOverview": self._get_overview,
            "GetHistory": self._get_history,
        }
        relayed = {
            "ListComparisons": self._list_comparisons,
            "ListReceipts": self._list_receipts,
            "WatchOverview": self._watch_overview,
        }
        streamed = {"ListAudit": self._list_audit, "WatchEvents": self._watch_events}
        handlers = {}
        for method in _SERVICE.methods:
            name = method.name
            request, response = getattr(wire, method.input_type.name), getattr(wire, method.output_type.name)
            if name in relayed:
                handlers[name] = relay_handler(request, relayed[name], REQUEST_BYTES)
            elif name in streamed:
                handlers[name] = streaming_handler(request, response, streamed[name], REQUEST_BYTES)
            else:
                handlers[name] = unary_handler(request, response, unary.get(name, api.change), REQUEST_BYTES)
        return grpc.method_handlers_generic_handler(OPERATOR_SERVICE, handlers)

    async def _shadow_report(self, request: wire.ShadowReportRequest) -> wire.ShadowReportResponse:
        report = ShadowTally()
        with self._readers.enter():
            async with aclosing(self._comparisons(request.last_seconds)) as rows:
                async for raw in rows:
                    report.add(wire.Comparison.FromString(raw))
        return wire.ShadowReportResponse(rows=report.rows(), counts=self._shadow_counts())

    async def _list_comparisons(self, request: wire.ListComparisonsRequest, context: Context) -> None:
        with self._readers.enter():
            async with aclosing(self._comparisons(request.last_seconds)) as rows:
                async for raw in rows:
                    await self._send(context, raw)

    async def _comparisons(self, last_seconds: float) -> AsyncGenerator[bytes, None]:
        seconds = CHECKS.in_range("last_seconds", last_seconds)
        since_ms = max(0, self._wall_ms() - int(seconds * 1000)) if seconds else 0
        number = 0
        async with aclosing(self._receipts.comparisons(since_ms)) as rows:
            async for raw in rows:
                yield raw
                number += 1
                if number % _ROWS_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def _list_audit(self, request: wire.ListAuditRequest, context: Context) -> None:
        with self._readers.enter():
            for entry in await self._api.audit(request):
                await self._send(context, entry)

    async def _list_receipts(self, request: wire.ListReceiptsRequest, context: Context) -> None:
        with self._api.readers.enter():
            for raw in await self._api.receipts(request):
                await self._send(context, raw)

    async def _watch_events(self, _: wire.WatchEventsRequest, context: Context) -> None:
        with self._watchers.enter(), self._api.controls.events.subscribe() as events:
            await context.send_initial_metadata(())  # no event is missed from here on
            grant = current_grant()
            while (event := await grant.while_valid(lambda: anext(events, None))) is not None:
                await self._send(context, event)

    async def _get_overview(self, _: wire.GetOverviewRequest) -> wire.Overview:
        return self.view.now().overview

    async def _watch_overview(self, _: wire.WatchOverviewRequest, context: Context) -> None:
        grant = current_grant()
        async with aclosing(self.view.follow()) as frames:
            while True:
                frame = await grant.while_valid(lambda: anext(frames))
                await self._send(context, frame.raw)

    async def _get_history(self, request: wire.GetHistoryRequest) -> wire.History:
        seconds = CHECKS.in_range("last_seconds", request.last_seconds)
        return self.view.history.message(self.view.since_ms(seconds))

    async def _send(self, context: Context, message: Message | bytes) -> None:
        if not await write_message(context, message, self.stall_seconds):
            raise caller_stalled(f"nothing was read for {self.stall_seconds:g} s")
