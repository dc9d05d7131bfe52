"""One connection: frames come in, calls end, windows move."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import grpc

from octet.rpc.http2 import errors, frames, header_block
from octet.rpc.http2.call import Call
from octet.rpc.http2.errors import ConnectionBroken
from octet.rpc.http2.header_decoder import MOST_LIST_BYTES
from octet.rpc.http2.inbox import MessageRefused
from octet.rpc.http2.keepalive import Keepalive
from octet.rpc.http2.outgoing import Outgoing
from octet.rpc.http2.parser import Parser
from octet.rpc.http2.roster import Roster
from octet.rpc.http2.static_table import Headers
from octet.rpc.http2.status import Status, status_of, status_of_reset, unavailable

_log = logging.getLogger(__name__)
WINDOW_BYTES = 1 << 20
"""For all calls together. It is given back as it is used: what is held for a caller is bounded by the call's own."""
_MOST_UNSENT = 1 << 20
"""Bytes of answers for somebody who asks and does not read."""
_LAST_WORDS_SECONDS = 0.1
_INTERNAL = grpc.StatusCode.INTERNAL
_CUT = Status(_INTERNAL, "it ended in the middle of a message")
_TOO_EARLY = Status(_INTERNAL, "a message before any headers")
_TWICE = Status(_INTERNAL, "headers in the middle of its messages")
_TOO_LONG = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, f"headers of more than {MOST_LIST_BYTES:,} bytes")
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
        self.is_open = False
        """Calls may begin."""
        self.why = "the other side has closed the connection"
        """It ended, or will."""
        self.calls = Roster(loop, self._send_first)
        self._parser = Parser(self)
        self._outgoing = Outgoing()
        self._paused = False
        self._used = 0
        """Of the connection's window, not given back yet."""
        self._thirsty: dict[Call, None] = {}
        """Calls that somebody waits for, and that may not bring enough."""
        self._answers: list[bytes] = []
        self._table_update = b""
        """Goes before the next headers: the other side keeps a smaller table, and ours is told to be none."""
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
        self._write(frames.PREFACE + frames.settings(wishes) + more)

    def begin(self, call: Call) -> None:
        call.settle(self)
        self.calls.begin(call)
        if self.calls.is_spent:
            self._go("there are no more numbers for calls")

    def leave(self, call: Call) -> None:
        if self.calls.remove(call):
            self._outgoing.drop(call)
            self._write(frames.reset(call.stream, errors.CANCEL))
            self._left()

    def widen(self, call: Call) -> None:
        """Soon: those whose messages came together ask together."""
        if not self._thirsty:
            self._loop.call_soon(self._widen_all)
        self._thirsty[call] = None

    def _widen_all(self) -> None:
        thirsty, self._thirsty = self._thirsty, {}
        updates = b"".join([_widened(call) for call in thirsty if self.calls.open.get(call.stream) is call])
        if updates:
            self._write(updates)

    def close(self) -> None:
        """Whoever still waits is cancelled."""
        for call in [*self.calls]:
            call.cancel()
        self._end(errors.NO_ERROR, "the caller has closed the connection")

    def give_up(self, why: str) -> None:
        """The other end is gone: no last word would reach it."""
        self.why = why
        self._transport.abort()
        self._all_over()

    def _write(self, raw: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(raw)

    def _send_first(self, call: Call) -> None:
        """With its headers all that it has to say, where that may be."""
        outgoing = self._outgoing
        block, self._table_update = self._table_update + call.headers(), b""
        opening = frames.header_frames(call.stream, block, outgoing.most_frame)
        message = b"" if self._paused else outgoing.whole(call)
        self._write(opening + message)
        if not message:
            outgoing.queue(call)
            self._send()

    def _send(self) -> None:
        while not self._paused and (frame := self._outgoing.next_frame()):
            self._write(frame)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    def _probe(self) -> bool:
        if not self.calls.open:
            return False
        self._write(frames.ping(0))
        return True

    def data_received(self, data: bytes) -> None:
        self._keepalive.heard = self._loop.time()
        if self._ending is not None:
            return
        try:
            self._parser.take(data)
            self._answer()
            self._send()  # once, however many windows have moved
        except ConnectionBroken as error:
            self._end(error.code, str(error))
        except Exception:
            _log.error("what a server said was not understood", exc_info=True)
            self._end(errors.INTERNAL_ERROR, "it was not understood")

    def _answer(self) -> None:
        if self._answers and self._ending is None:
            self._write(b"".join(self._answers))
            self._answers.clear()
            if self._paused and self._transport.get_write_buffer_size() > _MOST_UNSENT:
                raise ConnectionBroken(errors.ENHANCE_YOUR_CALM, "it asks and does not read what it is answered")

    def data(self, stream: int, size: int, data: bytes, at: int, end: int, is_last: bool) -> None:
        self._used += size
        if self._used >= WINDOW_BYTES // 2:
            self._answers.append(frames.window_update(0, self._used))
            self._used = 0
        call = self.calls.find(stream)
        if call is None:
            return
        call.window -= size
        if call.window < 0:
            raise ConnectionBroken(errors.FLOW_CONTROL_ERROR, "more than a call's window")
        if call.initial is None:
            self._refuse(call, _TOO_EARLY)
            return
        try:
            call.inbox.take(data, at, end)
        except MessageRefused as refused:
            self._refuse(call, refused.status)
            return
        if is_last:
            self._finish(call, status_of(()))
        else:
            call.arrived()

    def headers(self, stream: int, headers: Headers | None, is_last: bool) -> None:
        call = self.calls.find(stream)
        if call is None:
            return
        if headers is None:
            self._refuse(call, _TOO_LONG)
        elif is_last:
            self._finish(call, status_of(headers))
        elif call.initial is None:
            self._greet(call, headers)
        else:
            self._refuse(call, _TWICE)

    def _greet(self, call: Call, headers: Headers) -> None:
        said = dict(headers)
        http = said.get(":status", "")
        if len(http) == 3 and http.startswith("1"):  # there is more to come
            return
        if http != "200" or not said.get("content-type", "").startswith(_GRPC):
            self._refuse(call, status_of(headers))
        else:
            call.greeted(headers)

    def window_update(self, stream: int, more: int) -> None:
        if not stream:
            self._outgoing.window += more
            _check_window(self._outgoing.window)
        elif (call := self.calls.find(stream)) is not None:
            self._outgoing.widen(call, more)
            _check_window(self._outgoing.initial_window + call.credit)

    def reset(self, stream: int, code: int) -> None:
        call = self.calls.find(stream)
        if call is None:
            return
        self._outgoing.drop(call)
        if code == errors.REFUSED_STREAM and self.is_open and self.calls.put_back(call):
            self._left()
            return
        call.unsent = b""
        self._finish(call, status_of_reset(code))

    def settings(self, values: list[tuple[int, int]]) -> None:
        for name, value in values:
            self._set(name, value)
        self._answers.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if not self.ready.done():
            self.is_open = True
            self.ready.set_result(True)
        self._answer()  # first: what is allowed now is allowed to somebody who has said that he knows
        self.calls.advance()

    def _set(self, name: int, value: int) -> None:
        if name == frames.MAX_CONCURRENT_STREAMS:
            self.calls.most = value
        elif name == frames.INITIAL_WINDOW_SIZE:
            _check_window(value)
            self._outgoing.widen_all(value)
        elif name == frames.HEADER_TABLE_SIZE:
            self._table_update = header_block.NO_TABLE if value < frames.USUAL_TABLE else b""
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES <= value <= frames.MOST_FRAME_BYTES:
                raise ConnectionBroken(errors.PROTOCOL_ERROR, "frames of a length that cannot be")
            self._outgoing.allow_frames(value)

    def ping(self, payload: bytes) -> None:
        self._answers.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def goaway(self, last: int, code: int, words: str) -> None:
        self._go(f"the other side goes away: {errors.name_of(code)}" + (f", {words!r}" if words else ""))
        for call in self.calls.take_above(last):
            self._outgoing.drop(call)
            call.end(unavailable(f"{self.why}; it was not begun"))
        self._left()

    def _go(self, why: str) -> None:
        """No call begins here any more; those that have begun go on."""
        self.why = why
        unsent = self.calls.take_unsent()
        if self.is_open:
            self.is_open = False
            self._away(self)
        for call in unsent:
            call.end(unavailable(f"{why}; it was not begun"))

    def _finish(self, call: Call, status: Status) -> None:
        """The other side has said all that it will say of it."""
        self.calls.remove(call)
        if call.unsent:
            self._outgoing.drop(call)
            self._answers.append(frames.reset(call.stream, errors.CANCEL))
        call.end(_CUT if status.code is grpc.StatusCode.OK and call.inbox.num_pending else status)
        self._left()

    def _refuse(self, call: Call, status: Status) -> None:
        """What the other side says of it cannot be used."""
        self.calls.remove(call)
        self._outgoing.drop(call)
        self._answers.append(frames.reset(call.stream, errors.CANCEL))
        call.end(status)
        self._left()

    def _left(self) -> None:
        self.calls.advance()
        if self.ready.done() and not self.is_open and not self.calls:
            self._end(errors.NO_ERROR, self.why)

    def _end(self, code: int, why: str) -> None:
        """With a last word, which may not be taken."""
        if self._ending is not None or self.closed.done():
            return
        self.why = why
        self._ending = self._loop.call_later(_LAST_WORDS_SECONDS, self._transport.abort)
        self._write(b"".join(self._answers) + frames.goaway(code, why))
        self._answers.clear()
        self._transport.close()
        self._all_over()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self._ending is None:
            self.why = f"the connection was lost: {error}"
        if self._ending is not None:
            self._ending.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._all_over()

    def _all_over(self) -> None:
        self._keepalive.stop()
        self._go(self.why)
        for call in self.calls.take_above(0):
            call.end(unavailable(self.why))
        if not self.ready.done():
            self.ready.set_result(False)


def _widened(call: Call) -> bytes:
    wanted = max(call.lookahead - call.inbox.num_pending, call.inbox.num_missing)
    if wanted <= call.window:
        return b""
    more, call.window = wanted - call.window, wanted
    return frames.window_update(call.stream, more)


def _check_window(window: int) -> None:
    if window > frames.MOST_WINDOW:
        raise ConnectionBroken(errors.FLOW_CONTROL_ERROR, "a window that is too wide")
