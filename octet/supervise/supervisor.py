"""The process in the foreground: starts the others, brings back those that die, ends them in order."""

import gc
import os
import random
import selectors
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from octet.clock import Clock, SystemClock
from octet.supervise.apart import ending
from octet.supervise.backoff import Delays
from octet.supervise.child import Child
from octet.supervise.drain import Drain
from octet.supervise.outlet import Outlet
from octet.supervise.role import USAGE, Role
from octet.supervise.screen import Screen
from octet.supervise.signals import Signals
from octet.supervise.spawn import Spawned
from octet.supervise.terminal import Terminal

KILLED, INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True)
class Care:
    """Seconds."""

    hang: float = 30.0
    """A process that gives signs of life and gave none for so long is killed."""
    start: float = 300.0
    """One that has given none yet, nor made any progress, nor is ready: it may have much to load."""
    drain: float = 60.0
    """For each stage; who has not ended by then is killed."""
    delays: Delays = field(default_factory=Delays)


class Supervisor:
    """Has no threads, so that it can fork whenever somebody must be replaced."""

    def __init__(
        self,
        roles: Sequence[Role],
        screen: Screen,
        outlets: Sequence[Outlet],
        care: Care | None = None,
        *,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`outlets`: all that is written to while it runs, the screen's and others."""
        self._screen = screen
        self._outlets = outlets
        self._care = care or Care()
        self._clock = clock or SystemClock()
        self.children = [Child(role, screen, self._clock, draw, self._care.delays) for role in roles]
        self._stages = sorted({role.stage for role in roles})
        self._num_begun = 0
        """Stages."""
        self._told_ready = False
        self._drain: Drain | None = None
        self._exit_status = 0
        self._last_word = ""
        """Why everything ended, said when it has."""
        self._signals = Signals()
        self._selector = selectors.DefaultSelector()
        self._terminal = Terminal()

    def run(self, on_ready: Callable[["Supervisor"], None]) -> int:
        """Until SIGTERM or SIGINT, which drain: 0, or 1 where somebody had to be killed for it. A second SIGINT kills
        everybody: 130. A process that ends its very first start with status 2 ends everything: 2.

        `on_ready` is called once, when all are ready for the first time.
        """
        gc.collect()
        gc.freeze()  # what is shared stays shared: no copy's collector writes to it
        with self._signals, self._selector, self._terminal:
            self._selector.register(self._signals.fd, selectors.EVENT_READ)
            try:
                while self._drain is None or any(child.alive for child in self.children):
                    self._turn(on_ready)
            finally:
                self._kill_all()
        if self._last_word:
            self._screen.say(self._last_word)
        for outlet in self._outlets:
            outlet.finish()
        if self._exit_status == 0 and self._drain is not None and self._drain.had_to_kill:
            return KILLED
        return self._exit_status

    @property
    def pids(self) -> list[int]:
        return [child.spawned.pid for child in self.children if child.spawned is not None]

    def _turn(self, on_ready: Callable[["Supervisor"], None]) -> None:
        if self._drain is None:
            self._begin_stages()
            self._start_due()
        self._watch_outlets()
        for key, _ in self._selector.select(self._seconds_to_wait()):
            if isinstance(key.data, Outlet):
                key.data.flush()
            elif key.data is not None:
                self._read(key.fd, key.data)
        for number in self._signals.take():
            self._obey(number)
        self._bury_dead()
        self._kill_silent()
        if self._drain is not None:
            self._drain.step()
        elif not self._told_ready and all(child.state == "ready" for child in self.children):
            self._told_ready = True
            self._screen.settle()
            on_ready(self)

    def _begin_stages(self) -> None:
        """Whoever has died once does not hold up the stages behind."""
        while self._num_begun < len(self._stages):
            begun = self._stages[: self._num_begun]
            if any(child.role.stage in begun and not _has_shown_itself(child) for child in self.children):
                return
            for child in self.children:
                if child.role.stage == self._stages[self._num_begun]:
                    child.start_at = self._clock.now()
            self._num_begun += 1

    def _start_due(self) -> None:
        for child in self.children:
            if child.start_at is not None and child.start_at <= self._clock.now():
                spawned = child.start(list(self._own()))
                self._selector.register(spawned.log, selectors.EVENT_READ, child.read_log)
                self._selector.register(spawned.status, selectors.EVENT_READ, child.read_status)

    def _watch_outlets(self) -> None:
        """Only those that wait to be read: others can always be written to."""
        for outlet in self._outlets:
            watched = outlet.fd in self._selector.get_map()
            if outlet.waits and not watched:
                self._selector.register(outlet.fd, selectors.EVENT_WRITE, outlet)
            elif watched and not outlet.waits:
                self._selector.unregister(outlet.fd)

    def _own(self) -> Iterator[int]:
        """Descriptors that no copy of this process is to keep."""
        for child in self.children:
            if child.spawned is not None:
                yield from (child.spawned.log, child.spawned.status)
        if isinstance(self._selector, selectors.EpollSelector):
            yield self._selector.fileno()
        yield from self._signals.own
        yield from self._terminal.own
        yield from (outlet.fd for outlet in self._outlets)

    def _read(self, fd: int, read: Callable[[], int | None]) -> None:
        """Behind the end of a pipe there is nothing to wait for; its process may live on."""
        if read() == 0:
            self._selector.unregister(fd)

    def _seconds_to_wait(self) -> float | None:
        """Until something is to be done though nothing happens; None for never."""
        moments = [child.start_at for child in self.children if child.start_at is not None]
        moments += [
            child.silent_since + self._patience(child) for child in self.children if child.silent_since is not None
        ]
        moments += [] if self._drain is None else [self._drain.next_at]
        wait = min(moments, default=float("inf")) - self._clock.now()
        return None if wait == float("inf") else max(0.0, wait)

    def _obey(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGHUP and not self._terminal.gone:
            self._reload()
        elif self._drain is None:
            self._screen.settle()
            self._screen.say("ending: what runs is finished first; Ctrl-C once more and it is not")
            self._end(0)
        elif number == signal.SIGINT:
            self._exit_status = INTERRUPTED
            self._kill_all()

    def _reload(self) -> None:
        for child in self.children:
            if child.role.reloads:
                child.kill(signal.SIGHUP)

    def _end(self, status: int) -> None:
        self._exit_status = status
        self._drain = Drain(self.children, self._screen, self._clock, self._care.drain)
        for child in self.children:
            child.start_at = None

    def _bury_dead(self) -> None:
        for child in self.children:
            if child.spawned is None:
                continue
            pid, status = os.waitpid(child.spawned.pid, os.WNOHANG)
            if pid:
                self._bury(child, child.spawned, status)

    def _bury(self, child: Child, spawned: Spawned, status: int) -> None:
        for fd in (spawned.log, spawned.status):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        child.bury()
        if self._drain is not None:
            return
        if child.num_starts == 1 and not child.was_ready and os.waitstatus_to_exitcode(status) == USAGE:
            self._screen.settle()
            self._last_word = f"{child.name} cannot be started, so nothing is: {child.last_line}"
            self._end(USAGE)
            return
        self._bring_back(child, spawned.pid, status)

    def _bring_back(self, child: Child, pid: int, status: int) -> None:
        delay = child.backoff.died()
        child.start_at = self._clock.now() + delay
        often = f", the {child.backoff.num_deaths}th time in a row" if child.backoff.num_deaths > 3 else ""
        self._screen.say(
            f"{child.name} {ending(status)} after {child.seconds:.1f} s (pid {pid}){often}; "
            f"it starts again in {delay:.1f} s"
        )

    def _kill_silent(self) -> None:
        for child in self.children:
            since, patience = child.silent_since, self._patience(child)
            if since is not None and self._clock.now() - since >= patience:
                self._screen.say(f"{child.name} has given no sign of life for {patience:g} s and is killed")
                child.silent_since = None
                child.kill(signal.SIGKILL)

    def _patience(self, child: Child) -> float:
        return self._care.hang if child.beats else self._care.start

    def _kill_all(self) -> None:
        """Nobody comes back from this."""
        if self._drain is None:
            self._end(KILLED)
        for child in self.children:
            if child.spawned is not None:
                child.kill(signal.SIGKILL)
                _, status = os.waitpid(child.spawned.pid, 0)
                self._bury(child, child.spawned, status)


def _has_shown_itself(child: Child) -> bool:
    """It was ready, or has died at least once."""
    return child.was_ready or child.num_starts > 1 or child.state == "dead"
