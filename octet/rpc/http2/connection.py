"""One connection: frames come in, calls end, windows move."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import grpc

from octet.rpc.http2 import errors, frames
from octet.rpc.http2.call import Call
from octet.rpc.http2.errors import ConnectionBroken, HeadersTooLong
from octet.rpc.http2.frames import END_STREAM, HEAD, HEAD_BYTES, PADDED
from octet.rpc.http2.header_decoder import MOST_LIST_BYTES, HeaderDecoder
from octet.rpc.http2.inbox import MessageRefused
from octet.rpc.http2.keepalive import Keepalive
from octet.rpc.http2.outgoing import Outgoing
from octet.rpc.http2.segments import Segments
from octet.rpc.http2.split_block import SplitBlock
from octet.rpc.http2.static_table import Headers
from octet.rpc.http2.status import Status, status_of, status_of_reset, unavailable

_log = logging.getLogger(__name__)
WINDOW_BYTES = 1 << 20
"""For all calls together. It is given back as it is used: what is held for a caller is bounded by the call's own."""
_MOST_UNSENT = 1 << 20
"""Bytes of answers for somebody who asks and does not read."""
_FIRST_PAUSE = 0.001
_MOST_REFUSED = 8
"""How often a call is begun again that the other side would not begin. Every pause is twice the one before."""
_LAST_WORDS_SECONDS = 0.1
_INTERNAL = grpc.StatusCode.INTERNAL
_CUT = Status(_INTERNAL, "it ended in the middle of a message")
_GRPC = "application/grpc"


class Connection(asyncio.Protocol):
    """A client's. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lookahead: int, away: Callable[["Connection"], None]) -> None:
        """`lookahead` is the window of a call that begins. `away` is called once, when no call can begin any more."""
        self._loop = loop
        self._lookahead = lookahead
        self._away = away
        self.ready: asyncio.Future[bool] = loop.create_future()
        """Whether the other side has said what it allows; False when it never will."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self._calls: dict[int, Call] = {}
        self._line: dict[Call, None] = {}
        """Calls beyond what the other side takes at once."""
        self._refused: dict[Call, asyncio.TimerHandle] = {}
        """Calls that it would not begin, until they are begun again."""
        self._most_calls = frames.LAST_STREAM
        self._next = 1
        self.is_open = False
        """Calls may begin."""
        self.why = "the other side has closed the connection"
        """It ended, or will."""
        self._segments = Segments()
        self._split: SplitBlock | None = None
        self._decoder = HeaderDecoder()
        self._outgoing = Outgoing()
        self._paused = False
        self._used = 0
        """Of the connection's window, not given back yet."""
        self._thirsty: dict[Call, None] = {}
        """Calls that somebody waits for, and that may not bring enough."""
        self._answers: list[bytes] = []
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by descent
        self._keepalive = Keepalive(self._loop, self._probe, self.give_up)
        wishes = {
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: self._lookahead,
            frames.MAX_HEADER_LIST_SIZE: MOST_LIST_BYTES,
        }
        more = frames.window_update(0, WINDOW_BYTES - frames.USUAL_WINDOW)
        self._transport.write(frames.PREFACE + frames.settings(wishes) + more)

    @property
    def num_calls(self) -> int:
        return len(self._calls) + len(self._line) + len(self._refused)

    def begin(self, call: Call) -> None:
        call.settle(self)
        if len(self._calls) < self._most_calls and not self._line:
            self._open(call)
        else:
            self._line[call] = None

    def leave(self, call: Call) -> None:
        if self._calls.pop(call.stream, None) is not None:
            self._transport.write(frames.reset(call.stream, errors.CANCEL))
            self._left()
        elif (again := self._refused.pop(call, None)) is not None:
            again.cancel()
        else:
            self._line.pop(call, None)

    def widen(self, call: Call) -> None:
        """Soon: those whose messages came together ask together."""
        if not self._thirsty:
            self._loop.call_soon(self._widen_all)
        self._thirsty[call] = None

    def _widen_all(self) -> None:
        thirsty, self._thirsty = self._thirsty, {}
        updates = b"".join([_widened(call) for call in thirsty if self._calls.get(call.stream) is call])
        if updates:
            self._transport.write(updates)

    def close(self) -> None:
        """Whoever still waits is cancelled."""
        for call in (*self._line, *self._refused, *self._calls.values()):
            call.cancel()
        self._end(errors.NO_ERROR, "the caller has closed the connection")

    def give_up(self, why: str) -> None:
        """The other end is gone: no last word would reach it."""
        self.why = why
        self._transport.abort()
        self._all_over()

    def _open(self, call: Call) -> None:
        call.stream = self._next
        self._next += 2
        self._calls[call.stream] = call
        outgoing = self._outgoing
        call.send_window = outgoing.initial_window
        opening = frames.header_frames(call.stream, call.headers(), outgoing.most_frame)
        message = b"" if self._paused else outgoing.whole(call)
        self._transport.write(opening + message)
        if not message:
            outgoing.queue(call)
            self._send()
        if self._next > frames.LAST_STREAM:
            self._go("there are no more numbers for calls")

    def _send(self) -> None:
        while not self._paused and (frame := self._outgoing.next_frame()):
            self._transport.write(frame)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def _probe(self) -> bool:
        if not self._calls:
            return False
        self._transport.write(frames.ping(0))
        return True

    def data_received(self, data: bytes) -> None:
        self._keepalive.heard = self._loop.time()
        whole = self._segments.whole(data)
        if not whole or self.closed.done() or self._ending is not None:
            return
        try:
            self._take(whole)
            self._answer()
        except ConnectionBroken as error:
            self._end(error.code, str(error))
        except Exception:
            _log.error("what a server said was not understood", exc_info=True)
            self._end(errors.INTERNAL_ERROR, "it was not understood")

    def _take(self, data: bytes) -> None:
        at, size = 0, len(data)
        while size - at >= HEAD_BYTES:
            word, flags, stream = HEAD.unpack_from(data, at)
            at += HEAD_BYTES
            end = at + (word >> 8)
            if end - at > frames.FRAME_BYTES:
                raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "a frame is too long")
            if end > size:
                self._segments.keep(data, at - HEAD_BYTES, end - size)
                return
            kind = word & 0xFF
            stream &= frames.LAST_STREAM
            if kind == frames.DATA and self._split is None:
                self._data(flags, stream, data, at, end)
            else:
                self._other(kind, flags, stream, data[at:end])
            at = end
        if at < size:
            self._segments.keep(data, at, HEAD_BYTES - (size - at))

    def _answer(self) -> None:
        if self._answers and self._ending is None:
            self._transport.write(b"".join(self._answers))
            self._answers.clear()
            if self._paused and self._transport.get_write_buffer_size() > _MOST_UNSENT:
                raise ConnectionBroken(errors.ENHANCE_YOUR_CALM, "it asks and does not read what it is answered")

    def _data(self, flags: int, stream: int, data: bytes, at: int, end: int) -> None:
        self._used += end - at
        if self._used >= WINDOW_BYTES // 2:
            self._answers.append(frames.window_update(0, self._used))
            self._used = 0
        call = self._calls.get(stream)
        if call is None:
            self._check_begun(stream)
            return
        call.window -= end - at
        if call.window < 0:
            raise ConnectionBroken(errors.FLOW_CONTROL_ERROR, "more than a call's window")
        if flags & PADDED:
            at, end = _unpadded(data, at, end)
        if call.initial is None:
            self._refuse(call, Status(_INTERNAL, "a message before any headers"))
            return
        try:
            call.inbox.take(data, at, end)
        except MessageRefused as refused:
            self._refuse(call, refused.status)
            return
        if flags & END_STREAM:
            self._finish(call, status_of(()))
        else:
            call.arrived()

    def _other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self.ready.done() and kind != frames.SETTINGS:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "it does not begin with its settings")
        if (self._split is not None) != (kind == frames.CONTINUATION):
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "headers are broken off")
        if kind == frames.HEADERS:
            self._headers(flags, stream, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, stream, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream, payload)
        elif kind == frames.RST_STREAM:
            self._reset(stream, payload)
        elif kind in (frames.SETTINGS, frames.PING, frames.GOAWAY):
            if stream:
                raise ConnectionBroken(errors.PROTOCOL_ERROR, "what concerns all of them is said of a stream")
            self._of_all(kind, flags, payload)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "a promise that nobody wants")

    def _of_all(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.GOAWAY:
            self._goaway(payload)
        elif kind == frames.PING:
            _check_size(payload, 8)
            if not flags & frames.ACK:
                self._answers.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif not flags & frames.ACK:
            self._settings(payload)
        else:
            _check_size(payload, 0)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        at, end = _unpadded(payload, 0, len(payload)) if flags & PADDED else (0, len(payload))
        if flags & frames.PRIORITISED:
            at += 5
        if at > end:
            raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "headers are too short")
        block = payload[at:end]
        if flags & frames.END_HEADERS:
            self._block(stream, block, is_last=bool(flags & END_STREAM))
        else:
            self._split = SplitBlock(stream, block, is_last=bool(flags & END_STREAM))

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        split = self._split
        if split is None or split.stream != stream:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "headers are broken off")
        split.add(payload)
        if flags & frames.END_HEADERS:
            self._split = None
            self._block(stream, split.whole(), is_last=split.is_last)

    def _block(self, stream: int, block: bytes, *, is_last: bool) -> None:
        call = self._calls.get(stream)
        if call is None:
            self._check_begun(stream)
        try:
            headers = self._decoder.decode(block)
        except HeadersTooLong as error:
            if call is not None:
                self._refuse(call, Status(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)))
            return
        if call is None:
            return
        if is_last:
            self._finish(call, status_of(headers))
        elif call.initial is None:
            self._greet(call, headers)
        else:
            self._refuse(call, Status(_INTERNAL, "headers in the middle of its messages"))

    def _greet(self, call: Call, headers: Headers) -> None:
        said = dict(headers)
        http = said.get(":status", "")
        if len(http) == 3 and http.startswith("1"):  # there is more to come
            return
        if http != "200" or not said.get("content-type", "").startswith(_GRPC):
            self._refuse(call, status_of(headers))
        else:
            call.greeted(headers)

    def _window_update(self, stream: int, payload: bytes) -> None:
        _check_size(payload, 4)
        more = int.from_bytes(payload, "big") & frames.MOST_WINDOW
        if not more:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "a window that is widened by nothing")
        if not stream:
            self._outgoing.window += more
            _check_window(self._outgoing.window)
        elif (call := self._calls.get(stream)) is not None:
            call.send_window += more
            _check_window(call.send_window)
        else:
            self._check_begun(stream)
        self._send()

    def _reset(self, stream: int, payload: bytes) -> None:
        _check_size(payload, 4)
        call = self._calls.get(stream)
        if call is None:
            self._check_begun(stream)
            return
        code = int.from_bytes(payload, "big")
        if code == errors.REFUSED_STREAM and self.is_open and call.initial is None and call.num_refused < _MOST_REFUSED:
            self._put_back(call)
        else:
            call.unsent = b""
            self._finish(call, status_of_reset(code))

    def _put_back(self, call: Call) -> None:
        """It came when there were too many: a server may count a call a moment longer than it has told its end."""
        del self._calls[call.stream]
        pause = _FIRST_PAUSE * 2**call.num_refused
        call.put_back()
        self._refused[call] = self._loop.call_later(pause, self._begin_again, call)
        self._left()

    def _begin_again(self, call: Call) -> None:
        del self._refused[call]
        self.begin(call)

    def _settings(self, payload: bytes) -> None:
        try:
            for name, value in frames.settings_of(payload):
                self._set(name, value)
        except ValueError as error:
            raise ConnectionBroken(errors.FRAME_SIZE_ERROR, str(error)) from None
        self._answers.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if not self.ready.done():
            self.is_open = True
            self.ready.set_result(True)
        self._answer()  # first: what is allowed now is allowed to somebody who has said that he knows
        self._send()
        self._next_in_line()

    def _set(self, name: int, value: int) -> None:
        outgoing = self._outgoing
        if name == frames.MAX_CONCURRENT_STREAMS:
            self._most_calls = value
        elif name == frames.INITIAL_WINDOW_SIZE:
            _check_window(value)
            for call in self._calls.values():
                call.send_window += value - outgoing.initial_window
                _check_window(call.send_window)
            outgoing.initial_window = value
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES <= value <= frames.MOST_FRAME_BYTES:
                raise ConnectionBroken(errors.PROTOCOL_ERROR, "frames of a length that cannot be")
            outgoing.most_frame = min(value, _MOST_FRAME)

    def _goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "a farewell is too short")
        last, code = (int.from_bytes(payload[at : at + 4], "big") for at in (0, 4))
        words = payload[8:264].decode("latin-1")
        self._go(f"the other side goes away: {errors.name_of(code)}" + (f", {words!r}" if words else ""))
        last &= frames.LAST_STREAM
        never_begun = unavailable(f"{self.why}; it was not begun")
        for stream in [stream for stream in self._calls if stream > last]:
            self._calls.pop(stream).end(never_begun)
        self._left()

    def _go(self, why: str) -> None:
        """No call begins here any more; those that have begun go on."""
        self.why = why
        line, self._line = [*self._line, *self._refused], {}
        for again in self._refused.values():
            again.cancel()
        self._refused.clear()
        if self.is_open:
            self.is_open = False
            self._away(self)
        for call in line:
            call.end(unavailable(f"{why}; it was not begun"))

    def _finish(self, call: Call, status: Status) -> None:
        """The other side has said all that it will say of it."""
        del self._calls[call.stream]
        if call.unsent:
            self._answers.append(frames.reset(call.stream, errors.CANCEL))
        call.end(_CUT if status.code is grpc.StatusCode.OK and call.inbox.num_pending else status)
        self._left()

    def _refuse(self, call: Call, status: Status) -> None:
        """What the other side says of it cannot be used."""
        del self._calls[call.stream]
        self._answers.append(frames.reset(call.stream, errors.CANCEL))
        call.end(status)
        self._left()

    def _left(self) -> None:
        self._next_in_line()
        if self.ready.done() and not self.is_open and not self._calls:
            self._end(errors.NO_ERROR, self.why)

    def _next_in_line(self) -> None:
        while self._line and len(self._calls) < self._most_calls:
            call = next(iter(self._line))
            del self._line[call]
            self._open(call)

    def _check_begun(self, stream: int) -> None:
        """Late words about a call that is over are none to heed."""
        if not stream & 1 or stream >= self._next:
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "a call that nobody has begun")

    def _end(self, code: int, why: str) -> None:
        """With a last word, which may not be taken."""
        if self._ending is not None or self.closed.done():
            return
        self.why = why
        self._ending = self._loop.call_later(_LAST_WORDS_SECONDS, self._transport.abort)
        self._transport.write(b"".join(self._answers) + frames.goaway(code, why))
        self._answers.clear()
        self._transport.close()
        self._all_over()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self._ending is None:
            self.why = f"the connection was lost: {error}"
        self._keepalive.stop()
        if self._ending is not None:
            self._ending.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._all_over()

    def _all_over(self) -> None:
        self._keepalive.stop()
        calls, self._calls = self._calls, {}
        self._go(self.why)
        for call in calls.values():
            call.end(unavailable(self.why))
        if not self.ready.done():
            self.ready.set_result(False)


_MOST_FRAME = 1 << 16
"""Of ours: in longer ones a short message would wait for a long one."""


def _widened(call: Call) -> bytes:
    wanted = max(call.lookahead - call.inbox.num_pending, call.inbox.num_missing)
    if wanted <= call.window:
        return b""
    more, call.window = wanted - call.window, wanted
    return frames.window_update(call.stream, more)


def _unpadded(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at == end or data[at] >= end - at:
        raise ConnectionBroken(errors.PROTOCOL_ERROR, "more padding than there is frame")
    return at + 1, end - data[at]


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionBroken(errors.FRAME_SIZE_ERROR, "a frame of a length that cannot be")


def _check_window(window: int) -> None:
    if window > frames.MOST_WINDOW:
        raise ConnectionBroken(errors.FLOW_CONTROL_ERROR, "a window that is too wide")
