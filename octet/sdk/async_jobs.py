"""Requests that nobody need wait for, from a coroutine: `client.jobs`."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Unpack

import grpc

from octet.clock import Clock
from octet.sdk.asking import Asking
from octet.sdk.caller import LOOKUP_S
from octet.sdk.channel import serialize
from octet.sdk.ending import ending_of
from octet.sdk.job import Job, JobEvent
from octet.sdk.job_calls import SERVICE, Watching, last_of, listing, named, submission
from octet.sdk.options import Options
from octet.sdk.request import check_timeout
from octet.v1 import jobs_pb2 as wire


class AsyncJobs:
    """A job outlives its caller, its connection and its router. Every call raises OctetError, in one of its kinds."""

    def __init__(
        self,
        call: Callable[..., Any],
        asking: Callable[..., Asking],
        channel: Callable[[], Any],
        is_closed: Callable[[], bool],
        clock: Clock,
        address: str,
    ) -> None:
        self._call = call
        self._asking = asking
        self._channel = channel
        self._is_closed = is_closed
        self._clock = clock
        self._address = address

    async def submit(
        self, prompt: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[Options]
    ) -> Job:
        """Returns when it is on record: from then on it will end, once. `timeout` is the job's own. Two submissions
        with the same key are one job; with different requests the second is refused."""
        return await self._told("SubmitJob", submission(prompt, options, idempotency_key))

    async def get(self, job_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_S) -> Job:
        """Jobs are kept for a while after their end. An operator may name another `tenant`. Raises NotFound."""
        return await self._told("GetJob", named(wire.GetJobRequest, job_id, tenant), timeout)

    async def list(
        self, limit: int | None = None, before: str = "", *, tenant: str = "", timeout: float | None = LOOKUP_S
    ) -> tuple[Job, ...]:
        """Your own, newest first, without what they said; those older than the job `before`. An operator may name
        another `tenant`."""
        asking = self._asking(lambda _: listing(limit, before, tenant), check_timeout(timeout))
        response = await self._call("ListJobs", asking, wire.ListJobsResponse, service=SERVICE)
        return tuple(Job.from_wire(each) for each in response.jobs)

    async def cancel(self, job_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_S) -> Job:
        """The job as it is then: cancelled, or ended before. An operator may name another `tenant`. Raises
        NotFound."""
        return await self._told("CancelJob", named(wire.CancelJobRequest, job_id, tenant), timeout)

    async def events(
        self, job_id: str, after: int = 0, *, timeout: float | None = None
    ) -> AsyncGenerator[JobEvent, None]:
        """All that follow the event number `after`, to the end of the job; a router that is gone for a while in
        between changes nothing. Raises NotFound; DeadlineExceeded after `timeout` seconds."""
        watching = Watching(job_id, after, timeout, self._clock, self._address)
        while True:
            message, seconds = watching.attempt(is_closed=self._is_closed())
            method = self._channel().unary_stream(SERVICE + "WatchJob", serialize, wire.JobEvent.FromString)
            call = method(message, timeout=seconds)
            try:
                async for heard in call:
                    event = watching.hear(heard)
                    yield event
                    if event.is_last:
                        return
                return
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                wait = watching.failed(ending_of(call, error), is_closed=self._is_closed())
            finally:
                call.cancel()
            await asyncio.sleep(wait)

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """Returns when it has ended. Raises NotFound; DeadlineExceeded after `timeout` seconds."""
        last = None
        async for event in self.events(job_id, timeout=timeout):
            last = event
        return last_of(last)

    async def _told(self, name: str, message: Any, timeout: float | None = LOOKUP_S) -> Job:
        asking = self._asking(lambda _: message, check_timeout(timeout))
        return Job.from_wire(await self._call(name, asking, wire.Job, service=SERVICE))
