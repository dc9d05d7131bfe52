"""An asyncio event loop on a heap of timers: simulated time jumps from one timer to the next."""

from __future__ import annotations

import asyncio
import heapq
import time
from asyncio import TimerHandle, events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar, TypeVarTuple, Unpack, cast
from weakref import WeakSet

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that the current callback belongs to. Tasks and timers inherit it."""
State = Literal["up", "stopped", "dead"]


class Process:
    """A simulated process. Its callbacks run while it is up, wait while it is stopped, and never run once it is dead.
    As with kill -9, no handler notices its death, and no `finally` block runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: State = "up"
        self._held: list[TimerHandle] = []
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._dropped: list[object] = []
        """Keeps the callbacks of the dead process: garbage-collecting them would run their `finally` blocks."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def takes(self, handle: TimerHandle) -> bool:
        """Return whether the callback may run now. Otherwise, keep the callback: until a stopped process resumes, or
        for good if the process is dead."""
        if self.state == "up":
            return True
        (self._held if self.state == "stopped" else self._dropped).append(handle)
        return False

    def stop(self) -> None:
        if self.state == "up":
            self.state = "stopped"

    def resume(self) -> list[TimerHandle]:
        """Resume the process and return the callbacks that waited, in order."""
        if self.state == "stopped":
            self.state = "up"
        held, self._held = self._held, []
        return held

    def kill(self) -> None:
        self.state = "dead"
        self._dropped += [*self._held, *self.tasks]
        self._held = []


_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Do: TypeAlias = Callable[[Unpack[_Ts]], object]
_THREAD_SECONDS = 2e-4  # simulated seconds to hand work to a thread and get its result
_MOST_ROUNDS = 5
_ROUND_SECONDS = 30.0
ErrorContext = dict[str, Any]


class LoopStuck(RuntimeError):
    """A task waits, but no event is left."""


class _Due(TimerHandle):
    """A callback of a process that may be stopped or dead when the callback is due."""

    __slots__ = ("_todo", "process")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        """Does not call the base initialiser, which also stores fields for the debug mode."""
        self._when = when
        self._cancelled = False
        self._context = context
        self._todo: tuple[Callable[..., object], tuple[Any, ...]] | None = (callback, args)
        self.process: Process | None = context.get(PROCESS)

    def when(self) -> float:
        return self._when

    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True
        self._todo = None

    def run(self) -> None:
        if self._todo is not None:
            callback, args = self._todo
            self._context.run(callback, *args)


class HeapLoop(asyncio.BaseEventLoop):
    """Runs callbacks in simulated time, in the order in which they are due. Callbacks due at the same time run in the
    order in which they were scheduled, so that the same callbacks give the same history. Work meant for threads also
    runs on this loop. Of asyncio, only futures and tasks are used, not its scheduling of callbacks."""

    def __init__(self, start: float = 1000.0) -> None:
        """`start` is not zero by default, to expose code that relies on a clock starting at zero."""
        self._now = start
        self._ready: deque[_Due] = deque()
        self._timers: list[tuple[float, int, _Due]] = []
        self._numbers = count()
        self._stopping = False
        self._running = False
        self._closed = False
        self._is_over = False
        self.errors: list[ErrorContext] = []  # unhandled exceptions of callbacks and of tasks that are not awaited
        self.num_events = 0
        self.after_event: Callable[[], None] | None = None  # called after every callback
        self.cpu_seconds: dict[str, float] | None = None  # real CPU seconds by process; None if they are not measured
        self.collected_seconds = 0.0  # CPU seconds of the garbage collector, which are charged to no process

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: _Do[*_Ts], *args: *_Ts, context: Context | None = None) -> TimerHandle:
        due = _Due(self._now, callback, args, copy_context() if context is None else context)
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: _Do[*_Ts], *args: *_Ts, context: Context | None = None) -> TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: _Do[*_Ts], *args: *_Ts, context: Context | None = None) -> TimerHandle:
        due = _Due(when, callback, args, copy_context() if context is None else context)
        heapq.heappush(self._timers, (when, next(self._numbers), due))
        return due

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        process = PROCESS.get(None) if context is None else context.get(PROCESS)
        task = asyncio.Task(coro, loop=self, name=cast(str | None, name), context=context)
        if process is not None:
            process.tasks.add(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(_THREAD_SECONDS, work)
        return future

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done. Raises LoopStuck if it can never be done."""
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not task.done():
            raise LoopStuck(f"no event is left after {self.num_events} events, but {task!r:.200} still waits")
        return task.result()

    def run_forever(self) -> None:
        """Run until stopped, or until no event is left."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._running, self._stopping = True, False
        try:
            while not self._stopping and self._step():
                pass
        finally:
            self._running = False
            events._set_running_loop(before)

    def _step(self) -> bool:
        if not self._ready and not self._next_moment():
            return False
        due = self._ready.popleft()
        if due.cancelled():
            return True
        process = due.process
        if process is None or self._is_over or process.takes(due):
            self.num_events += 1
            self._run(due)
            if self.after_event is not None:
                self.after_event()
        return True

    def _run(self, due: _Due) -> None:
        before = 0.0 if self.cpu_seconds is None else time.process_time() - self.collected_seconds
        try:
            due.run()
        except Exception as error:
            self.call_exception_handler({"message": "a callback failed", "exception": error})
        if self.cpu_seconds is not None:
            name = "" if due.process is None else due.process.name
            spent = time.process_time() - self.collected_seconds - before
            self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + spent

    def count_collection(self, phase: str, _: object) -> None:
        """Add up the CPU time of garbage collections, as a callback in `gc.callbacks`."""
        self.collected_seconds += time.process_time() * (1 if phase == "stop" else -1)

    def _next_moment(self) -> bool:
        """Advance to the next event. Return False if there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            return False
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def resume(self, process: Process) -> None:
        """Resume the process. Its waiting callbacks become due now."""
        self._ready.extend(cast("list[_Due]", process.resume()))

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def cancel_all(self) -> None:
        """Cancel every pending task, including those of dead processes, so that none runs when it is garbage-collected.
        This is not part of the simulated history."""
        self._is_over, self.after_event = True, None
        for _ in range(_MOST_ROUNDS):
            tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.call_later(_ROUND_SECONDS, self.stop)
            self.run_forever()

    def close(self) -> None:
        """Drop all pending events."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        if enabled:
            raise NotImplementedError("a simulated loop has no debug mode")

    def call_exception_handler(self, context: ErrorContext) -> None:
        if not self._closed:
            self.errors.append(context)


class LoopClock:
    """The simulated monotonic clock."""

    def __init__(self, loop: HeapLoop) -> None:
        self.now = loop.time

    def sleep(self, seconds: float) -> None:
        raise RuntimeError(f"sleeping for {seconds} s would stop the whole simulation")


class EngineClock:
    """The clock of an engine. `sleep` only adds up the time. `take` returns the sum, which the simulation lets pass."""

    def __init__(self, loop: HeapLoop) -> None:
        self.now = loop.time
        self._slept = 0.0

    def sleep(self, seconds: float) -> None:
        self._slept += seconds

    def take(self) -> float:
        """Seconds slept since the last call."""
        slept, self._slept = self._slept, 0.0
        return slept


class WallClock:
    """A Unix clock that a script may set."""

    START = 1_700_000_000.0

    def __init__(self, loop: HeapLoop) -> None:
        self._loop = loop
        self._offset = self.START - loop.time()
        self.num_steps = 0  # how often the time was set

    def now(self) -> float:
        return self._loop.time() + self._offset

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def step(self, seconds: float) -> None:
        self._offset += seconds
        self.num_steps += 1
