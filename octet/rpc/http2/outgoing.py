"""What calls have still to send, as far as the other side's windows let them: a frame of each in turn."""

from collections import deque

from octet.rpc.http2.call import Call
from octet.rpc.http2.frames import DATA, END_STREAM, FRAME_BYTES, USUAL_WINDOW, head

_MOST_FRAME = 1 << 16
"""In longer ones a short message would wait for a long one."""


class Outgoing:
    def __init__(self) -> None:
        self.window = USUAL_WINDOW
        """For all of them together."""
        self.initial_window = USUAL_WINDOW
        """Of a call that begins."""
        self.most_frame = FRAME_BYTES
        self._turns: deque[Call] = deque()

    def allow_frames(self, size: int) -> None:
        self.most_frame = min(size, _MOST_FRAME)

    def whole(self, call: Call) -> bytes:
        """All that it has to send, as one frame. Empty where it must be sent in its turn."""
        size = len(call.unsent)
        if self._turns or size > min(call.send_window, self.window, self.most_frame):
            return b""
        return self._frame(call, size)

    def queue(self, call: Call) -> None:
        self._turns.append(call)

    def next_frame(self) -> bytes:
        """Empty when nobody may send anything now."""
        for _ in range(len(self._turns)):
            if self.window <= 0:
                break
            call = self._turns.popleft()
            if not call.unsent:  # it is over
                continue
            size = min(len(call.unsent), call.send_window, self.window, self.most_frame)
            frame = self._frame(call, size) if size > 0 else b""
            if call.unsent:
                self._turns.append(call)
            if frame:
                return frame
        return b""

    def _frame(self, call: Call, size: int) -> bytes:
        part = call.unsent[:size]
        call.unsent = memoryview(call.unsent)[size:] if size < len(call.unsent) else b""
        call.send_window -= size
        self.window -= size
        return head(size, DATA, 0 if call.unsent else END_STREAM, call.stream) + part
