"""The calls of one connection: those that are open, those in line, and those that were refused for now."""

import asyncio
from collections.abc import Callable, Iterator

from octet.rpc.http2 import errors, frames
from octet.rpc.http2.call import Call
from octet.rpc.http2.errors import ConnectionBroken

_FIRST_PAUSE = 0.001
_MOST_REFUSED = 8
"""How often a call is begun again that the other side would not begin. Every pause is twice the one before."""


class Roster:
    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Call], None]) -> None:
        """`send` is called with every call that opens."""
        self._loop = loop
        self._send = send
        self.open: dict[int, Call] = {}
        """By stream."""
        self.most = frames.LAST_STREAM
        """At once, as the other side wants it."""
        self._next = 1
        self._line: dict[Call, None] = {}
        self._refused: dict[Call, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self.open) + len(self._line) + len(self._refused)

    def __iter__(self) -> Iterator[Call]:
        yield from (*self._line, *self._refused, *self.open.values())

    @property
    def is_spent(self) -> bool:
        """There are no more numbers for calls."""
        return self._next > frames.LAST_STREAM

    def begin(self, call: Call) -> None:
        self._line[call] = None
        self.advance()

    def advance(self) -> None:
        """As many of those in line as may, open."""
        while self._line and len(self.open) < self.most and not self.is_spent:
            call = next(iter(self._line))
            del self._line[call]
            call.stream, self._next = self._next, self._next + 2
            self.open[call.stream] = call
            self._send(call)

    def find(self, stream: int) -> Call | None:
        """None for one that is over: late words are none to heed. Raises ConnectionBroken for one that never was."""
        call = self.open.get(stream)
        if call is None and (not stream & 1 or stream >= self._next):
            raise ConnectionBroken(errors.PROTOCOL_ERROR, "a call that nobody has begun")
        return call

    def remove(self, call: Call) -> bool:
        """Whether it was open."""
        if self.open.pop(call.stream, None) is not None:
            return True
        self._line.pop(call, None)
        again = self._refused.pop(call, None)
        if again is not None:
            again.cancel()
        return False

    def put_back(self, call: Call) -> bool:
        """It came when there were too many: a server may count a call a moment longer than it has told its end. False
        when that was often enough, or it had been begun."""
        if call.initial is not None or call.num_refused >= _MOST_REFUSED:
            return False
        del self.open[call.stream]
        pause = _FIRST_PAUSE * 2**call.num_refused
        call.put_back()
        self._refused[call] = self._loop.call_later(pause, self._begin_again, call)
        return True

    def _begin_again(self, call: Call) -> None:
        del self._refused[call]
        self.begin(call)

    def take_unsent(self) -> list[Call]:
        """All that are not open; they are no longer here."""
        taken = [*self._line, *self._refused]
        for again in self._refused.values():
            again.cancel()
        self._line.clear()
        self._refused.clear()
        return taken

    def take_above(self, last: int) -> list[Call]:
        """Those that are open with higher numbers; they are no longer here."""
        return [self.open.pop(stream) for stream in [*self.open] if stream > last]
