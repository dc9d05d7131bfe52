"""gRPC calls over HTTP/2: message framing, statuses, and the reading of answers."""

import asyncio
import struct
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import unquote

from grpc import StatusCode
from grpc.aio import EOF, AioRpcError, Metadata

from router.dispatch.http2.frames import ErrorCode, decode_metadata, error_name
from router.dispatch.http2.hpack_tables import Headers

_CODES = {str(code.value[0]): code for code in StatusCode}
_CODES_BY_HTTP = {
    "400": StatusCode.INTERNAL,
    "401": StatusCode.UNAUTHENTICATED,
    "403": StatusCode.PERMISSION_DENIED,
    "404": StatusCode.UNIMPLEMENTED,
    **dict.fromkeys(("429", "502", "503", "504"), StatusCode.UNAVAILABLE),
}
_CODES_BY_RESET: dict[int, StatusCode] = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}
_PREFIX = struct.Struct(">BI")  # the prefix of every message: a compression flag and the message's length
_PREFIX_BYTES = _PREFIX.size


@dataclass(frozen=True, slots=True)
class ReadLimits:
    max_message_bytes: int  # a longer message ends its call as RESOURCE_EXHAUSTED
    lookahead: int  # bytes that the server may send before a reader waits for them


class CallStatus(NamedTuple):
    code: StatusCode
    details: str
    trailing: tuple[tuple[str, str | bytes], ...] = ()

    def error(self, initial: Headers) -> AioRpcError:
        metadata = Metadata(*decode_metadata(initial)), Metadata(*self.trailing)
        return AioRpcError(self.code, *metadata, details=self.details)


OK = CallStatus(StatusCode.OK, "")
_PAST_DEADLINE = CallStatus(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
_NO_ANSWER = CallStatus(StatusCode.INTERNAL, "unary call ended without an answer")
_TWO_ANSWERS = CallStatus(StatusCode.INTERNAL, "unary call returned more than one answer")


def parse_status(trailers: Headers) -> CallStatus:
    """Parse the status from the last header list of a call (gRPC's PROTOCOL-HTTP2)."""
    fields = dict(trailers)
    status = fields.get("grpc-status")
    if status == "0":
        return OK
    if status is not None:
        code = _CODES.get(status, StatusCode.UNKNOWN)
        return CallStatus(code, unquote(fields.get("grpc-message", ""), errors="replace"), decode_metadata(trailers))
    http = fields.get(":status")
    if http is None or http == "200":
        return CallStatus(StatusCode.UNKNOWN, "call ended without a status")
    return CallStatus(_CODES_BY_HTTP.get(http, StatusCode.UNKNOWN), f"server answered with HTTP status {http[:16]}")


def reset_status(code: int) -> CallStatus:
    details = f"server reset the stream: {error_name(code)}"
    return CallStatus(_CODES_BY_RESET.get(code, StatusCode.INTERNAL), details)


def unavailable(reason: str) -> CallStatus:
    return CallStatus(StatusCode.UNAVAILABLE, reason)


def frame_message(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message)) + message


class MessageRefused(Exception):
    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.status = CallStatus(code, details)


class MessageBuffer:
    """Messages of one call, reassembled from the payloads of its DATA frames."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_bytes = max_message_bytes
        self._pending = bytearray()
        self.messages: deque[bytes] = deque()  # complete and unread

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    @property
    def num_missing(self) -> int:
        """The bytes still missing from the incomplete message or, until its length is known, from its length prefix."""
        pending = self._pending
        if len(pending) < _PREFIX_BYTES:
            return _PREFIX_BYTES - len(pending) if pending else 0
        return self._framed_size(pending, 0) - len(pending)

    def take(self, data: bytes, at: int, end: int) -> None:
        if not self._pending and end - at >= _PREFIX_BYTES and at + self._framed_size(data, at) == end:
            self.messages.append(data[at + _PREFIX_BYTES : end])
        elif end > at:
            self._pending += data[at:end]
            self._split()

    def _split(self) -> None:
        pending, at = self._pending, 0
        while len(pending) - at >= _PREFIX_BYTES:
            end = at + self._framed_size(pending, at)
            if len(pending) < end:
                break
            with memoryview(pending) as view:
                self.messages.append(bytes(view[at + _PREFIX_BYTES : end]))
            at = end
        del pending[:at]

    def _framed_size(self, data: bytes | bytearray, at: int) -> int:
        compressed, size = _PREFIX.unpack_from(data, at)
        if compressed:
            raise MessageRefused(StatusCode.INTERNAL, "compressed message without negotiated compression")
        if size > self._max_bytes:
            details = f"Received message larger than max ({size} vs. {self._max_bytes})"
            raise MessageRefused(StatusCode.RESOURCE_EXHAUSTED, details)
        return _PREFIX_BYTES + int(size)


class CallOwner(Protocol):
    """What holds a call: the channel while the call is queued, then a connection."""

    def leave(self, call: "Http2Call") -> None:
        """Drop a call that was cancelled or is past its deadline."""

    def widen(self, call: "Http2Call") -> None:
        """Enlarge the call's receive window, because a reader waits for more."""

    def push(self, call: "Http2Call") -> None:
        """Send what the call has to send."""


class Http2Call:
    """A streaming call. It ends once: when the server sends a status, at its deadline, when its connection ends, or by
    `cancel`. Messages received before the end can still be read, except after `cancel`. The creator must read to the
    end or cancel. Only one task may read at a time."""

    is_duplex = False  # whether more messages may be written after the first

    def __init__(
        self, loop: asyncio.AbstractEventLoop, block: bytes, message: bytes, timeout: float | None, limits: ReadLimits
    ) -> None:
        """`block` holds the encoded headers, except the deadline."""
        self._loop = loop
        self.block = block
        self.owner: CallOwner | None = None
        self._status: CallStatus | None = None
        self._cancelled = False
        self._wake: asyncio.Future[None] | None = None
        self.stream = 0  # the id of its stream; 0 until a connection opens the stream
        self._message = frame_message(message)
        self.unsent: bytes | memoryview = self._message
        self.credit = 0  # send window relative to the server's initial window for streams; may be negative
        self.num_refused = 0  # how often the server refused the stream
        self.buffer = MessageBuffer(limits.max_message_bytes)
        self.lookahead = limits.lookahead  # bytes that the server may send before they are read
        self.window = self._first_window = limits.lookahead  # bytes that the server may still send
        self._low_window = limits.lookahead // 2
        self.initial: Headers | None = None
        self.deadline = None if timeout is None else loop.time() + timeout
        self._timer = None if timeout is None else loop.call_later(max(0.0, timeout), self._expire)

    @property
    def is_over(self) -> bool:
        return self._status is not None or self._cancelled

    def started(self, headers: Headers) -> None:
        """Record the response headers. The server has accepted the stream, so the message need not be sent again."""
        self.initial = headers
        self._message = b""

    def put_back(self) -> None:
        """Reset the call, so that it can be sent again on a new stream."""
        self.num_refused += 1
        self.stream = 0
        self.window = self._first_window
        self.credit = 0
        self.unsent = self._message

    def received(self) -> None:
        if self._wake is None:
            return
        if self.buffer.messages:
            self._wake_reader()
        else:
            self._widen_if_low()

    def end(self, status: CallStatus) -> None:
        """End the call. Its owner must have dropped it before."""
        if not self.is_over:
            self._status = status
            self._finish()

    def cancel(self) -> bool:
        """Cancel the call and discard its unread messages. Returns False if it had already ended."""
        if self.is_over:
            return False
        self._cancelled = True
        self.buffer.messages.clear()
        self._withdraw()
        return True

    def _expire(self) -> None:
        if not self.is_over:
            self._status = _PAST_DEADLINE
            self._withdraw()

    def _withdraw(self) -> None:
        if self.owner is not None:
            self.owner.leave(self)
        self._finish()

    def sent(self) -> None:
        """Note that nothing is left to be sent now."""

    def _finish(self) -> None:
        self.owner = None
        self.unsent = self._message = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_reader()

    def _wake_reader(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def read(self) -> Any:
        """Return the next message; EOF after the last. Raises AioRpcError on failure, CancelledError after `cancel`."""
        messages = self.buffer.messages
        while not messages:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._status is not None:
                if self._status is OK:
                    return EOF
                raise self._status.error(self.initial or ())
            self._widen_if_low()
            wake = self._wake = self._loop.create_future()
            try:
                await wake
            except asyncio.CancelledError:
                self._wake = None
                self.cancel()
                raise
        return messages.popleft()

    def _widen_if_low(self) -> None:
        """Have the owner enlarge the window if it is low or too small for the rest of the current message."""
        if (self.window < self._low_window or self.window < self.buffer.num_missing) and self.owner is not None:
            self.owner.widen(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message


class Http2DuplexCall(Http2Call):
    """A call with streams of messages in both directions. It begins with an empty message. It ends when the server ends
    it or by `cancel`, because the client never closes its own stream."""

    is_duplex = True
    _drained: asyncio.Future[None] | None = None

    def look_ahead(self, lookahead: int) -> None:
        """Let the server send more than it may in other calls."""
        self.lookahead, self._low_window = lookahead, lookahead // 2
        if self.owner is not None:
            self.owner.widen(self)

    async def write(self, message: bytes) -> None:
        """Send a message, once the server has answered. Returns when all of it is sent. Raises InvalidStateError for a
        call that has ended. Only one task may write at a time."""
        if self.owner is None or self.initial is None:
            raise asyncio.InvalidStateError("the call has not begun or is over")
        self.unsent = bytes(self.unsent) + frame_message(message)
        self.owner.push(self)
        if self.unsent:
            self._drained = self._loop.create_future()
            await self._drained

    def sent(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _finish(self) -> None:
        super()._finish()
        self.sent()


class Http2UnaryCall(Http2Call):
    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        answer = await self.read()
        if answer is EOF:
            raise _NO_ANSWER.error(self.initial or ())
        if await self.read() is not EOF:
            self.cancel()
            raise _TWO_ANSWERS.error(self.initial or ())
        return answer
