"""The gRPC services `octet.v1.Inference` and `octet.v1.Jobs`."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc

from octet.rpc import handlers
from octet.rpc.refusal import caller_stalled
from octet.telemetry.requests import TRACEPARENT, TRACESTATE
from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2
from router.answers import ResponseCollector
from router.jobs.manager import JobManager
from router.quality.slo import SLO_HEADER
from router.routing.validation import REQUEST_BYTES
from router.serving import RequestServer, TraceHeaders

Metadata: TypeAlias = tuple[tuple[str, str], ...]
INFERENCE_SERVICE: str = wire.DESCRIPTOR.services_by_name["Inference"].full_name
JOBS_SERVICE: str = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"].full_name
_LOOKUP_BYTES = 4096
_EXTRA_BYTES = 1024  # bytes that a job submission may contain in addition to its request


@dataclass
class InferenceService:
    """The Inference service. `_slo_header` returns a specialist's SLOs on one line; "" if they are unknown."""

    _server: RequestServer
    _slo_header: Callable[[str], str]
    calls: handlers.OpenCalls = field(default_factory=handlers.OpenCalls)

    def handler(self) -> Any:
        most, unread = REQUEST_BYTES, self._server.refuse_unread
        unary, asking = handlers.unary_handler, handlers.unary_context_handler
        served = {
            "Generate": handlers.relay_handler(wire.InferRequest, self._generate, most, unread),
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
            """Send the SLOs of the specialist, which the first event names, as initial metadata."""
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
                if not await handlers.write_message(context, event, self._stall_seconds):
                    raise caller_stalled(f"nothing was read for {self._stall_seconds:g} s; the watch can be resumed")

    def _cancel(self, message: jobs_pb2.CancelJobRequest) -> Awaitable[jobs_pb2.Job]:
        return self._jobs.cancel(message.id, message.tenant)
