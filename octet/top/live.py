"""The loop of the live view: news, keys, signals and the size of the terminal, each when it comes."""

import os
import select
import signal
from dataclasses import dataclass

from octet.clock import Clock
from octet.command_line import INTERRUPTED, PIPE_CLOSED
from octet.sdk.overview import SpecialistView
from octet.supervise.signals import Signals
from octet.top.bell import Bell
from octet.top.feed import Feed
from octet.top.frame import frame
from octet.top.keys import Keys
from octet.top.state import Known
from octet.top.terminal import Screen
from octet.top.view import View

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
_LOOK_S = 0.5
"""How old things are is shown in seconds."""
_SETTLE_S = 0.05
"""For the rest of a key's sequence."""


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    by: signal.Signals | None = None
    """What is to end the process as well, once the terminal is as it was."""


class Live:
    def __init__(self, screen: Screen, signals: Signals, keys: int, bell: Bell, clock: Clock) -> None:
        """`keys` is the terminal's descriptor; `bell` is rung for what is new."""
        self._screen = screen
        self._signals = signals
        self._keys_fd = keys
        self._bell = bell
        self._clock = clock
        self._keys = Keys()
        self._view = View()
        self._shown: Known | None = None
        self._looked = 0.0

    def run(self, feed: Feed, interval: float, ends: float | None) -> Ended:
        """`interval`: what is new is shown no more often. `ends`: by the clock."""
        while ends is None or self._clock.now() < ends:
            feed.renew()
            self._show(feed, interval)
            ready = self._wait()
            self._bell.hear()
            ended = self._heard(self._signals.take() if self._signals.fd in ready else [])
            if ended is None and self._keys_fd in ready:
                ended = self._typed()
            elif self._keys.is_holding:
                self._press(self._keys.settle())
            if ended is not None:
                return ended
        return Ended(0)

    def _wait(self) -> list[int]:
        patience = _SETTLE_S if self._keys.is_holding else _LOOK_S
        ready, _, _ = select.select([self._keys_fd, self._signals.fd, self._bell.fd], [], [], patience)
        return ready

    def _show(self, feed: Feed, interval: float) -> None:
        newest, now = feed.known(), self._clock.now()
        is_due = self._shown is None or now - self._looked >= interval
        if newest is not None and (is_due or newest.is_stale):
            self._shown, self._looked = newest, now
        if self._shown is not None:
            self._screen.draw(frame(self._shown, self._view, *self._screen.size()))

    def _heard(self, signals: list[signal.Signals]) -> Ended | None:
        for number in signals:
            if number is signal.SIGINT:
                return Ended(INTERRUPTED)
            if number in (signal.SIGTERM, signal.SIGHUP):
                return Ended(128 + number, number)
            if number is signal.SIGTSTP:
                self._suspend()
            self._screen.forget()
        return None

    def _suspend(self) -> None:
        """As the shell expects of Ctrl-Z; goes on when it is brought back."""
        self._screen.give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._screen.take()

    def _typed(self) -> Ended | None:
        try:
            raw = os.read(self._keys_fd, 4096)
        except OSError:  # the terminal has gone
            raw = b""
        if not raw:
            return Ended(PIPE_CLOSED)
        return self._press(self._keys.read(raw))

    def _press(self, keys: list[str]) -> Ended | None:
        views: tuple[SpecialistView, ...] = () if self._shown is None else self._shown.overview.specialists
        for key in keys:
            if key == "q":
                return Ended(0)
            self._view = self._view.pressed(key, views)
        return None
