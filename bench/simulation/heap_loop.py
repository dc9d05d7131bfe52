"""An event loop without a machine below it: one heap of timers, and time that goes on only from one to the next."""

import asyncio
import heapq
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from bench.simulation.process import PROCESS, Process

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_THREAD_SECONDS = 2e-4
"""The way to a thread and back."""
_MOST_ROUNDS = 5
_ROUND_SECONDS = 30.0
Complaint = dict[str, Any]


class NothingLeft(RuntimeError):
    """Somebody waits, and nothing will ever happen."""


class _Due(asyncio.TimerHandle):
    """Something to be done, by somebody who may be stopped or dead when its time comes."""

    __slots__ = ("_todo", "process")

    def __init__(  # nothing of what a handle of asyncio keeps for people is needed here
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
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
    """Everything runs in the order of its time, and in the order in which it was asked for among equals: the same
    callbacks give the same history. Threads are played: their work is done in one go, a moment later. Of asyncio's own
    loop nothing is used but how futures and tasks are made."""

    def __init__(self, start: float = 1000.0) -> None:
        """`start` is no zero: nothing may depend on one."""
        self._now = start
        self._ready: deque[_Due] = deque()
        self._timers: list[tuple[float, int, _Due]] = []
        self._numbers = count()
        self._stopping = False
        self._running = False
        self._closed = False
        self._is_over = False
        self.complaints: list[Complaint] = []
        """What nobody else has heard of: exceptions in callbacks and in tasks that nobody awaits."""
        self.num_events = 0
        self.after_event: Callable[[], None] | None = None
        """Called after every callback."""
        self.cpu_seconds: dict[str, float] | None = None
        """Real ones, by the name of the process whose work it was; None: nobody measures."""
        self.collected_seconds = 0.0
        """Of them, the garbage collector's, which walks everybody's objects at once: nobody is charged for it."""

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        due = _Due(self._now, callback, args, copy_context() if context is None else context)
        self._ready.append(due)
        return due

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        due = _Due(when, callback, args, copy_context() if context is None else context)
        heapq.heappush(self._timers, (when, next(self._numbers), due))
        return due

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> "asyncio.Task[_T]":
        process = PROCESS.get(None) if context is None else context.get(PROCESS)
        task = asyncio.Task(
            cast(Coroutine[Any, Any, _T], coro), loop=self, name=cast(str | None, name), context=context
        )
        if process is not None:
            process.tasks.add(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> "asyncio.Future[_T]":
        future = self.create_future()
        self.call_later(_THREAD_SECONDS, _work, future, func, args)
        return future

    def run_until_complete(self, future: Any) -> Any:
        """Raises NothingLeft where it never will be."""
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not task.done():
            raise NothingLeft(f"{task!r:.200} waits for nothing, {self.num_events} events after the beginning")
        return task.result()

    def run_forever(self) -> None:
        """Until it is stopped, or there is nothing left to happen."""
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
            if self.cpu_seconds is None:
                self._run(due)
            else:
                self._measure(due, self.cpu_seconds)
            if self.after_event is not None:
                self.after_event()
        return True

    def _run(self, due: _Due) -> None:
        try:
            due.run()
        except Exception as error:
            self.call_exception_handler({"message": "a callback failed", "exception": error})

    def _measure(self, due: _Due, spent: dict[str, float]) -> None:
        name = "" if due.process is None else due.process.name
        before = time.process_time() - self.collected_seconds
        self._run(due)
        spent[name] = spent.get(name, 0.0) + time.process_time() - self.collected_seconds - before

    def collecting(self, phase: str, _: object) -> None:
        """For `gc.callbacks`."""
        self.collected_seconds += time.process_time() * (1 if phase == "stop" else -1)

    def _next_moment(self) -> bool:
        """False when there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            return False
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def go_on(self, process: Process) -> None:
        """What was held back while the process was stopped is due now."""
        self._ready.extend(cast("list[_Due]", process.let_go()))

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def wind_up(self) -> None:
        """Everything that is still under way is ended, that of the dead too, so that nothing of it runs when it is
        collected. This is no part of the history."""
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
        """What has not happened yet never will."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        if enabled:
            raise NotImplementedError("there is nothing to debug about time that is made up")

    def call_exception_handler(self, context: Complaint) -> None:
        if not self._closed:
            self.complaints.append(context)


def _work(future: "asyncio.Future[Any]", func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
