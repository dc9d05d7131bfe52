"""The engine's thread without a thread: a step begins, time passes while others go on, and it ends."""

import asyncio
import logging
from collections.abc import Callable

from bench.simulation.clock import EngineClock
from bench.simulation.heap_loop import HeapLoop
from specialist.engines.base import Completion
from specialist.loop import StepLoop
from specialist.service.engine_thread import Command, EngineThread, Handover
from specialist.step import Step

_log = logging.getLogger(__name__)


class EnginePump(EngineThread):
    """Does what the thread does, in the same order. Begins and ends of steps are events of the loop."""

    def __init__(
        self, loop: StepLoop, clock: EngineClock, hand_over: Callable[[Handover], None], heap: HeapLoop
    ) -> None:
        super().__init__(loop, clock, hand_over)
        self._engine_clock = clock
        self._heap = heap
        self._next: asyncio.TimerHandle | None = None
        self._is_stepping = False
        self.busy_seconds = 0.0
        """Of steps that have ended."""
        self.on_turn: Callable[[], None] | None = None
        """Called whenever scheduler and pool may have changed."""

    def start(self) -> None:
        self._look()

    def stop(self) -> None:
        self._stopping = True

    def _post(self, command: Command) -> bool:
        if self._dead:
            return False
        self._inbox.append(command)
        self._look()
        return True

    def _look(self) -> None:
        """At the inbox, as soon as the step under way has ended."""
        if self._is_stepping or self._dead:
            return
        if self._next is not None:
            self._next.cancel()
        self._next = self._heap.call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        self._guarded(self._begin)

    def _begin(self) -> None:
        if not self._obey(wait=False):
            return
        step = self._loop.scheduler.assemble_step()
        if step is None:
            self._tell_of(None)
            if self._live:
                self._next = self._heap.call_later(self.STUCK_SECONDS, self._turn)
            return
        self.stepping_since = self._clock.now()
        self._is_stepping = True
        completions = self._loop.complete(step)
        seconds = self._engine_clock.take()
        self._heap.call_later(seconds, self._guarded, lambda: self._end(step, completions, seconds))

    def _end(self, step: Step, completions: list[Completion], seconds: float) -> None:
        self._is_stepping = False
        self.stepping_since = None
        self.busy_seconds += seconds
        self._loop.settle(step, completions)
        self._tell_of(step)
        self._look()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            _log.critical("the step loop died", exc_info=True)
            self._die()
        if self.on_turn is not None:
            self.on_turn()
