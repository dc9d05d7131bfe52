"""`/v1/jobs`: submitted, looked at, followed as server-sent events, cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.rpc.refusal import Refusal, shorten
from octet.sdk.job import Job
from octet.v1 import error_pb2
from octet.v1 import jobs_pb2 as wire
from router.http.asking import while_there
from router.http.body import Bodies
from router.http.connection import abort
from router.http.event_stream import last_event
from router.http.fault import AUTHENTICATION, INVALID, RATE_LIMIT, SERVER, TIMEOUT, code_of, fault_of, wrong
from router.http.infer import chunk_told
from router.http.outlet import Outlet
from router.http.own_body import NAMES, request_of
from router.http.server_events import ALIVE, named_event
from router.http.strict_json import parse_object
from router.jobs.jobs import Jobs

_ALIVE_SECONDS = 15.0
PATIENCE_SECONDS = 30.0
"""Whoever takes nothing for so long is let go, and may come back for the rest."""
_KINDS = {
    error_pb2.ERROR_REASON_DEADLINE: TIMEOUT,
    error_pb2.ERROR_REASON_QUEUE_FULL: RATE_LIMIT,
    error_pb2.ERROR_REASON_WOULD_DELAY_OTHERS: RATE_LIMIT,
    error_pb2.ERROR_REASON_DEADLINE_UNREACHABLE: RATE_LIMIT,
    error_pb2.ERROR_REASON_SHED: RATE_LIMIT,
    error_pb2.ERROR_REASON_KEY_LIMIT: RATE_LIMIT,
    error_pb2.ERROR_REASON_INVALID_FIELD: INVALID,
    error_pb2.ERROR_REASON_PROMPT_TOO_LONG: INVALID,
    error_pb2.ERROR_REASON_UNKNOWN_ADAPTER: INVALID,
    error_pb2.ERROR_REASON_UNKNOWN_SPECIALIST: INVALID,
    error_pb2.ERROR_REASON_NO_SPECIALIST: INVALID,
    error_pb2.ERROR_REASON_NO_TOOLS: INVALID,
    error_pb2.ERROR_REASON_QUARANTINED: INVALID,
    error_pb2.ERROR_REASON_CANCELLED: INVALID,
    error_pb2.ERROR_REASON_UNAUTHENTICATED: AUTHENTICATION,
}


def job_routes(jobs: Jobs, bodies: Bodies) -> list[Route]:
    desk = _Desk(jobs, bodies)
    return [
        Route("/v1/jobs", desk.jobs, methods=["GET", "POST"]),
        Route("/v1/jobs/{job_id}", desk.get, methods=["GET"]),
        Route("/v1/jobs/{job_id}/events", _Events(jobs), methods=["GET"]),
        Route("/v1/jobs/{job_id}/cancel", desk.cancel, methods=["POST"]),
    ]


class _Desk:
    def __init__(self, jobs: Jobs, bodies: Bodies) -> None:
        self._jobs = jobs
        self._bodies = bodies

    async def jobs(self, request: Request) -> Response:
        return await (self._submit(request) if request.method == "POST" else self._newest(request))

    async def _submit(self, request: Request) -> Response:
        """202, or 200 for a job that the same key had submitted before."""
        asked = request_of(parse_object(await self._bodies.read(request)))
        try:
            job, is_new = await self._jobs.submit(asked, request.headers.get("idempotency-key", ""))
        except Refusal as refusal:
            raise fault_of(refusal, NAMES) from None
        return JSONResponse(told(job), 202 if is_new else 200, headers={"location": f"/v1/jobs/{job.id}"})

    async def _newest(self, request: Request) -> Response:
        limit = request.query_params.get("limit")
        most = None if limit is None else _whole("limit", limit)
        try:
            jobs = await self._jobs.newest(most, request.query_params.get("before", ""), _tenant(request))
        except Refusal as refusal:
            raise fault_of(refusal, {"id": "before"}) from None
        return JSONResponse({"jobs": [told(job) for job in jobs]})

    async def get(self, request: Request) -> Response:
        try:
            return JSONResponse(told(await self._jobs.get(request.path_params["job_id"], _tenant(request))))
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None

    async def cancel(self, request: Request) -> Response:
        try:
            return JSONResponse(told(await self._jobs.cancel(request.path_params["job_id"], _tenant(request))))
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None


class _Events:
    """An endpoint that writes its own response: a class, which Starlette hands the connection itself."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Fault, CallerGone."""
        request = Request(scope, receive)
        last = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        events = self._jobs.watch(request.path_params["job_id"], _whole("after", last))
        outlet = Outlet(scope, send, PATIENCE_SECONDS)
        if request.method == "HEAD":
            events = _as_it_is(self._jobs, request.path_params["job_id"])
        try:
            await while_there(receive, _follow(events, outlet))
        except Refusal as refusal:
            fault = fault_of(refusal, {})
            if not outlet.is_open:
                raise fault from None
            await last_event(named_event("error", fault.envelope()), fault, outlet, scope, receive)
        except (CallerGone, TimeoutError):
            await abort(scope, receive)


async def _follow(events: AsyncGenerator[wire.JobEvent, None], outlet: Outlet) -> None:
    """Who knows them all already is told 204: a browser would come back for ever after any other end."""
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait({coming}, timeout=_ALIVE_SECONDS))[0]:
                    await outlet.say(ALIVE)
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            event = coming.result()
            if event is None:
                break
            await outlet.say(_event(event))
    await (outlet.end() if outlet.is_open else outlet.nothing())


async def _as_it_is(jobs: Jobs, job_id: str) -> AsyncGenerator[wire.JobEvent, None]:
    """For HEAD, whose response has no body: nothing is waited for."""
    yield wire.JobEvent(status=await jobs.get(job_id))


def _event(event: wire.JobEvent) -> bytes:
    match event.WhichOneof("event"):
        case "status":
            return named_event("status", told(event.status), event.number)
        case "chunk":
            return named_event("chunk", chunk_told(event.chunk), event.number)
        case _:
            return named_event("restarted", {"attempt": event.restarted.attempt}, event.number)


def told(job: wire.Job) -> dict[str, Any]:
    error = _error(job.error) if job.HasField("error") else None
    return {**Job.from_wire(job).to_dict(), "error": error}


def _error(error: error_pb2.Error) -> Mapping[str, Any]:
    """As in every other error of this door."""
    return {
        "message": error.message,
        "type": _KINDS.get(error.reason, SERVER),
        "param": NAMES.get(error.field, error.field) or None,
        "code": code_of(error.reason),
    }


def _tenant(request: Request) -> str:
    """Whose job it is, for an operator's key."""
    return request.query_params.get("tenant", "")


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise wrong(name, "a whole number", shorten(text))
    return int(text)
