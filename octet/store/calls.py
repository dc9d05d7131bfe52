"""Calls from the event loop to the store's thread. Each is answered in bounded time, whatever hangs."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from octet.clock import Clock
from octet.store.database import Database
from octet.store.errors import Stale, StoreUnavailable, Unknown
from octet.store.job import Job
from octet.store.worker import Worker

T = TypeVar("T")
S = TypeVar("S")
_log = logging.getLogger("octet.store")
_TURN = 5.0
"""How long a call waits for its turn."""
_SETTLE = 10.0
"""How long the commit of a change that was lost is looked for."""
_LAST = 20.0
"""When every call has been answered. Seconds, all three."""
_MOST = 256


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    result: T


class Calls:
    def __init__(self, worker: Worker, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    async def ask(self, do: Callable[[Database], T]) -> T:
        """Raises Stale, StoreUnavailable."""
        return await self.ask_for(do, lambda result: result)

    async def ask_for(self, do: Callable[[Database], T], shape: Callable[[T], S]) -> S:
        """`shape` is applied on the event loop, before anything that the thread does later is known there."""
        if self._worker.num_waiting >= _MOST:
            raise StoreUnavailable(f"{_MOST} calls wait for the store already")
        answer: asyncio.Future[_Outcome[S] | Exception] = self._loop.create_future()
        job = self.submit(do, lambda result: _put(answer, _Outcome(shape(result))), partial(_put, answer), _SETTLE)
        try:
            if not await within(answer, _TURN) and not job.abandon():
                await within(answer, _LAST - _TURN)
        finally:
            is_abandoned = job.abandon()
        if answer.done():
            return _result(answer.result())
        raise StoreUnavailable(f"no answer in {_TURN if is_abandoned else _LAST:g} s", certain=is_abandoned)

    def submit(
        self,
        do: Callable[[Database], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        settle: float = 0.0,
    ) -> Job[T]:
        """`done` or `failed` are called on the event loop, in the order of the jobs."""
        job = Job(
            do,
            lambda result: self.hand_over(partial(done, result)),
            lambda error: self.hand_over(partial(failed, error)),
            settle_until=self._clock.now() + settle,
        )
        self._worker.submit(job)
        return job

    def hand_over(self, call: Callable[[], None]) -> None:
        """From the store's thread to the event loop; one that is gone wants nothing any more."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            _log.debug("the event loop was closed before the store")


async def within(future: "asyncio.Future[T]", seconds: float) -> bool:
    """Whether it is done. It goes on if not."""
    await asyncio.wait({future}, timeout=max(0.0, seconds))
    return future.done()


def shown(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _put(answer: "asyncio.Future[T]", outcome: T) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _result(outcome: _Outcome[T] | Exception) -> T:
    if isinstance(outcome, _Outcome):
        return outcome.result
    if isinstance(outcome, Stale):
        raise outcome
    raise StoreUnavailable(shown(outcome), certain=not isinstance(outcome, Unknown)) from outcome
