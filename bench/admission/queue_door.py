"""A replica with nothing but a bounded queue before it, and callers who hang up when their time is over."""

from dataclasses import replace
from heapq import heappop, heappush
from sys import maxsize

from bench.admission.door import OpenDoor, Refused
from octet.clock import Clock
from specialist.loop import StepLoop
from specialist.request import Request
from specialist.scheduler import Scheduler


class QueueDoor(OpenDoor):
    """It knows of no deadline. Whoever comes first is served first, or whoever comes first of the highest priority."""

    def __init__(self, loop: StepLoop, clock: Clock, *, length: int, by_priority: bool) -> None:
        """`length` is how many may wait."""
        super().__init__(_in_order(loop), loop.scheduler.config.max_running + length)
        self._clock = clock
        self._by_priority = by_priority
        self._deadlines: list[tuple[float, str]] = []
        self._priorities: dict[str, int] = {}
        """As their callers mean them, whatever they run as."""

    def ask(self, request: Request) -> Refused | None:
        self._priorities[request.request_id] = request.priority
        priority = request.priority if self._by_priority else 0
        refused = super().ask(replace(request, deadline=None, priority=priority))
        if refused is None and request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.request_id))
        return refused

    def serves_below(self, priority: int) -> bool:
        running = self._loop.scheduler.running
        return any(self._priorities[seq.request.request_id] < priority for seq in running)

    def before_step(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock.now():
            self._loop.scheduler.end(heappop(self._deadlines)[1], "deadline")


def _in_order(loop: StepLoop) -> StepLoop:
    """One prompt behind the other: with turns, all would end late together."""
    scheduler = loop.scheduler
    config = replace(scheduler.config, age_bound=maxsize)
    return StepLoop(Scheduler(scheduler.pool, config, scheduler.clock, budget=scheduler.budget), loop.engine)
