"""What calls have still to send, as far as the other side's windows let them: a frame of each in turn."""

from collections import OrderedDict

from octet.rpc.http2.call import Call
from octet.rpc.http2.frames import DATA, END_STREAM, FRAME_BYTES, USUAL_WINDOW, head

_MOST_FRAME = 1 << 16
"""In longer ones a short message would wait for a long one."""


class Outgoing:
    def __init__(self) -> None:
        self.window = USUAL_WINDOW
        """For all of them together."""
        self.initial_window = USUAL_WINDOW
        """Of a call that begins. When it changes, every call's own changes with it."""
        self.most_frame = FRAME_BYTES
        self._turns: OrderedDict[Call, None] = OrderedDict()
        self._shut: dict[Call, None] = {}
        """Those whose own windows are. They have no turns: a window that is widened costs no look at all of them."""
        self._has_grown = False
        """The window of a call that begins, since that was looked at."""

    def widen(self, call: Call, more: int) -> None:
        call.credit += more
        if call in self._shut and self._own_room(call) > 0:
            del self._shut[call]
            self._turns[call] = None

    def widen_all(self, initial_window: int) -> None:
        self._has_grown = self._has_grown or initial_window > self.initial_window
        self.initial_window = initial_window

    def allow_frames(self, size: int) -> None:
        self.most_frame = min(size, _MOST_FRAME)

    def whole(self, call: Call) -> bytes:
        """All that it has to send, as one frame. Empty where it must be sent in its turn."""
        size = len(call.unsent)
        if self._turns or size > self._room(call):
            return b""
        return self._frame(call, size)

    def queue(self, call: Call) -> None:
        self._turns[call] = None

    def drop(self, call: Call) -> None:
        """It is over."""
        self._turns.pop(call, None)
        self._shut.pop(call, None)

    def next_frame(self) -> bytes:
        """Empty when nobody may send anything now."""
        if self._has_grown:
            self._look_again()
        while self._turns and self.window > 0:
            call, _ = self._turns.popitem(last=False)
            if self._own_room(call) <= 0:
                self._shut[call] = None
                continue
            frame = self._frame(call, min(len(call.unsent), self._room(call)))
            if call.unsent:
                self._turns[call] = None
            return frame
        return b""

    def _look_again(self) -> None:
        self._has_grown = False
        self._turns.update(self._shut)
        self._shut.clear()

    def _own_room(self, call: Call) -> int:
        return self.initial_window + call.credit

    def _room(self, call: Call) -> int:
        return min(self._own_room(call), self.window, self.most_frame)

    def _frame(self, call: Call, size: int) -> bytes:
        part = call.unsent[:size]
        call.unsent = memoryview(call.unsent)[size:] if size < len(call.unsent) else b""
        call.credit -= size
        self.window -= size
        return head(size, DATA, 0 if call.unsent else END_STREAM, call.stream) + part
