"""One HTTP/2 client connection: streams, flow control, keepalive and closing."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from grpc import StatusCode

from router.dispatch.http2 import frames
from router.dispatch.http2.call import CallStatus, Http2Call, MessageRefused, parse_status, reset_status, unavailable
from router.dispatch.http2.frames import MAX_HEADER_LIST_BYTES, ErrorCode, FrameParser, ProtocolViolation
from router.dispatch.http2.hpack_tables import Headers
from router.dispatch.http2.streams import SendQueue, StreamTable

_log = logging.getLogger(__name__)
WINDOW_BYTES = 1 << 20  # the connection's receive window; the windows of its calls limit what is buffered
PING_AFTER_SECONDS = 10.0
PING_TIMEOUT_SECONDS = 5.0
_CLOCK_RESOLUTION = 1e-6  # seconds; a shorter pause might not advance the clock
_LATE_SECONDS = 1.0  # a timer that fires this late shows that the process was paused: data may have arrived unread
_MAX_UNSENT_BYTES = 1 << 20  # maximum bytes of replies held for a server that sends frames but does not read
_GOAWAY_SECONDS = 0.1
_CUT_OFF = CallStatus(StatusCode.INTERNAL, "stream ended inside a message")
_NO_HEADERS = CallStatus(StatusCode.INTERNAL, "message before the response headers")
_LATE_HEADERS = CallStatus(StatusCode.INTERNAL, "headers between messages")
_HEADERS_TOO_LONG = CallStatus(StatusCode.RESOURCE_EXHAUSTED, f"header list over {MAX_HEADER_LIST_BYTES:,} bytes")
_MAX_SENT_FRAME = 1 << 16  # longer frames would delay the short messages of other calls


class Http2Connection(asyncio.Protocol):
    """An HTTP/2 client connection. Used only on the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lookahead: int, on_closing: Callable[["Http2Connection"], None]
    ) -> None:
        """`lookahead` is each call's receive window. `on_closing` is called once, when no more calls are accepted."""
        self._loop = loop
        self._lookahead = lookahead
        self._on_closing = on_closing
        self.ready: asyncio.Future[bool] = loop.create_future()  # whether the server's settings arrived
        self.closed: asyncio.Future[None] = loop.create_future()
        self.is_open = False  # whether calls may begin
        self.reason = "the server closed the connection"  # why the connection ended or will end
        self.calls = StreamTable(loop, self._open)
        self._parser = FrameParser(self)
        self._send_queue = SendQueue()
        self._paused = False
        self._num_received = 0  # bytes received since the connection's window was last refilled
        self._to_widen: dict[Http2Call, None] = {}
        self._replies: list[bytes] = []
        self._table_update = b""  # precedes the next headers after the server has shrunk its header table
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        self._keepalive = _Keepalive(self, self._loop)
        settings = {frames.ENABLE_PUSH: 0, frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES}
        settings[frames.INITIAL_WINDOW_SIZE] = self._lookahead
        widen = frames.window_update(0, WINDOW_BYTES - frames.DEFAULT_WINDOW)
        self._write(frames.PREFACE + frames.settings(settings) + widen)

    def begin(self, call: Http2Call) -> None:
        call.owner = self
        self.calls.begin(call)
        if self.calls.is_exhausted:
            self._stop_accepting("all stream numbers are used")

    def leave(self, call: Http2Call) -> None:
        if self.calls.remove(call):
            self._send_queue.drop(call)
            self._write(frames.reset(call.stream, ErrorCode.CANCEL))
            self._after_removal()

    def widen(self, call: Http2Call) -> None:
        """Schedule a window update for the call. Updates for messages that arrive together share one write."""
        if not self._to_widen:
            self._loop.call_soon(self._widen_all)
        self._to_widen[call] = None

    def push(self, call: Http2Call) -> None:
        self._send_queue.push(call)
        self._send()

    def _widen_all(self) -> None:
        calls, self._to_widen = self._to_widen, {}
        updates = []
        for call in calls:
            wanted = max(call.lookahead - call.buffer.num_pending, call.buffer.num_missing)
            if wanted > call.window and self.calls.open.get(call.stream) is call:
                updates.append(frames.window_update(call.stream, wanted - call.window))
                call.window = wanted
        if updates:
            self._write(b"".join(updates))

    def close(self) -> None:
        """Cancel the remaining calls and close the connection."""
        for call in [*self.calls]:
            call.cancel()
        self._close(ErrorCode.NO_ERROR, "the client closed the connection")

    def abort(self, reason: str) -> None:
        """Close without GOAWAY, because the server is unreachable."""
        self.reason = reason
        self._transport.abort()
        self._end_calls()

    def _write(self, raw: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(raw)

    def _open(self, call: Http2Call) -> None:
        """Send the call's headers, with its message in the same write if the windows allow it."""
        queue = self._send_queue
        block, self._table_update = self._table_update + call.block, b""
        if call.deadline is not None:
            block += frames.encode_timeout(call.deadline - self._loop.time())
        opening = frames.header_frames(call.stream, block, queue.max_frame)
        message = queue.start(call, is_paused=self._paused)
        self._write(opening + message)
        if call.lookahead > call.window:
            self.widen(call)
        if not message:
            self._send()

    def _send(self) -> None:
        while not self._paused and (frame := self._send_queue.next_frame()):
            self._write(frame)

    def send_ping(self) -> None:
        self._write(frames.ping(0))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def data_received(self, data: bytes) -> None:
        self._keepalive.last_received = self._loop.time()
        if self._closing is not None:
            return
        try:
            self._parser.take(data)
            self._reply()
            self._send()
        except ProtocolViolation as error:
            self._close(error.code, str(error))
        except Exception:
            _log.error("cannot process received frames", exc_info=True)
            self._close(ErrorCode.INTERNAL_ERROR, "internal error")

    def _reply(self) -> None:
        if self._replies and self._closing is None:
            self._write(b"".join(self._replies))
            self._replies.clear()
            if self._paused and self._transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
                raise ProtocolViolation(ErrorCode.ENHANCE_YOUR_CALM, "the server has stopped reading our frames")

    def data(self, stream: int, size: int, data: bytes, at: int, end: int, is_last: bool) -> None:
        self._num_received += size
        if self._num_received >= WINDOW_BYTES // 2:
            self._replies.append(frames.window_update(0, self._num_received))
            self._num_received = 0
        call = self.calls.find(stream)
        if call is None:
            return
        call.window -= size
        if call.window < 0:
            raise ProtocolViolation(ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window allows")
        if call.initial is None:
            self._end(call, _NO_HEADERS, must_reset=True)
            return
        try:
            call.buffer.take(data, at, end)
        except MessageRefused as refused:
            self._end(call, refused.status, must_reset=True)
            return
        if is_last:
            self._finish(call, parse_status(()))
        else:
            call.received()

    def headers(self, stream: int, headers: Headers | None, is_last: bool) -> None:
        call = self.calls.find(stream)
        if call is None:
            return
        if headers is None:
            self._end(call, _HEADERS_TOO_LONG, must_reset=True)
        elif is_last:
            self._finish(call, parse_status(headers))
        elif call.initial is None:
            self._start(call, headers)
        else:
            self._end(call, _LATE_HEADERS, must_reset=True)

    def _start(self, call: Http2Call, headers: Headers) -> None:
        fields = dict(headers)
        http = fields.get(":status", "")
        if len(http) == 3 and http.startswith("1"):  # informational: the response headers follow
            return
        if http != "200" or not fields.get("content-type", "").startswith("application/grpc"):
            self._end(call, parse_status(headers), must_reset=True)
        else:
            call.started(headers)

    def window_update(self, stream: int, increment: int) -> None:
        if not stream:
            self._send_queue.window += increment
            _check_window(self._send_queue.window)
        elif (call := self.calls.find(stream)) is not None:
            self._send_queue.widen(call, increment)
            _check_window(self._send_queue.initial_window + call.credit)

    def reset(self, stream: int, code: int) -> None:
        call = self.calls.find(stream)
        if call is None:
            return
        self._send_queue.drop(call)
        if code == ErrorCode.REFUSED_STREAM and self.is_open and self.calls.put_back(call):
            self._after_removal()
            return
        call.unsent = b""
        self._end(call, reset_status(code), must_reset=False)

    def settings(self, values: list[tuple[int, int]]) -> None:
        for name, value in values:
            self._apply_setting(name, value)
        self._replies.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if not self.ready.done():
            self.is_open = True
            self.ready.set_result(True)
        self._reply()  # the acknowledgement must precede calls that rely on the new settings
        self.calls.open_queued()

    def _apply_setting(self, name: int, value: int) -> None:
        if name == frames.MAX_CONCURRENT_STREAMS:
            self.calls.max_open = value
        elif name == frames.INITIAL_WINDOW_SIZE:
            _check_window(value)
            self._send_queue.set_initial_window(value)
        elif name == frames.HEADER_TABLE_SIZE:
            self._table_update = frames.RESET_TABLE if value < frames.TABLE_BYTES else b""
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"invalid maximum frame size {value}")
            self._send_queue.max_frame = min(value, _MAX_SENT_FRAME)

    def ping(self, payload: bytes) -> None:
        self._replies.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def goaway(self, last_stream: int, code: int, reason: str) -> None:
        name = frames.error_name(code)
        self._stop_accepting(f"the server is going away: {name}" + (f", {reason!r}" if reason else ""))
        for call in self.calls.take_above(last_stream):
            self._send_queue.drop(call)
            call.end(unavailable(f"{self.reason}; the call was not started"))
        self._after_removal()

    def _stop_accepting(self, reason: str) -> None:
        """Accept no further calls; open ones continue."""
        self.reason = reason
        unopened = self.calls.take_unopened()
        if self.is_open:
            self.is_open = False
            self._on_closing(self)
        for call in unopened:
            call.end(unavailable(f"{reason}; the call was not started"))

    def _finish(self, call: Http2Call, status: CallStatus) -> None:
        cut_off = status.code is StatusCode.OK and call.buffer.num_pending
        self._end(call, _CUT_OFF if cut_off else status, must_reset=call.is_duplex or bool(call.unsent))

    def _end(self, call: Http2Call, status: CallStatus, *, must_reset: bool) -> None:
        self.calls.remove(call)
        if must_reset:
            self._send_queue.drop(call)
            self._replies.append(frames.reset(call.stream, ErrorCode.CANCEL))
        call.end(status)
        self._after_removal()

    def _after_removal(self) -> None:
        self.calls.open_queued()
        if self.ready.done() and not self.is_open and not self.calls:
            self._close(ErrorCode.NO_ERROR, self.reason)

    def _close(self, code: ErrorCode, reason: str) -> None:
        if self._closing is not None or self.closed.done():
            return
        self.reason = reason
        self._closing = self._loop.call_later(_GOAWAY_SECONDS, self._transport.abort)
        self._write(b"".join(self._replies) + frames.goaway(code, reason))
        self._replies.clear()
        self._transport.close()
        self._end_calls()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self._closing is None:
            self.reason = f"connection lost: {error}"
        if self._closing is not None:
            self._closing.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._end_calls()

    def _end_calls(self) -> None:
        self._keepalive.stop()
        self._stop_accepting(self.reason)
        for call in self.calls.take_above(0):
            call.end(unavailable(self.reason))
        if not self.ready.done():
            self.ready.set_result(False)


class _Keepalive:
    """Pings a server that has been silent while calls are open, and aborts the connection if it does not answer."""

    def __init__(self, connection: Http2Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self.last_received = loop.time()
        self._pinged: float | None = None
        self._schedule(PING_AFTER_SECONDS)

    def stop(self) -> None:
        self._timer.cancel()

    def _schedule(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        silent = now - self.last_received
        if self._pinged is not None and self.last_received < self._pinged:
            if now - self._due < _LATE_SECONDS:
                self._connection.abort(f"nothing received for {silent:.0f} s")
            else:
                self._schedule(PING_TIMEOUT_SECONDS)
            return
        self._pinged = None
        remaining = PING_AFTER_SECONDS - silent
        if remaining > _CLOCK_RESOLUTION:
            self._schedule(remaining)
        elif self._connection.calls.open:
            self._connection.send_ping()
            self._pinged = now
            self._schedule(PING_TIMEOUT_SECONDS)
        else:
            self._schedule(PING_AFTER_SECONDS)


def _check_window(window: int) -> None:
    if window > frames.MAX_WINDOW:
        raise ProtocolViolation(ErrorCode.FLOW_CONTROL_ERROR, f"flow-control window over {frames.MAX_WINDOW}")
