"""What ASGI lacks: disconnect detection, aborts, early errors, and server-sent events to slow readers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import Refusal
from octet.telemetry.requests import TRACEPARENT, TRACESTATE
from router.api.http.errors import ApiError, JsonResponse, is_anthropic_call, refusal_to_error
from router.serving import RequestServer, TraceHeaders

EXTENSION = "octet.connection"
KEEPALIVE_EVENT = b": keep-alive\n\n"
_ABORT_SECONDS = 1.0  # closing a connection takes one turn of the event loop
_WATCH_DELAY_SECONDS = 0.01  # watching from the start would slow requests down; an early disconnect is still noticed
_LINGER_BYTES = 32 << 20
_LINGER_SECONDS = 5.0
_EVENT_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_STALL_SLACK_SECONDS = 1.0
_SAME_NAMES: Mapping[str, str] = {}
_PLACEHOLDER = "\x00"  # marks the place of the text in a template; occurs in no name and no number
_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True, slots=True)
class CallerConnection:
    """Functions that ASGI lacks, for one request. Only Octet's own server puts them into the scope's extensions."""

    abort: Callable[[], None]  # closes immediately and drops buffered data
    send: Send | None = None  # the server's own `send`, for body parts after the head has passed the middleware
    is_writable: Callable[[], bool] = lambda: False  # whether the transport accepts more data without waiting
    has_body: Callable[[], bool] = lambda: False  # whether the whole request body has arrived
    hold: Callable[[], None] = lambda: None  # sends the next part together with the part after it


class ConnectionRoute(Route):
    """A route whose endpoint gets `scope`, `receive` and `send`. Starlette would pass only the request."""

    def __init__(self, path: str, endpoint: ASGIApp, method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.app = endpoint


_FOREIGN_SERVER = CallerConnection(abort=lambda: None)


def get_connection(scope: Scope) -> CallerConnection:
    found: CallerConnection = scope.get("extensions", {}).get(EXTENSION, _FOREIGN_SERVER)
    return found


async def receive_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the parts of a request body. Raises CallerGone if the caller disconnects."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def get_trace_headers(request: Request) -> TraceHeaders:
    return request.headers.get(TRACEPARENT), ",".join(request.headers.getlist(TRACESTATE))


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    """Run the work. If the caller disconnects, cancel it and raise CallerGone."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a request must be handled in a task")
    num_cancels = task.cancelling()
    watching: asyncio.Task[None] | None = None
    is_disconnected = False

    async def watch() -> None:
        nonlocal is_disconnected
        await _wait_disconnected(receive)
        is_disconnected = True
        task.cancel()

    def start() -> None:
        nonlocal watching
        watching = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(_WATCH_DELAY_SECONDS, start)
    try:
        return await work
    except asyncio.CancelledError:
        if is_disconnected and task.cancelling() == num_cancels + 1:  # nothing else has cancelled the task
            raise CallerGone from None
        raise
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()
        if is_disconnected:
            task.uncancel()


async def _wait_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def abort_connection(scope: Scope, receive: Receive) -> None:
    """Drop the connection of a caller that is gone or does not read."""
    connection = get_connection(scope)
    if connection is _FOREIGN_SERVER:
        return
    connection.abort()
    async with asyncio.timeout(_ABORT_SECONDS):
        await _wait_disconnected(receive)


def error_response(error: ApiError, scope: Scope) -> Response:
    is_anthropic = is_anthropic_call(scope)
    content = error.anthropic_envelope(scope["request_id"]) if is_anthropic else error.envelope()
    response = _EarlyErrorResponse if error.is_body_pending else JsonResponse
    return response(content, error.status, headers=error.response_headers())


class _EarlyErrorResponse(JsonResponse):
    """Responds before the request body has arrived, then reads and drops the rest of it. Closing a connection with
    unread bytes would reset it, and the caller would lose the response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        num_bytes = 0
        with suppress(CallerGone):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    async for chunk in receive_chunks(receive):
                        num_bytes += len(chunk)
                        if num_bytes > _LINGER_BYTES:
                            break
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def data_event(content: Any) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def named_event(name: str, content: Any, number: int | None = None) -> bytes:
    return raw_event(name, msgspec.json.encode(content), number)


def raw_event(name: str, content: bytes, number: int | None = None) -> bytes:
    """Return a server-sent event. `content` is JSON on one line."""
    head = f"event: {name}\ndata: " if number is None else f"id: {number}\nevent: {name}\ndata: "
    return head.encode() + content + b"\n\n"


def _error_event(error: ApiError) -> bytes:
    return named_event("error", error.envelope())


class EventTemplate:
    """A template for events that differ only in one string; everything else is encoded once."""

    def __init__(self, event_with: Callable[[str], bytes]) -> None:
        """`event_with` makes an event with a given string. Raises ValueError unless the event holds it exactly once."""
        self._before, self._after = event_with(_PLACEHOLDER).split(msgspec.json.encode(_PLACEHOLDER))

    def event(self, text: str) -> bytes:
        return self._before + msgspec.json.encode(text) + self._after


@dataclass(eq=False)
class EventStreamWriter:
    """Writes one event stream. The response starts with the first event, so that an earlier error gets its own HTTP
    status. A caller that reads nothing for `_stall_seconds` is disconnected."""

    _scope: Scope
    _receive: Receive
    _send: Send
    _stall_seconds: float
    is_open: bool = False

    def __post_init__(self) -> None:
        self._connection = get_connection(self._scope)
        self._send_body = self._connection.send or self._send

    async def run(
        self,
        work: Coroutine[Any, Any, None],
        error_event: Callable[[ApiError], bytes] = _error_event,
        field_names: Mapping[str, str] = _SAME_NAMES,
    ) -> None:
        """Run `work`, which writes and ends the stream, while the caller is connected. Raises ApiError if `work` fails
        before the first event; a later error is sent as the last event."""
        try:
            await run_while_connected(self._receive, work)
        except (Refusal, ApiError) as failure:
            error = refusal_to_error(failure, field_names) if isinstance(failure, Refusal) else failure
            if not self.is_open:
                raise error from None
            await self._fail(error, error_event(error))
        except (CallerGone, TimeoutError):
            await abort_connection(self._scope, self._receive)

    async def send(self, event: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an event; the first is sent with `headers`. Raises TimeoutError if the caller does not read."""
        if not self.is_open:
            self.is_open = True
            more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
            self._connection.hold()
            await self._send({"type": "http.response.start", "status": 200, "headers": [*_EVENT_HEADERS, *more]})
        await self._write(event, more=True)

    async def end(self, event: bytes = b"") -> None:
        await self._write(event, more=False)

    async def end_empty(self) -> None:
        """End a stream that has no events, with status 204. Raises TimeoutError if the caller does not read."""
        await self._send({"type": "http.response.start", "status": 204, "headers": []})
        await self.end()

    async def _write(self, body: bytes, *, more: bool) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": more}
        if self._connection.is_writable():
            await self._send_body(message)
            return
        async with asyncio.timeout(self._stall_seconds):
            await self._send_body(message)

    async def _fail(self, error: ApiError, event: bytes) -> None:
        """End the stream with an error event, or disconnect a stalled caller: the stream must not look complete."""
        with suppress(TimeoutError):
            if error.code != "caller_stalled":
                await self.end(event)
                return
        await abort_connection(self._scope, self._receive)


def open_answer_stream(service: RequestServer, scope: Scope, receive: Receive, send: Send) -> EventStreamWriter:
    """Open a stream. The dispatcher has a shorter stall limit, so it ends and records a stalled request first."""
    stall_seconds = service.policy.ensemble.dispatch.stall_seconds + _STALL_SLACK_SECONDS
    return EventStreamWriter(scope, receive, send, stall_seconds)
