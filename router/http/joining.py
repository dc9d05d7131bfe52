"""Two writes that leave as one: each costs a call of the kernel, and the other side a reading."""

import asyncio


class Joining:
    """A connection, as one response writes to it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._is_next_held = False
        self._held = b""

    def hold(self) -> None:
        """What is written next waits for what is written behind it, but not beyond this turn of the event loop."""
        self._flush()
        self._is_next_held = True

    def write(self, data: bytes) -> None:
        if self._is_next_held:
            self._is_next_held = False
            self._held = data
            self._loop.call_soon(self._flush)
            return
        held, self._held = self._held, b""
        self._transport.write(held + data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Behind what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)
