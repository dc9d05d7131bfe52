"""The gRPC services `octet.v1.Inference`, `octet.v1.Jobs` and `octet.v1.Operator`."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from octet.rpc import handlers
from octet.rpc.handlers import ConcurrencyLimit
from octet.rpc.refusal import caller_stalled
from octet.telemetry.requests import TRACEPARENT, TRACESTATE
from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2, operator_pb2
from router.answers import ResponseCollector
from router.api import operations
from router.jobs.manager import JobManager
from router.observe.overview.overview import Overviews
from router.observe.overview.shadow_agreement import ShadowTally
from router.quality.slo import SLO_HEADER
from router.receipt_log import ReceiptLog
from router.request import current_grant
from router.routing.validation import REQUEST_BYTES
from router.serving import RequestServer, TraceHeaders

Metadata: TypeAlias = tuple[tuple[str, str], ...]
INFERENCE_SERVICE: str = wire.DESCRIPTOR.services_by_name["Inference"].full_name
JOBS_SERVICE: str = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"].full_name
_OPERATOR = operator_pb2.DESCRIPTOR.services_by_name["Operator"]
OPERATOR_SERVICE: str = _OPERATOR.full_name
_LOOKUP_BYTES = 4096
_EXTRA_BYTES = 1024  # bytes that a job submission may contain in addition to its request
_MAX_WATCHERS = 32
_MAX_READERS = 4


@dataclass
class InferenceService:
    """The Inference service. `_slo_header` returns a specialist's SLO header; "" for an unknown specialist."""

    _server: RequestServer
    _slo_header: Callable[[str], str]
    calls: handlers.OpenCalls = field(default_factory=handlers.OpenCalls)

    def handler(self) -> Any:
        most, unread = REQUEST_BYTES, self._server.refuse_unread
        unary, asking = handlers.unary_handler, handlers.unary_context_handler
        served = {
            "Generate": handlers.streaming_handler(wire.InferRequest, None, self._generate, most, unread),
            "Infer": asking(wire.InferRequest, wire.InferResponse, self._infer, most, unread),
            "Route": asking(wire.InferRequest, wire.Receipt, self._route, most, unread),
            "CountTokens": asking(wire.InferRequest, wire.CountResponse, self._count, most, unread),
            "GetReceipt": unary(wire.GetReceiptRequest, wire.Receipt, self._get_receipt, most),
            "Cancel": unary(wire.CancelRequest, wire.CancelResponse, self._cancel, most),
        }
        return grpc.method_handlers_generic_handler(
            INFERENCE_SERVICE, {name: self.calls.count(handler) for name, handler in served.items()}
        )

    def _generate(self, message: wire.InferRequest, context: handlers.Context) -> Awaitable[None]:
        is_open = False

        async def write(raw: bytes) -> None:
            """Write an event. Before the first event, which names the specialist, send its SLOs as initial metadata."""
            nonlocal is_open
            if not is_open:
                is_open = True
                specialist = wire.InferEvent.FromString(raw).routed.specialist
                await handlers.send_initial_metadata(context, self._metadata(specialist))
            await context.write(raw)

        return self._server.answer(message, context.time_remaining(), _trace(context), write)

    async def _infer(self, message: wire.InferRequest, context: handlers.Context) -> wire.InferResponse:
        collector = ResponseCollector()
        answering = self._server.answer(message, context.time_remaining(), _trace(context), collector.write)
        del message  # frees a large prompt while the answer is computed
        await answering
        await context.send_initial_metadata(self._metadata(collector.response.receipt.specialist))
        return collector.response

    def _route(self, message: wire.InferRequest, context: handlers.Context) -> Awaitable[wire.Receipt]:
        return self._server.route(message, context.time_remaining(), _trace(context))

    def _count(self, message: wire.InferRequest, context: handlers.Context) -> Awaitable[wire.CountResponse]:
        return self._server.count(message, context.time_remaining(), _trace(context))

    def _get_receipt(self, message: wire.GetReceiptRequest) -> Awaitable[wire.Receipt]:
        return self._server.receipt(message.request_id, message.tenant)

    async def _cancel(self, message: wire.CancelRequest) -> wire.CancelResponse:
        self._server.cancel(message.request_id)
        return wire.CancelResponse()

    def _metadata(self, specialist: str) -> Metadata:
        header = self._slo_header(specialist)
        return ((SLO_HEADER, header),) if header else ()


def _trace(context: handlers.Context) -> TraceHeaders:
    parent: str | None = None
    state: list[str] = []
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT and isinstance(value, str):
            parent = parent or value
        elif key == TRACESTATE and isinstance(value, str):
            state.append(value)
    return parent, ",".join(state)


@dataclass
class JobsService:
    """The Jobs service. A watcher that reads nothing for `_stall_seconds` is disconnected and may resume later."""

    _jobs: JobManager
    _stall_seconds: float = 30.0

    def handler(self) -> Any:
        unary, jobs, most = handlers.unary_handler, jobs_pb2, REQUEST_BYTES + _EXTRA_BYTES
        served = {
            "SubmitJob": unary(jobs.SubmitJobRequest, jobs.Job, self._submit, most),
            "GetJob": unary(jobs.GetJobRequest, jobs.Job, self._get, _LOOKUP_BYTES),
            "ListJobs": unary(jobs.ListJobsRequest, jobs.ListJobsResponse, self._list, _LOOKUP_BYTES),
            "WatchJob": handlers.streaming_handler(jobs.WatchJobRequest, jobs.JobEvent, self._watch, _LOOKUP_BYTES),
            "CancelJob": unary(jobs.CancelJobRequest, jobs.Job, self._cancel, _LOOKUP_BYTES),
        }
        return grpc.method_handlers_generic_handler(JOBS_SERVICE, served)

    async def _submit(self, message: jobs_pb2.SubmitJobRequest) -> jobs_pb2.Job:
        job, _ = await self._jobs.submit(message.request, message.idempotency_key)
        return job

    def _get(self, message: jobs_pb2.GetJobRequest) -> Awaitable[jobs_pb2.Job]:
        return self._jobs.get(message.id, message.tenant)

    async def _list(self, message: jobs_pb2.ListJobsRequest) -> jobs_pb2.ListJobsResponse:
        limit = message.limit if message.HasField("limit") else None
        return jobs_pb2.ListJobsResponse(jobs=await self._jobs.newest(limit, message.before, message.tenant))

    async def _watch(self, message: jobs_pb2.WatchJobRequest, context: handlers.Context) -> None:
        async with aclosing(self._jobs.watch(message.id, message.after)) as events:
            async for event in events:
                await _write(context, event, self._stall_seconds, "; the watch can be resumed")

    def _cancel(self, message: jobs_pb2.CancelJobRequest) -> Awaitable[jobs_pb2.Job]:
        return self._jobs.cancel(message.id, message.tenant)


@dataclass
class OperatorService:
    """The Operator service. A call whose caller reads nothing for `stall_seconds` is ended."""

    _api: operations.OperatorApi
    _receipts: ReceiptLog
    _shadow_counts: operations.ShadowCounts
    view: Overviews
    stall_seconds: float = 20.0
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
        served, most = {}, operations.REQUEST_BYTES
        for method in _OPERATOR.methods:
            name = method.name
            request = getattr(operator_pb2, method.input_type.name)
            response = getattr(operator_pb2, method.output_type.name)
            if name in relayed:
                served[name] = handlers.streaming_handler(request, None, relayed[name], most)
            elif name in streamed:
                served[name] = handlers.streaming_handler(request, response, streamed[name], most)
            else:
                served[name] = handlers.unary_handler(request, response, unary.get(name, api.change), most)
        return grpc.method_handlers_generic_handler(OPERATOR_SERVICE, served)

    async def _shadow_report(self, request: operator_pb2.ShadowReportRequest) -> operator_pb2.ShadowReportResponse:
        report = ShadowTally()
        with self._readers.enter():
            async with aclosing(self._comparisons(request.last_seconds)) as rows:
                async for raw in rows:
                    report.add(operator_pb2.Comparison.FromString(raw))
        return operator_pb2.ShadowReportResponse(rows=report.rows(), counts=self._shadow_counts())

    async def _list_comparisons(self, request: operator_pb2.ListComparisonsRequest, context: handlers.Context) -> None:
        with self._readers.enter():
            async with aclosing(self._comparisons(request.last_seconds)) as rows:
                async for raw in rows:
                    await self._send(context, raw)

    def _comparisons(self, last_seconds: float) -> AsyncGenerator[bytes, None]:
        seconds = operations.CHECKS.in_range("last_seconds", last_seconds)
        return self._receipts.comparisons(self.view.since_ms(seconds))

    async def _list_audit(self, request: operator_pb2.ListAuditRequest, context: handlers.Context) -> None:
        with self._readers.enter():
            for entry in await self._api.audit(request):
                await self._send(context, entry)

    async def _list_receipts(self, request: operator_pb2.ListReceiptsRequest, context: handlers.Context) -> None:
        with self._api.readers.enter():
            for raw in await self._api.receipts(request):
                await self._send(context, raw)

    async def _watch_events(self, _: operator_pb2.WatchEventsRequest, context: handlers.Context) -> None:
        with self._watchers.enter(), self._api.controls.events.subscribe() as events:
            await context.send_initial_metadata(())  # no event is missed from here on
            grant = current_grant()
            while (event := await grant.while_valid(lambda: anext(events, None))) is not None:
                await self._send(context, event)

    async def _get_overview(self, _: operator_pb2.GetOverviewRequest) -> operator_pb2.Overview:
        return self.view.now().overview

    async def _watch_overview(self, _: operator_pb2.WatchOverviewRequest, context: handlers.Context) -> None:
        grant = current_grant()
        async with aclosing(self.view.follow()) as frames:
            while True:
                frame = await grant.while_valid(lambda: anext(frames))
                await self._send(context, frame.raw)

    async def _get_history(self, request: operator_pb2.GetHistoryRequest) -> operator_pb2.History:
        seconds = operations.CHECKS.in_range("last_seconds", request.last_seconds)
        return self.view.history.message(self.view.since_ms(seconds))

    async def _send(self, context: handlers.Context, message: Message | bytes) -> None:
        await _write(context, message, self.stall_seconds)


async def _write(context: handlers.Context, message: Message | bytes, stall_seconds: float, advice: str = "") -> None:
    if not await handlers.write_message(context, message, stall_seconds):
        raise caller_stalled(f"nothing was read for {stall_seconds:g} s{advice}")
