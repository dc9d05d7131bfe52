"""Many requests to one replica over one call: the client's side of `Attach`. It needs only grpcio and protobuf."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, Self

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import EOF, AioRpcError, Metadata

from octet.client.errors import ERROR_METADATA_KEY
from octet.v1 import specialist_pb2 as wire

_log = logging.getLogger(__name__)
ATTACH = "/octet.v1.Specialist/Attach"
MAX_REQUEST_BYTES = 1 << 20
"""A larger request would hold the others up, so it gets a call of its own. Messages are cut after as many bytes."""
RETRY_SECONDS = 10.0  # time until the next try at a replica without attached calls
_BROKEN_SECONDS = 0.25  # time until the next try after an attached call broke
_TRACE_FIELDS = ("traceparent", "tracestate")
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_PASSED_ON = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Statuses of the call that are also those of its streams. With any other, its streams are aborted."""


class DuplexCall(Protocol):
    """A call with streams of bytes in both directions, such as one of grpc.aio."""

    async def write(self, request: bytes) -> None: ...
    async def read(self) -> Any: ...
    def cancel(self) -> bool: ...


class StreamCall:
    """A request on an attached call. It is read and cancelled like a streaming call of its own. It ends once: with its
    status, at its deadline, with the attached call, or by `cancel`. Only one task may read at a time."""

    def __init__(self, attached: "AttachedCall", number: int, timeout: float | None, credit: int) -> None:
        self._attached = attached
        self.number = number
        self._credit = credit  # bytes that may still arrive
        self._events: deque[bytes] = deque()
        self._unpaid = 0  # bytes that were read since the last credit
        self._wake: asyncio.Future[None] | None = None
        self._error: AioRpcError | None = None
        self._is_complete = False
        self._is_cancelled = False
        loop = asyncio.get_running_loop()
        self._timer = None if timeout is None else loop.call_later(max(0.0, timeout), self._expire)

    @property
    def is_over(self) -> bool:
        return self._is_complete or self._is_cancelled or self._error is not None

    def add(self, event: bytes) -> None:
        """Raises ValueError if the replica has overdrawn the credit already."""
        if self._credit <= 0:
            raise ValueError(f"an event of stream {self.number} came without credit")
        self._credit -= len(event)
        self._events.append(event)
        self._wake_reader()

    def end(self, error: AioRpcError | None) -> None:
        """End the stream, whose events can still be read. No error: its status is OK."""
        if not self.is_over:
            self._error, self._is_complete = error, error is None
            self._finish()

    def cancel(self) -> bool:
        """Cancel the request and discard its unread events. Returns False if it had already ended."""
        if self.is_over:
            return False
        self._is_cancelled = True
        self._events.clear()
        self._attached.withdraw(self)
        self._finish()
        return True

    def _expire(self) -> None:
        if not self.is_over:
            self._attached.withdraw(self)
            self.end(_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_reader()

    def _wake_reader(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def read(self) -> Any:
        """Return the next event, serialised; EOF after the last. Raises AioRpcError on failure, CancelledError after
        `cancel`."""
        events = self._events
        while not events:
            if self._is_cancelled:
                raise asyncio.CancelledError
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return EOF
            wake = self._wake = asyncio.get_running_loop().create_future()
            try:
                await wake
            except asyncio.CancelledError:
                self._wake = None
                self.cancel()
                raise
        event = events.popleft()
        self._unpaid += len(event)
        if self._unpaid >= self._attached.least_credit and not self.is_over:
            self._credit += self._unpaid
            self._attached.pay(self.number, self._unpaid)
            self._unpaid = 0
        return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        event = await self.read()
        if event is EOF:
            raise StopAsyncIteration
        return event


class AttachedCall:
    """The state of one attached call and of its streams. Used only on the event loop."""

    def __init__(self, call: DuplexCall, lookahead: int) -> None:
        """`lookahead` is how many bytes of a stream's events the replica may send before they are read. The last event
        may exceed it."""
        self._call = call
        self._lookahead = lookahead
        self.least_credit = max(1, lookahead // 2)
        self._streams: dict[int, StreamCall] = {}  # those that have not ended
        self._last = 0
        self._unsent = wire.AttachRequest()  # without starts
        self._unsent_starts: dict[int, wire.StreamStart] = {}  # by stream; those of ended streams are dropped
        self._has_unsent = asyncio.Event()
        self.opened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the replica has answered; False if the call ended before."""
        self.error: AioRpcError | None = None  # why the call ended

    @property
    def is_open(self) -> bool:
        return self.error is None and self.opened.done()

    async def run(self) -> None:
        """Serve the streams until the call ends. When this is cancelled, the call and its streams are."""
        writing = asyncio.create_task(self._write())
        writing.add_done_callback(lambda _: self._call.cancel())  # nothing could be started any more
        try:
            while (raw := await self._call.read()) is not EOF:
                self.receive(raw)
            self._break(_error(grpc.StatusCode.CANCELLED, "the replica has closed the attached call"))
        except AioRpcError as error:
            self._break(error)
        except (DecodeError, ValueError) as violation:
            self._break(_error(grpc.StatusCode.INTERNAL, f"a response violates the protocol: {violation}"))
        finally:
            writing.cancel()
            self._call.cancel()
            if self.error is None:
                self._break(_error(grpc.StatusCode.CANCELLED, "the attached call was cancelled"))
            await asyncio.gather(writing, return_exceptions=True)

    def start(self, request: bytes, timeout: float | None, metadata: Iterable[tuple[str, str | bytes]]) -> StreamCall:
        """Start a request. The call must be open."""
        self._last = number = self._last + 1
        start = wire.StreamStart(stream=number, request=request, credit=self._lookahead)
        if timeout is not None:
            start.timeout_us = max(0, round(timeout * 1e6))
        for key, value in metadata:
            if key in _TRACE_FIELDS:
                setattr(start, key, value)
        stream = self._streams[number] = StreamCall(self, number, timeout, self._lookahead)
        self._unsent_starts[number] = start
        self._has_unsent.set()
        return stream

    def pay(self, number: int, credit: int) -> None:
        """Let the replica send as many further bytes of the stream."""
        self._unsent.credits.add(stream=number, bytes=credit)
        self._has_unsent.set()

    def withdraw(self, stream: StreamCall) -> None:
        """Tell the replica that nothing more is wanted of the stream."""
        if self._streams.pop(stream.number, None) is None:
            return
        if self._unsent_starts.pop(stream.number, None) is None:
            self._unsent.cancels.append(stream.number)
            self._has_unsent.set()

    def take_request(self) -> wire.AttachRequest | None:
        """Return what is to be sent next; None if there is nothing."""
        unsent, self._unsent = self._unsent, wire.AttachRequest()
        size = 0
        for number in [*self._unsent_starts]:
            start = self._unsent_starts.pop(number)
            unsent.starts.append(start)
            size += len(start.request)
            if size >= MAX_REQUEST_BYTES:
                break
        if not self._unsent_starts:
            self._has_unsent.clear()
        return unsent if unsent.ByteSize() else None

    def receive(self, raw: bytes) -> None:
        """Apply a response. Raises DecodeError or ValueError if it violates the protocol."""
        frame = wire.AttachResponse.FromString(raw)
        if not self.opened.done():
            if not frame.HasField("hello"):
                raise ValueError("the first response is no hello")
            self.opened.set_result(True)
        streams = self._streams
        for number, event in zip(frame.streams, frame.events, strict=True):
            stream = streams.get(number) or self._find(number)
            if stream is not None:
                stream.add(event)
        for end in frame.ends:
            stream = self._find(end.stream)
            if stream is not None:
                del streams[end.stream]
                stream.end(_end_error(end))

    def _find(self, number: int) -> StreamCall | None:
        if not 0 < number <= self._last:
            raise ValueError(f"stream {number} was never started")
        return self._streams.get(number)

    async def _write(self) -> None:
        with suppress(AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):  # then reading fails, too
            while True:
                await self._has_unsent.wait()
                await asyncio.sleep(0)  # what follows in this turn of the event loop is sent with it
                while (request := self.take_request()) is not None:
                    await self._call.write(request.SerializeToString())

    def _break(self, error: AioRpcError) -> None:
        self.error = error
        if not self.opened.done():
            self.opened.set_result(False)
        code = error.code()
        if code not in _PASSED_ON:
            code = grpc.StatusCode.ABORTED
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end(_error(code, f"the attached call ended: {error.details()}"))


class Attacher:
    """Keeps a call attached to one replica. While there is none, each request is a call of its own."""

    def __init__(self, open_call: Callable[[], DuplexCall], lookahead: int, name: str) -> None:
        """`name` is that of the replica in the log."""
        self._open_call = open_call
        self._lookahead = lookahead
        self._name = name
        self._attached: AttachedCall | None = None
        self._running: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._is_refused = False

    @property
    def is_open(self) -> bool:
        return self._attached is not None and self._attached.is_open

    def start(
        self, request: bytes, timeout: float | None, metadata: Iterable[tuple[str, str | bytes]]
    ) -> StreamCall | None:
        """Start a request on the attached call; None if the request must be a call of its own."""
        attached = self._attached
        if attached is None or not attached.is_open:
            self.attach_when_due()
            return None
        return None if len(request) > MAX_REQUEST_BYTES else attached.start(request, timeout, metadata)

    def attach_when_due(self) -> None:
        """Begin to attach a call, unless there is one or the last try was a moment ago."""
        if self._running is None and asyncio.get_running_loop().time() >= self._not_before:
            self._attached = AttachedCall(self._open_call(), self._lookahead)
            self._running = asyncio.create_task(self._run(self._attached))

    async def wait_opened(self) -> bool:
        """Wait until the call is attached or has failed. Return whether it is attached."""
        self.attach_when_due()
        return self._attached is not None and await asyncio.shield(self._attached.opened)

    async def _run(self, attached: AttachedCall) -> None:
        try:
            await attached.run()
        finally:
            self._attached = self._running = None
            self._ended(attached)

    def _ended(self, attached: AttachedCall) -> None:
        loop, error = asyncio.get_running_loop(), attached.error
        refused = error is not None and not attached.opened.result() and error.code() not in _PASSED_ON
        self._not_before = loop.time() + (RETRY_SECONDS if refused else _BROKEN_SECONDS)
        if error is not None and refused and not self._is_refused:
            why = f"{error.code().name}: {error.details()}"
            _log.warning("%s attaches no call, so each request to it is a call of its own: %s", self._name, why)
        self._is_refused = refused

    async def close(self) -> None:
        """Cancel the attached call and its streams."""
        self._not_before = float("inf")
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _end_error(end: wire.StreamEnd) -> AioRpcError | None:
    if not end.code:
        return None
    code = _CODES.get(end.code, grpc.StatusCode.UNKNOWN)
    trailing = ((ERROR_METADATA_KEY, end.error.SerializeToString()),) if end.HasField("error") else ()
    return AioRpcError(code, Metadata(), Metadata(*trailing), details=end.message)


def _error(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details=details)
