"""One role and the process that plays it now, if one does."""

import os
from collections.abc import Callable
from typing import Literal

from octet.clock import Clock
from octet.supervise.backoff import Backoff, Delays
from octet.supervise.lines import Lines, shown
from octet.supervise.role import Role
from octet.supervise.screen import Screen
from octet.supervise.spawn import Spawned, spawn
from octet.supervise.status import Alive, Progress, Ready, parse

State = Literal["not begun", "starting", "ready", "dead"]
_CHUNK = 1 << 16


class Child:
    """Belongs to the supervisor's loop."""

    def __init__(
        self, role: Role, screen: Screen, clock: Clock, draw: Callable[[], float], delays: Delays | None = None
    ) -> None:
        self.role = role
        self.state: State = "not begun"
        self.backoff = Backoff(clock, draw, delays)
        self.spawned: Spawned | None = None
        self.ready_text = ""
        """What it said when it last became ready."""
        self.was_ready = False
        """Ever."""
        self.num_starts = 0
        self.last_line = ""
        self.start_at: float | None = None
        """When it is to be started, if it is."""
        self.silent_since: float | None = None
        """The last sign of life: its start, at first. None for one that is ready and never gives any."""
        self.beats = False
        """It gives signs of life all the time."""
        self._screen = screen
        self._clock = clock
        self._started_at = 0.0
        self._log, self._status = Lines(), Lines()

    @property
    def name(self) -> str:
        return self.role.name

    @property
    def alive(self) -> bool:
        return self.spawned is not None

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return self._clock.now() - self._started_at

    def start(self, close: list[int]) -> Spawned:
        self.state, self.start_at, self.beats = "starting", None, False
        self.num_starts += 1
        self._log, self._status = Lines(), Lines()
        self._started_at = self.silent_since = self._clock.now()
        self.spawned = spawn(self.role, close)
        return self.spawned

    def kill(self, number: int) -> None:
        """Its id is its own until it has been waited for."""
        if self.spawned is not None:
            os.kill(self.spawned.pid, number)

    def read_log(self) -> int | None:
        """How many bytes; 0 behind the end, None where there are none now."""
        return None if self.spawned is None else _read(self.spawned.log, self._log, self._logged)

    def read_status(self) -> int | None:
        return None if self.spawned is None else _read(self.spawned.status, self._status, self._told)

    def bury(self) -> None:
        """The process has been waited for: hear what it still had to say."""
        if self.spawned is None:
            return
        while self.read_status():
            pass
        while self.read_log():
            pass
        for line in self._log.finish():
            self._logged(line)
        os.close(self.spawned.log)
        os.close(self.spawned.status)
        self.spawned, self.state, self.silent_since = None, "dead", None

    def _logged(self, line: bytes) -> None:
        self.last_line = shown(line)
        self._screen.log(self.name, self.last_line)
        words = self.role.ready_words
        if words is not None and words in self.last_line:
            self._ready(self.last_line)

    def _told(self, line: bytes) -> None:
        news = parse(line)
        if news is not None and self.silent_since is not None:
            self.silent_since = self._clock.now()
        if isinstance(news, Progress):
            self._screen.progress(self.name, *news)
        elif isinstance(news, Ready):
            self._ready(news.text)
        elif isinstance(news, Alive):
            self.silent_since, self.beats = self._clock.now(), True
        else:
            self._screen.say(f"{self.name} told something nobody understands: {shown(line)}")

    def _ready(self, text: str) -> None:
        if self.state == "starting" and self.spawned is not None:
            self.state, self.was_ready, self.ready_text = "ready", True, text
            self.silent_since = self.silent_since if self.beats else None
            self.backoff.ready()
            self._screen.ready(self.name, self.spawned.pid, self.seconds)


def _read(fd: int, lines: Lines, use: Callable[[bytes], None]) -> int | None:
    try:
        data = os.read(fd, _CHUNK)
    except BlockingIOError:
        return None
    for line in lines.push(data):
        use(line)
    return len(data)
