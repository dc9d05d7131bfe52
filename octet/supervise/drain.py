"""The end of everybody, from the topmost stage down: told to end, given time to finish, killed at last."""

import signal
from collections.abc import Sequence
from math import inf

from octet.clock import Clock
from octet.supervise.child import Child
from octet.supervise.screen import Screen


class Drain:
    def __init__(self, children: Sequence[Child], screen: Screen, clock: Clock, seconds: float) -> None:
        """Each stage has so many seconds."""
        self._children = children
        self._screen = screen
        self._clock = clock
        self._seconds = seconds
        self._stage: int | None = None
        self.next_at = inf
        """When `step` has something to do though nothing happens."""
        self.had_to_kill = False

    def step(self) -> None:
        living = [child for child in self._children if child.alive]
        if not living:
            return
        stage = max(child.role.stage for child in living)
        topmost = [child for child in living if child.role.stage == stage]
        if stage != self._stage:
            self._stage, self.next_at = stage, self._clock.now() + self._seconds
            for child in topmost:
                child.kill(signal.SIGTERM)
        elif self._clock.now() >= self.next_at:
            self._kill(topmost)

    def _kill(self, children: Sequence[Child]) -> None:
        self.next_at, self.had_to_kill = inf, True
        for child in children:
            self._screen.say(f"{child.name} has not ended within {self._seconds:g} s and is killed")
            child.kill(signal.SIGKILL)
