"""`octet.v1.Jobs`: its five calls."""

from contextlib import aclosing
from typing import Any

import grpc

from octet.rpc.calls import Context, streaming, unary, write
from octet.rpc.refusal import caller_stalled
from octet.v1 import jobs_pb2 as wire
from router.jobs.jobs import Jobs

NAME: str = wire.DESCRIPTOR.services_by_name["Jobs"].full_name
_LOOKUP_BYTES = 4096
_KEY_BYTES = 1024
"""What a submission may hold beside its request."""
_STALL_SECONDS = 30.0
"""Whoever takes nothing for so long is let go, and may come back for the rest."""


class JobsService:
    def __init__(self, jobs: Jobs, request_bytes: int, stall_seconds: float = _STALL_SECONDS) -> None:
        self._jobs = jobs
        self._most = request_bytes + _KEY_BYTES
        self._stall_seconds = stall_seconds

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "SubmitJob": unary(wire.SubmitJobRequest, wire.Job, self._submit, self._most),
                "GetJob": unary(wire.GetJobRequest, wire.Job, self._get, _LOOKUP_BYTES),
                "ListJobs": unary(wire.ListJobsRequest, wire.ListJobsResponse, self._list, _LOOKUP_BYTES),
                "WatchJob": streaming(wire.WatchJobRequest, wire.JobEvent, self._watch, _LOOKUP_BYTES),
                "CancelJob": unary(wire.CancelJobRequest, wire.Job, self._cancel, _LOOKUP_BYTES),
            },
        )

    async def _submit(self, message: wire.SubmitJobRequest) -> wire.Job:
        job, _ = await self._jobs.submit(message.request, message.idempotency_key)
        return job

    async def _get(self, message: wire.GetJobRequest) -> wire.Job:
        return await self._jobs.get(message.id, message.tenant)

    async def _list(self, message: wire.ListJobsRequest) -> wire.ListJobsResponse:
        limit = message.limit if message.HasField("limit") else None
        return wire.ListJobsResponse(jobs=await self._jobs.newest(limit, message.before, message.tenant))

    async def _watch(self, message: wire.WatchJobRequest, context: Context) -> None:
        async with aclosing(self._jobs.watch(message.id, message.after)) as events:
            async for event in events:
                if not await write(context, event, self._stall_seconds):
                    raise caller_stalled(f"nothing was taken for {self._stall_seconds:g} s; it can be taken up again")

    async def _cancel(self, message: wire.CancelJobRequest) -> wire.Job:
        return await self._jobs.cancel(message.id, message.tenant)
