"""For connections whose other end is gone without a word: who is silent is asked, who does not answer is given up."""

import asyncio
from collections.abc import Callable

EVERY_SECONDS = 10.0
PATIENCE_SECONDS = 5.0
_LATE_SECONDS = 1.0
"""Who looks so late has not run all the time: what was sent meanwhile is not read yet."""


class Keepalive:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, probe: Callable[[], bool], give_up: Callable[[str], None]
    ) -> None:
        """`probe` asks, unless there is nobody who waits for anything: then it is False."""
        self._loop = loop
        self._probe = probe
        self._give_up = give_up
        self.heard = loop.time()
        """When anything came."""
        self._probed: float | None = None
        self._look_in(EVERY_SECONDS)

    def stop(self) -> None:
        self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self._probed is not None and self.heard < self._probed:
            if now - self._due < _LATE_SECONDS:
                self._give_up(f"nothing was heard for {now - self.heard:.0f} s")
            else:
                self._look_in(PATIENCE_SECONDS)
            return
        self._probed = None
        silent = now - self.heard
        if silent < EVERY_SECONDS:
            self._look_in(EVERY_SECONDS - silent)
        elif self._probe():
            self._probed = now
            self._look_in(PATIENCE_SECONDS)
        else:
            self._look_in(EVERY_SECONDS)
