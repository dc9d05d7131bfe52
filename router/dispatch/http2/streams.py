"""The streams of one HTTP/2 connection: which calls have one, and whose bytes are sent next."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator

from router.dispatch.http2 import frames
from router.dispatch.http2.call import Http2Call
from router.dispatch.http2.frames import ErrorCode, ProtocolViolation

_FIRST_PAUSE = 0.001
_MAX_REFUSALS = 8  # a call that the server refuses is retried up to this many times, with doubling pauses


class StreamTable:
    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Http2Call], None]) -> None:
        """`send` sends a call whose stream has just been opened."""
        self._loop = loop
        self._send = send
        self.open: dict[int, Http2Call] = {}  # by stream
        self.max_open = frames.LAST_STREAM
        self._next_stream = 1
        self._queued: dict[Http2Call, None] = {}
        self._refused: dict[Http2Call, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self.open) + len(self._queued) + len(self._refused)

    def __iter__(self) -> Iterator[Http2Call]:
        yield from (*self._queued, *self._refused, *self.open.values())

    @property
    def is_exhausted(self) -> bool:
        return self._next_stream > frames.LAST_STREAM

    def begin(self, call: Http2Call) -> None:
        self._queued[call] = None
        self.open_queued()

    def open_queued(self) -> None:
        while self._queued and len(self.open) < self.max_open and not self.is_exhausted:
            call = next(iter(self._queued))
            del self._queued[call]
            call.stream, self._next_stream = self._next_stream, self._next_stream + 2
            self.open[call.stream] = call
            self._send(call)

    def find(self, stream: int) -> Http2Call | None:
        """Return the stream's call; None if it has ended. Raises ProtocolViolation for a stream never opened."""
        call = self.open.get(stream)
        if call is None and (not stream & 1 or stream >= self._next_stream):
            raise ProtocolViolation(ErrorCode.PROTOCOL_ERROR, f"stream {stream} was never opened")
        return call

    def remove(self, call: Http2Call) -> bool:
        """Remove a call from the table. Returns whether its stream was open."""
        if self.open.pop(call.stream, None) is not None:
            return True
        self._queued.pop(call, None)
        retry = self._refused.pop(call, None)
        if retry is not None:
            retry.cancel()
        return False

    def put_back(self, call: Http2Call) -> bool:
        """Schedule a retry of a call that the server refused, perhaps because it still counted a stream that had just
        ended. Returns False if the call had started or was refused too often."""
        if call.initial is not None or call.num_refused >= _MAX_REFUSALS:
            return False
        del self.open[call.stream]
        pause = _FIRST_PAUSE * 2**call.num_refused
        call.put_back()
        self._refused[call] = self._loop.call_later(pause, self._retry, call)
        return True

    def _retry(self, call: Http2Call) -> None:
        del self._refused[call]
        self.begin(call)

    def take_unopened(self) -> list[Http2Call]:
        taken = [*self._queued, *self._refused]
        for call in taken:
            self.remove(call)
        return taken

    def take_above(self, last_stream: int) -> list[Http2Call]:
        return [self.open.pop(stream) for stream in [*self.open] if stream > last_stream]


class SendQueue:
    """Unsent message bytes. Calls take turns, one frame each, as far as the server's flow-control windows allow."""

    def __init__(self) -> None:
        self.window = frames.DEFAULT_WINDOW  # the connection's send window
        self.initial_window = frames.DEFAULT_WINDOW  # a call's initial window; a change applies to every open call
        self.max_frame = frames.FRAME_BYTES
        self._ready: OrderedDict[Http2Call, None] = OrderedDict()
        self._blocked: dict[Http2Call, None] = {}  # calls whose own window is used up
        self._has_grown = False  # the initial window has grown since blocked calls were last checked

    def widen(self, call: Http2Call, increment: int) -> None:
        call.credit += increment
        if call in self._blocked and self._call_window(call) > 0:
            del self._blocked[call]
            self._ready[call] = None

    def set_initial_window(self, size: int) -> None:
        self._has_grown |= size > self.initial_window
        self.initial_window = size

    def start(self, call: Http2Call, *, is_paused: bool) -> bytes:
        """Return the message as one frame if all of it may be sent now; otherwise queue it and return b""."""
        size = len(call.unsent)
        if not is_paused and not self._ready and size <= self._max_size(call):
            return self._frame(call, size)
        self._ready[call] = None
        return b""

    def push(self, call: Http2Call) -> None:
        if call not in self._blocked:
            self._ready[call] = None

    def drop(self, call: Http2Call) -> None:
        self._ready.pop(call, None)
        self._blocked.pop(call, None)

    def next_frame(self) -> bytes:
        """Return the next frame to send; b"" if no call may send."""
        if self._has_grown:
            self._has_grown = False
            self._ready.update(self._blocked)
            self._blocked.clear()
        while self._ready and self.window > 0:
            call, _ = self._ready.popitem(last=False)
            if self._call_window(call) <= 0:
                self._blocked[call] = None
                continue
            frame = self._frame(call, min(len(call.unsent), self._max_size(call)))
            if call.unsent:
                self._ready[call] = None
            return frame
        return b""

    def _call_window(self, call: Http2Call) -> int:
        return self.initial_window + call.credit

    def _max_size(self, call: Http2Call) -> int:
        return min(self._call_window(call), self.window, self.max_frame)

    def _frame(self, call: Http2Call, size: int) -> bytes:
        part = call.unsent[:size]
        call.unsent = memoryview(call.unsent)[size:] if size < len(call.unsent) else b""
        call.credit -= size
        self.window -= size
        is_last = not (call.unsent or call.is_duplex)
        if not call.unsent:
            call.sent()
        return frames.head(size, frames.DATA, frames.END_STREAM if is_last else 0, call.stream) + part
