"""What a load knocks at."""

from collections import deque
from typing import NamedTuple, Protocol

from specialist.events import Event
from specialist.loop import StepLoop
from specialist.request import Request


class Refused(NamedTuple):
    reason: str
    retry_after: float | None
    cpu: float | None = None
    """Seconds of the processor that it took, where that is measured."""


class Door(Protocol):
    """Asked at any time, also while a step runs; everything else happens between two steps."""

    def ask(self, request: Request) -> Refused | None:
        """None for whoever is let in."""

    def step(self) -> bool:
        """False when there was nothing to do."""

    def events(self) -> list[Event]:
        """Since the last call."""

    def displaced(self, name: str) -> bool:
        """Whether it had been let in and had to give way to a higher priority."""

    def serves_below(self, priority: int) -> bool:
        """Whether somebody of a lower priority holds a seat."""

    def stop(self, name: str) -> None:
        """Its answer is complete."""


class OpenDoor:
    """Admission off: whoever finds a seat comes in, and the scheduler sees to the rest."""

    def __init__(self, loop: StepLoop, seats: int) -> None:
        self._loop = loop
        self._seats = seats
        self._inbox: deque[Request] = deque()

    def ask(self, request: Request) -> Refused | None:
        if len(self._loop.scheduler.ledger.live) + len(self._inbox) >= self._seats:
            return Refused("queue full", None)
        self._inbox.append(request)
        return None

    def step(self) -> bool:
        while self._inbox:
            self._loop.scheduler.submit(self._inbox.popleft())
        self.before_step()
        return self._loop.run_once() is not None

    def before_step(self) -> None:
        """Everybody who was let in is in the scheduler."""

    def events(self) -> list[Event]:
        return self._loop.scheduler.take_events()

    def displaced(self, name: str) -> bool:
        return False

    def serves_below(self, priority: int) -> bool:
        return any(seq.request.priority < priority for seq in self._loop.scheduler.running)

    def stop(self, name: str) -> None:
        self._loop.scheduler.end(name, "stop")
