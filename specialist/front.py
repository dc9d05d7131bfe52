"""The scheduler and the desk before it on one clock: what a replica decides, without threads or sockets."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from admission.forecast import SWEEP_SECONDS, Admit, Desk, Estimator, Prices, Room, Verdict
from specialist.account import Account, Accounts, booking_of, under_way
from specialist.calibrated import prices_of
from specialist.engines.base import Engine
from specialist.events import Event
from specialist.hits import peek_hits
from specialist.hurry import LONE_CHUNKS
from specialist.loop import StepLoop
from specialist.request import FinishReason, Request
from specialist.scheduler import Scheduler
from specialist.step import Step

__all__ = ["SHADOW_PRIORITY", "Front", "new_desk", "prices_of"]

SHADOW_PRIORITY = -(2**62)
"""Below every priority a caller can ask for."""


class Front:
    """Deterministic. What is let in is in the scheduler at once; what gives way ends with "shed" or is set aside."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        max_waiting: int = 256,
        prices: Prices | None = None,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.clock = scheduler.clock
        self.desk = new_desk(scheduler, max_waiting, prices, jitter)
        self._loop = StepLoop(scheduler, engine)
        self._accounts = Accounts(scheduler)
        self._events: list[Event] = []
        self._swept_at = 0.0

    def submit(self, request: Request, *, shadow: bool = False) -> Verdict:
        """Raises Refused for what could never run here."""
        if shadow:
            request = replace(request, priority=SHADOW_PRIORITY)
        self.scheduler.check(request)
        now = self.clock.now()
        booking = booking_of(request, shadow=shadow, hits=peek_hits(self.scheduler, request))
        self.desk.stepping(under_way(self.scheduler))
        verdict = self.desk.ask(booking, now)
        if isinstance(verdict, Admit):
            self.desk.enter(booking, verdict, now)
            for key in verdict.displaced:
                self.scheduler.end(key, "shed", f"for {request.request_id}")
            for key in verdict.aside:
                self.scheduler.set_aside(key, request.request_id)
            self.scheduler.submit(request)
            self._book_events()
        return verdict

    def step(self) -> Step | None:
        """One step of the scheduler, once those who wait in vain have gone. None when there is nothing to run."""
        self._sweep()
        step = self._loop.run_once()
        self._book(step)
        return step

    def end(self, request_id: str, reason: FinishReason) -> bool:
        ended = self.scheduler.end(request_id, reason)
        self._book_events()
        return ended

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _sweep(self) -> None:
        now = self.clock.now()
        if now - self._swept_at < SWEEP_SECONDS and not self.desk.is_due:
            return
        self._swept_at = now
        self.desk.stepping(None)
        sweep = self.desk.sweep(now)
        for key in sweep.shed:
            self.scheduler.end(key, "shed", "it could not be answered in time any more")
        for key in sweep.aside:
            self.scheduler.set_aside(key, sweep.beneficiary)
        for key in sweep.back:
            self.scheduler.call_back(key)
        self._book_events()

    def _book(self, step: Step | None) -> None:
        events = self.scheduler.take_events()
        self._events += events
        self._accounts.of(step, events, self.clock.now()).book(self.desk)

    def _book_events(self) -> None:
        """Between two steps: no pause."""
        events = self.scheduler.take_events()
        self._events += events
        Account(self.clock.now(), None, tuple(events)).book(self.desk)


def new_desk(
    scheduler: Scheduler, max_waiting: int, prices: Prices | None, jitter: Callable[[], float] = lambda: 0.0
) -> Desk:
    config, pool = scheduler.config, scheduler.pool
    room = Room(
        max_running=config.max_running,
        max_waiting=max_waiting,
        num_blocks=pool.capacity,
        block_size=pool.block_size,
        headroom=ceil(config.watermark * pool.capacity),
        max_step_tokens=config.max_step_tokens,
        lone_chunks=None if scheduler.hurry is None else LONE_CHUNKS,
        age_bound=config.age_bound,
    )
    return Desk(room, Estimator(prices), chunk=scheduler.budget.tokens(), jitter=jitter)
