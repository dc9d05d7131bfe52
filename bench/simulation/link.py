"""The way between two processes: what is sent arrives later, in its order, and not at all while the way is cut."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bench.simulation.heap_loop import HeapLoop
from bench.simulation.process import Process

Arrive = Callable[[], None]
KEEPALIVE_SECONDS = 15.0
"""A connection that was cut for so long is given up by both of its ends."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds, one way."""

    least: float = 2e-4
    most: float = 1.5e-3


class Link:
    """Messages of one direction never overtake each other."""

    def __init__(self, loop: HeapLoop, random: Random, delays: Delays | None = None) -> None:
        self._loop = loop
        self._random = random
        self._delays = delays or Delays()
        self.factor = 1.0
        """Everything takes so many times as long."""
        self._cut: dict[bool, list[tuple[Process, Arrive]]] = {}
        """By direction, those that are cut; what was sent meanwhile."""
        self._last = {False: 0.0, True: 0.0}
        self._giving_up: asyncio.TimerHandle | None = None
        self.on_loss: list[Callable[[], None]] = []
        """Told when the connection is given up."""

    @property
    def is_whole(self) -> bool:
        return not self._cut

    def send(self, to: Process, arrive: Arrive, *, back: bool) -> None:
        """`arrive` is called in the other process."""
        if back in self._cut:
            self._cut[back].append((to, arrive))
            return
        delays = self._delays
        seconds = self._random.uniform(delays.least, delays.most) * self.factor
        at = max(self._loop.time() + seconds, self._last[back])
        self._last[back] = at
        self._loop.call_at(at, arrive, context=to.context)

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """What is under way still arrives."""
        for direction, is_cut in ((False, there), (True, back)):
            if is_cut:
                self._cut.setdefault(direction, [])
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(KEEPALIVE_SECONDS, self._give_up)

    def mend(self) -> None:
        """What was sent meanwhile arrives after all, unless it was given up."""
        held, self._cut = self._cut, {}
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        for back, sent in held.items():
            for to, arrive in sent:
                self.send(to, arrive, back=back)

    def lose(self) -> None:
        """The connection is gone at once, with what was on its way on it while it was cut."""
        for sent in self._cut.values():
            sent.clear()
        for lost in tuple(self.on_loss):
            lost()

    def _give_up(self) -> None:
        self._giving_up = None
        self.lose()
